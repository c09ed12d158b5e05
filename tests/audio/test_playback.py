"""Test playback while sound arrives: on stand-ins for devices, in a model of time, and in a child process."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from unittest.mock import MagicMock

import miniaudio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.audio import playback
from ane.audio.playback import (
    DefaultSoundDevice,
    PlayerError,
    PlayerProcess,
    ProductionRate,
    check_sound_device,
    playing,
)
from ane.audio.writer import pcm16
from ane.system.errors import UserError
from tests.audio.recording_device import RATE, RecordingDevice, tone
from tests.refusals import assert_refused
from tests.server.server_process import wait_until


@pytest.fixture
def device(monkeypatch) -> RecordingDevice:
    device = RecordingDevice()
    monkeypatch.setattr(playback, "open_device", device)
    return device


def test_a_device_receives_all_samples_in_order_and_the_rate(device):
    pieces = [tone(0.4), tone(0.05), tone(1.0)]
    with playing(RATE) as play:
        for piece in pieces:
            play(piece)
    np.testing.assert_array_equal(device.played, pcm16(np.concatenate(pieces)))
    assert device.sample_rate == RATE
    assert not device.open


def test_a_whole_wave_is_played_to_its_end_before_the_device_is_closed(device):
    playback.play(tone(0.1), RATE)
    np.testing.assert_array_equal(device.played, pcm16(tone(0.1)))
    assert len(device.taken) / 2 >= (0.1 + playback.PERIODS * playback.PERIOD_MS / 1000) * RATE


@pytest.mark.parametrize("audio", [None, np.empty(0, np.float32)])
def test_without_sound_nothing_is_played(device, audio):
    with playing(RATE) as play:
        if audio is not None:
            play(audio)
    assert not device.started
    assert not device.open


def test_playing_begins_before_the_last_piece_arrives(device):
    with playing(RATE, at_once=True) as play:
        play(tone(0.2))
        wait_until(lambda: len(device.played) >= 0.2 * RATE)
        play(tone(0.2))


def test_the_producer_waits_while_the_queue_is_full(device, monkeypatch):
    monkeypatch.setattr(playback, "MAX_QUEUED", 1.0)
    device.paused.set()
    done = []

    def produce() -> None:
        with playing(RATE) as play:
            for _ in range(20):
                play(tone(0.5))
                done.append(True)

    producer = threading.Thread(target=produce)
    producer.start()
    wait_until(lambda: len(done) >= 2)
    time.sleep(0.2)
    assert len(done) == 2
    device.paused.clear()
    producer.join(timeout=60)
    assert len(done) == 20
    assert not device.open


@pytest.mark.parametrize("fails_after", [0, 5000])
def test_a_device_that_stops_taking_samples_ends_the_producer_with_one_line(device, monkeypatch, fails_after):
    monkeypatch.setattr(playback, "STALLED_SECONDS", 0.2)
    monkeypatch.setattr(playback, "MAX_QUEUED", 0.5)
    device.fails_after = fails_after
    made = []

    def produce() -> None:
        with playing(RATE) as play:
            for _ in range(1000):
                play(tone(0.1))
                made.append(True)
                time.sleep(0.01)

    with pytest.raises(PlayerError, match=r"^the sound device stopped before the end of the sound: .* file instead"):
        produce()
    assert len(made) < 990
    assert not device.open


def test_a_device_that_fails_after_the_last_piece_or_cannot_be_started_is_reported(device, monkeypatch):
    monkeypatch.setattr(playback, "STALLED_SECONDS", 0.2)
    device.fails_after = 100
    with pytest.raises(PlayerError), playing(RATE) as play:
        play(tone(0.1))
    assert not device.open

    monkeypatch.setattr(device, "start", MagicMock(side_effect=OSError("in use")))
    with pytest.raises(PlayerError, match=r"cannot be started \(in use\)"), playing(RATE) as play:
        play(tone(0.1))
    assert not device.open


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_of_the_producer_stops_the_sound_at_once(device, monkeypatch, error, begun):
    monkeypatch.setattr(playback, "MAX_QUEUED", 0.5 if begun else 60.0)

    def produce() -> None:
        with playing(RATE, expected=1e6) as play:
            time.sleep(0.2)  # sound is made more slowly than it plays, so that playback waits before it starts
            play(tone(0.1))
            assert not device.started
            if begun:
                play(tone(5.0))
            raise error

    with pytest.raises(error):
        produce()
    assert device.started == begun
    assert not device.open
    assert len(device.played) < 5.1 * RATE


def test_ctrl_c_while_the_rest_is_played_ends_the_program():
    # a shell's background job ignores Ctrl-C, and a child of these tests would too if they were one
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import miniaudio, numpy as np; from ane.audio import playback\n"
        "playback.open_device = lambda rate: playback.DefaultSoundDevice(rate, [miniaudio.Backend.NULL])\n"
        "try:\n"
        "    with playback.playing(24000) as play:\n"
        "        play(np.zeros(24000 * 50, np.float32)); print('queued', flush=True)\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "queued\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert out.strip() == "interrupted"
    assert process.returncode == 0


def test_samples_that_are_not_numbers_are_not_played(device):
    with pytest.raises(UserError, match="NaN"), playing(RATE) as play:
        play(np.array([0.0, np.nan], np.float32))
    assert not device.started


def test_miniaudio_plays_in_real_time(monkeypatch):
    monkeypatch.setattr(playback, "open_device", lambda rate: DefaultSoundDevice(rate, [miniaudio.Backend.NULL]))
    began = time.monotonic()
    playback.play(tone(0.5), RATE)
    assert 0.5 < time.monotonic() - began < 10


def test_a_machine_without_a_sound_device_is_told_in_one_line(monkeypatch, capfd):
    def fail(*_, **__):
        os.write(2, b"ALSA lib confmisc.c:855:(parse_card) cannot find card '0'\n")
        raise miniaudio.MiniaudioError("failed to init device", -401)

    monkeypatch.setattr(miniaudio, "PlaybackDevice", fail)
    for begin in (check_sound_device, lambda: playing(RATE).__enter__(), lambda: playback.play(tone(0.1), RATE)):
        assert_refused(r"^no sound device .*failed to init device -401\).*-o speech\.wav$", begin)
    assert capfd.readouterr().err == ""


def test_a_device_that_plays_to_nowhere_is_never_chosen(monkeypatch):
    chosen = []
    monkeypatch.setattr(miniaudio, "PlaybackDevice", lambda *_, backends, **__: chosen.extend(backends))
    DefaultSoundDevice(RATE)
    assert miniaudio.Backend.COREAUDIO in chosen
    assert miniaudio.Backend.NULL not in chosen


# the moment at which playback begins


def simulate(piece: float, rate: float, pieces: int, known: bool) -> tuple[float, float]:
    """Produce pieces at a steady rate: the time at which playing begins, and the seconds for which it then pauses."""
    made, began = ProductionRate(0.0), None
    total, played_until, paused = pieces * piece, None, 0.0
    for index in range(1, pieces + 1):
        now = index * piece / rate
        made.record(now, piece)
        if began is not None and played_until < now:
            paused, played_until = paused + now - played_until, now
        if began is None:
            left = total - made.produced if known else playback.ASSUMED_REMAINING
            if made.produced >= made.required(left) or index == pieces:
                began = played_until = now
                played_until += made.produced
        else:
            played_until += piece
    return began, paused


@given(piece=st.floats(0.05, 3), rate=st.floats(0.1, 20), pieces=st.integers(1, 60))
def test_sound_produced_at_a_steady_rate_is_played_without_a_gap(piece, rate, pieces):
    began, paused = simulate(piece, rate, pieces, known=True)
    assert paused < 1e-6
    assert began <= pieces * piece / rate


@given(piece=st.floats(0.05, 3), rate=st.floats(1.3, 20), pieces=st.integers(3, 60))
def test_sound_produced_faster_than_real_time_is_played_at_once(piece, rate, pieces):
    assert simulate(piece, rate, pieces, known=False)[0] <= piece / rate * 2


def test_the_wait_for_the_first_piece_does_not_count_as_slow_production():
    made = ProductionRate(0.0)
    made.record(8.0, 0.5)
    assert (made.rate, made.longest_wait) == (0.0625, 8.0)
    made.record(8.25, 0.5)
    assert (made.rate, made.longest_wait, made.produced) == (2.0, 0.25, 1.0)


def test_a_full_queue_begins_whatever_the_rate(device, monkeypatch):
    monkeypatch.setattr(playback, "MAX_QUEUED", 0.3)
    with playing(RATE, expected=1e6) as play:
        time.sleep(0.1)
        play(tone(0.1))
        time.sleep(0.1)
        assert not device.started
        play(tone(0.3))
        assert device.started


def test_reading_writing_and_playing_do_not_load_torch():
    code = "import sys, ane.audio, ane.audio.playback; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
    playing = PlayerProcess(RATE, 1.0, False, program=(sys.executable, "-c", CHILD, str(tmp_path)))
    for piece in np.split(tone(1.0), 5):
        playing.feed(piece)
    wait_until((tmp_path / "times").exists)
    started = time.time()
    ctypes.PyDLL(None).usleep(500_000)  # holds the GIL, as a prediction of Core ML does
    ended = time.time()
    playing.finish()
    playing.close()
    times = [float(line) for line in (tmp_path / "times").read_text().split()]
    assert sum(started < moment < ended for moment in times) > 5
    taken = np.frombuffer((tmp_path / "taken").read_bytes(), "<i2")
    np.testing.assert_array_equal(np.trim_zeros(taken, "b"), np.trim_zeros(pcm16(tone(1.0)), "b"))


def test_an_engine_that_holds_this_process_is_heard_from_a_child_which_opens_the_device(device, monkeypatch):
    started = []

    class Process(PlayerProcess):
        def __init__(self, *arguments):
            started.append(arguments)
            super().__init__(*arguments, program=(sys.executable, "-c", "import sys; sys.stdin.buffer.read()"))

    monkeypatch.setattr(playback, "PlayerProcess", Process)
    checked = playback.check_sound_device()
    with playback.playing(RATE, 2.0, at_once=True, device=checked, blocked=True) as play:
        play(tone(0.1))
    with playback.playing(RATE, None, name="Desk", blocked=True) as play:
        play(tone(0.1))
    assert started == [(RATE, 2.0, True), (RATE, None, False, "Desk")]
    assert not device.open
    assert device.opened == 1


@pytest.mark.parametrize(("rate", "opened"), [(24000, 1), (RATE, 2)])
def test_the_device_that_was_checked_plays_unless_its_rate_is_another(device, rate, opened):
    playback.play(tone(0.1), rate, playback.check_sound_device(24000))
    assert (device.opened, device.open, device.sample_rate) == (opened, False, rate)
    assert len(device.played)


def test_a_failure_of_the_device_is_one_line_in_this_process():
    command = (sys.executable, "-c", "print('the sound device stopped'); raise SystemExit(1)")
    playing = PlayerProcess(RATE, None, False, program=command)
    playing._process.wait()
    with pytest.raises(PlayerError, match=r"^the sound device stopped$"):
        playing.feed(tone(10.0))
    playing.close()


def test_closing_stops_the_child_at_once():
    playing = PlayerProcess(RATE, None, False, program=(sys.executable, "-c", "import time; time.sleep(60)"))
    playing.close()
    assert playing._process.returncode
