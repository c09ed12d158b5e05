"""Test playback in a child process, which a long call of Core ML in the main process cannot delay."""

import ctypes
import sys
import time

import numpy as np
import pytest

from ane.audio import playback
from ane.audio.playback import PlayerError, PlayerProcess
from ane.audio.writer import pcm16
from tests.audio.recording_device import RATE, RecordingDevice, tone

# program of a child that plays to a recording device, and writes the sound and its times to two files
CHILD = """
import sys, time
from pathlib import Path
from ane.audio import __main__ as child, playback
from tests.audio.recording_device import RecordingDevice

folder = Path(sys.argv.pop(1))
class Device(RecordingDevice):
    def _take(self, callback):
        with (folder / "times").open("a") as times:
            while self.open:
                taken = callback.send(240)
                self.taken += taken
                print(time.time(), file=times, flush=True)
                time.sleep(0.01)
        (folder / "taken").write_bytes(self.taken)
playback.open_device = Device()
child.main()
"""


def test_the_child_plays_on_while_this_process_holds_the_gil(tmp_path):
    playing = PlayerProcess(RATE, 1.0, program=(sys.executable, "-c", CHILD, str(tmp_path)))
    for piece in np.split(tone(1.0), 5):
        playing.feed(piece)
    deadline = time.monotonic() + 60
    while not (tmp_path / "times").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started = time.time()
    ctypes.PyDLL(None).usleep(500_000)  # holds the GIL, as a prediction of Core ML does
    ended = time.time()
    playing.finish()
    playing.close()
    times = [float(line) for line in (tmp_path / "times").read_text().split()]
    assert sum(started < moment < ended for moment in times) > 5
    taken = np.frombuffer((tmp_path / "taken").read_bytes(), "<i2")
    np.testing.assert_array_equal(np.trim_zeros(taken, "b"), np.trim_zeros(pcm16(tone(1.0)), "b"))


def test_an_engine_that_holds_this_process_is_heard_from_a_child_which_opens_the_device(monkeypatch):
    started = []

    class Process(PlayerProcess):
        def __init__(self, *arguments):
            started.append(arguments)
            super().__init__(*arguments, program=(sys.executable, "-c", "import sys; sys.stdin.buffer.read()"))

    monkeypatch.setattr(playback, "PlayerProcess", Process)
    device = RecordingDevice()
    monkeypatch.setattr(playback, "open_device", device)
    checked = playback.check_sound_device()
    with playback.playing(RATE, 2.0, at_once=True, device=checked, blocked=True) as play:
        play(tone(0.1))
    assert started == [(RATE, 2.0, True)]
    assert not device.open
    assert device.opened == 1


@pytest.mark.parametrize(("rate", "opened"), [(24000, 1), (RATE, 2)])
def test_the_device_that_was_checked_plays_unless_its_rate_is_another(monkeypatch, rate, opened):
    device = RecordingDevice()
    monkeypatch.setattr(playback, "open_device", device)
    checked = playback.check_sound_device(24000)
    playback.play(tone(0.1), rate, checked)
    assert (device.opened, device.open, device.sample_rate) == (opened, False, rate)
    assert len(device.played)


def test_a_failure_of_the_device_is_one_line_in_this_process():
    command = (sys.executable, "-c", "print('the sound device stopped'); raise SystemExit(1)")
    playing = PlayerProcess(RATE, None, program=command)
    playing._process.wait()
    with pytest.raises(PlayerError, match=r"^the sound device stopped$"):
        playing.feed(tone(10.0))
    playing.close()


def test_closing_stops_the_child_at_once():
    playing = PlayerProcess(RATE, None, program=(sys.executable, "-c", "import time; time.sleep(60)"))
    playing.close()
    assert playing._process.returncode
