"""Test every flag in the manual of macOS's `say`: `ane say` follows it, or says why not."""

import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ane.audio import devices, playback
from ane.audio.devices import SoundDevice
from ane.cli import main
from ane.commands import messages
from tests.audio.recording_device import RecordingDevice

TEXT = "The turtle was first, after all, and the hare was last."
# flags → the file that they write, its format and its sample rate
WRITTEN = [
    (("-o", "out"), "out.aiff", "PCM_16", 24000),
    (("--output-file", "out.wav"), "out.wav", "PCM_16", 24000),
    (("-o", "out", "--file-format", "WAVE"), "out.wav", "PCM_16", 24000),
    (("-o", "out.flac", "--file-format", "flac"), "out.flac", "PCM_16", 24000),
    (("-o", "out.wav", "--data-format", "LEI16@8000"), "out.wav", "PCM_16", 8000),
    (("-o", "out.wav", "--data-format", "LEF32@22050"), "out.wav", "FLOAT", 22050),
    (("-o", "out", "--data-format", "BEI24@48000"), "out.aiff", "PCM_24", 48000),
    (("-o", "out.flac", "--data-format", "I24"), "out.flac", "PCM_24", 24000),
    (("-o", "out.wav", "--data-format", "ulaw", "--channels", "1", "--stream"), "out.wav", "ULAW", 24000),
]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text as a WAV file without other flags."""
    path = tmp_path_factory.mktemp("usual") / "usual.wav"
    assert main(["say", TEXT, "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize(("flags", "file", "subtype", "rate"), WRITTEN, ids=lambda value: str(value)[:40])
def test_a_file_has_the_format_that_the_flags_name(
    usual: Path, flags: tuple[str, ...], file: str, subtype: str, rate: int
) -> None:
    assert main(["say", TEXT, *flags]) == 0
    found = soundfile.info(file)
    assert (found.subtype, found.samplerate, found.channels) == (subtype, rate, 1)
    assert found.duration == pytest.approx(soundfile.info(usual).duration, abs=0.01)
    # the two sounds are the same if they are loud at the same times
    loudness = [
        [np.sqrt(np.mean(part**2)) for part in np.array_split(soundfile.read(name)[0], 30)] for name in (file, usual)
    ]
    assert np.corrcoef(*loudness)[0, 1] > 0.95


@pytest.mark.parametrize(
    ("flag", "line"), [("--file-format", "WAVE\t.wav"), ("--data-format", "I24"), ("-a", "1\tDesk")]
)
def test_a_question_mark_lists_what_there_is(
    flag: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "playback_devices", lambda: [SoundDevice("Phone", 0), SoundDevice("Desk", 1)])
    assert main(["say", flag, "?"]) == 0
    assert line in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("wanted", "found"), [("1", "Desk"), ("desk", "Desk"), ("pho", "Phone"), ("x", None), ("e", None), ("7", None)]
)
def test_a_device_is_chosen_by_number_or_name(
    wanted: str, found: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is opened is a stand-in: that sound comes out of the device that was named only a machine with two shows."""
    device, names = RecordingDevice(), []
    monkeypatch.setattr(devices, "playback_devices", lambda: [SoundDevice("Phone", 0), SoundDevice("Desk", 1)])
    monkeypatch.setattr(
        playback,
        "open_device",
        lambda rate, name=None: (names.append(devices.find_device(name).name) if name else None) or device(rate),
    )
    assert main(["say", "Hi.", "-a", wanted]) == (found is None)
    assert names == ([found] if found else [])
    assert bool(len(device.played)) == bool(found)
    assert found or "choose from 0 Phone, 1 Desk" in capsys.readouterr().err


def test_an_input_file_and_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "INTERVAL", 0.0)
    Path("text.txt").write_text(TEXT)
    assert main(["say", "--input-file", "text.txt", "-o", "a.wav", "--json", "--progress"]) == 0
    assert re.search(r"\d of \d", capsys.readouterr().err)


LINES = """
import sys, threading
from tests.audio.recording_device import RecordingDevice
from ane.audio import playback
from ane.cli import main
from ane.commands import messages
playback.open_device = device = RecordingDevice()
def watch():
    while not len(device.played):
        threading.Event().wait(0.05)
    print("heard", flush=True)
threading.Thread(target=watch, daemon=True).start()
sys.exit(main(["say"]))
"""


def test_a_terminal_without_a_text_speaks_each_line_that_is_typed() -> None:
    terminal, end = pty.openpty()
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", LINES],
        stdin=end,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    os.close(end)
    timer = threading.Timer(120, process.kill)
    timer.start()
    try:
        os.write(terminal, b"hello there\n")
        heard = process.stdout.readline()
        assert heard == "heard\n", process.communicate()[1]  # the sound comes before the input ends
        os.write(terminal, b"and goodbye\n\x04")
        _, errors = process.communicate()
    finally:
        timer.cancel()
        process.kill()
        os.close(terminal)
    assert process.returncode == 0, errors
    assert "of speech" in errors
