"""Test `ane say` as a user runs it."""

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ane.audio import playback
from ane.cli import main
from ane.system.errors import UserError
from tests.audio.recording_device import RecordingDevice

SHORT = ("--bundle=demo", "--preset=fastest", "--seed", "1", "--max-codes", "20")


def test_a_person_is_told_where_there_are_more_voices(succeed, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "use a Tortoise model: --bundle demo" in succeed("say", "-v", "?")


def test_json_has_everything_that_the_closing_line_has(capsys):
    assert main(["say", "hello", *SHORT, "-o", "out.wav", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["seed"], result["trained"], result["voice"]) == (1, True, "heart")
    assert {"voice", "decode", "vocode"} <= set(result["seconds_by_phase"])
    assert result["real_time_factor"] == pytest.approx(result["elapsed"] / result["seconds"])
    assert sum(result["seconds_by_phase"].values()) <= result["elapsed"]
    assert 0 < result["first_audio"] <= result["elapsed"] + 0.1
    assert result["peak_rss_bytes"] > 10**8


@pytest.fixture
def device(monkeypatch) -> RecordingDevice:
    device = RecordingDevice()
    monkeypatch.setattr(playback, "open_device", device)
    return device


def test_without_a_file_it_is_played(workplace, device):
    assert main(["say", "hello", *SHORT]) == 0
    assert len(device.played) > 0
    assert list(workplace.glob("*.wav")) == []


@pytest.mark.parametrize("flags", [(), ("--play", "-o", "out.wav")])
def test_a_machine_without_a_sound_device_is_reported_before_any_work(complain, monkeypatch, flags):
    def none(sample_rate: int):
        raise UserError("no sound device can be opened")

    monkeypatch.setattr(playback, "open_device", none)
    monkeypatch.setattr("ane.commands.say.load_synthesizer", None)
    assert "no sound device can be opened" in complain("say", "hello", *SHORT, *flags)


def test_a_folder_of_clips_is_a_voice(workplace, golden_checkpoints, succeed):
    clips = golden_checkpoints.parent / "audio"
    (workplace / "anna").mkdir()
    for name in ("mono16_48000", "stereo16_22050"):
        audio, rate = soundfile.read(clips / f"{name}.wav", dtype="float32")
        audio = audio if audio.ndim == 1 else audio.mean(axis=1)
        soundfile.write(workplace / "anna" / f"{name}.wav", list(audio) * 4, rate)
    said = "not a clone of its clips: demo has only the voices heart, michael (the nearest is "
    assert said in succeed("say", "hello", *SHORT, "-v", "./anna", "-o", "anna.wav")
    assert "not a clone" not in succeed("say", "hello", *SHORT, "-v", "heart", "-o", "heart.wav")
    assert (workplace / "anna.wav").read_bytes() != (workplace / "heart.wav").read_bytes()


TWO = "The turtle was first. The rabbit came second."


def test_a_stream_is_written_played_and_piped_as_it_would_be_whole(workplace, device, succeed, python):
    flags = (TWO, *SHORT, "--split", "20,30", "--threads", "1")  # the load of the machine would choose their number
    assert main(["say", *flags, "-o", "whole.wav"]) == 0
    assert "the first sound after" in succeed("say", *flags, "--stream", "-o", "stream.wav", "--play")
    whole, _ = soundfile.read("whole.wav", dtype="int16")
    stream, _ = soundfile.read("stream.wav", dtype="int16")
    assert len(whole) == len(stream)
    assert abs(whole.astype(int) - stream).max() <= 4  # 1e-4
    # playback is silent while it waits for more sound
    assert np.array_equal(device.played[device.played != 0], stream[stream != 0])
    piped = subprocess.run(
        [python, "-m", "ane", "say", *flags, "--stream", "-o", "-"], capture_output=True, timeout=300, check=True
    )
    assert piped.stdout[-len(stream) * 2 :] == stream.tobytes()
    assert soundfile.SoundFile(io.BytesIO(piped.stdout)).samplerate == 24000


def test_the_file_is_written_although_the_sound_device_fails(monkeypatch, capsys):
    monkeypatch.setattr(playback, "STALLED_SECONDS", 0.2)
    monkeypatch.setattr(playback, "open_device", RecordingDevice(fails_after=1000))
    assert main(["say", TWO, *SHORT, "--split", "20,30", "--stream", "-o", "kept.wav", "--play"]) == 1
    assert "ane: error: " in capsys.readouterr().err
    assert main(["say", TWO, *SHORT, "--split", "20,30", "-o", "whole.wav"]) == 0
    assert soundfile.info("kept.wav").frames == soundfile.info("whole.wav").frames


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_at_once_and_leaves_nothing_half_written(workplace, number, status):
    with subprocess.Popen(
        [sys.executable, "-m", "ane", "say", TWO * 40, "--stream", "-o", "long.wav"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job would ignore it
    ) as process:
        while not list(workplace.glob(".long*")) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not list(workplace.glob("*long*")) + list(workplace.glob(".long*"))


def test_subtitles_are_written_beside_the_sound_a_sentence_at_a_time(workplace):
    text = "Hello <there>. This sentence is so long that it fills more than two lines, as a subtitle never may, here."
    assert main(["say", text, "-o", "out.wav", "--srt", "--vtt"]) == 0
    srt, vtt = (Path(f"out.{form}").read_text() for form in ("srt", "vtt"))
    cues = [cue.split("\n", 2) for cue in srt.strip().split("\n\n")]
    assert [number for number, _, _ in cues] == ["1", "2", "3"]
    assert " ".join(shown.replace("\n", " ") for _, _, shown in cues) == text
    assert all(len(line) <= 42 for _, _, shown in cues for line in shown.split("\n"))
    seconds = [
        [60 * float(part[3:5]) + float(part[6:].replace(",", ".")) for part in time.split(" --> ")]
        for _, time, _ in cues
    ]
    duration = soundfile.info("out.wav").duration
    assert all(0 <= start < end <= duration + 0.001 for start, end in seconds)
    assert [start for start, _ in seconds[1:]] >= [end for _, end in seconds[:-1]]
    assert vtt.startswith("WEBVTT\n\n00:00:0")
    assert "Hello &lt;there&gt;." in vtt


@pytest.mark.parametrize("suffix", ["aiff", "m4a"])
def test_speech_is_written_as_aiff_and_m4a(tmp_path, suffix):
    av = pytest.importorskip("av", reason="needs the extra books")
    for number, options in enumerate(([], ["--stream"])):
        path = tmp_path / f"{number}.{suffix}"
        assert main(["say", "Hello.", "-q", "-o", str(path), *options]) == 0
        with av.open(str(path)) as sound:
            assert sound.format.name == {"aiff": "aiff", "m4a": "mov,mp4,m4a,3gp,3g2,mj2"}[suffix]
            assert sound.duration > 300_000  # microseconds
