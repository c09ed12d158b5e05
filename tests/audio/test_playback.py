"""Playing while sound comes: through real processes that stand in for a player, and in a model of time."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.audio.files import pcm16
from ane.audio.playback import PLAYERS, Buffering, Production, check_player, playing
from ane.system.errors import UserError

RATE = 24000
AT_ONCE = Buffering(ahead=0.0)


def tone(seconds: float) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * 220 * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


@pytest.fixture
def player(tmp_path, monkeypatch) -> Callable[[str, str], None]:
    """``player(name, script)``: a program on an otherwise empty PATH that runs some Python; it notes its number."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(name: str, script: str) -> None:
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport os, pathlib, sys, time\n"
                        f"here = pathlib.Path({str(tmp_path)!r})\n"
                        f"(here / 'number').write_text(str(os.getpid()))\n{script}\n")
        path.chmod(0o755)

    return install


LISTEN = """
(here / 'arguments').write_text(' '.join(sys.argv[1:]))
(here / 'heard').write_bytes(sys.stdin.buffer.read())"""


def left_behind(folder: Path) -> list[str]:
    """Threads of a player, and its process if it lives."""
    found = [thread.name for thread in threading.enumerate() if thread.name == "playing"]
    number = folder / "number"
    if number.exists() and number.read_text():
        try:
            os.kill(int(number.read_text()), 0)
            found.append("process")
        except ProcessLookupError:
            pass
    return found


@pytest.mark.parametrize("name", PLAYERS)
def test_a_player_is_given_all_samples_in_their_order_and_the_rate(tmp_path, player, name):
    player(name, LISTEN)
    pieces = [tone(0.4), tone(0.05), tone(1.0)]
    with playing(RATE) as play:
        for piece in pieces:
            play(piece)
    assert (tmp_path / "heard").read_bytes() == pcm16(np.concatenate(pieces)).tobytes()
    assert "24000" in (tmp_path / "arguments").read_text()
    assert left_behind(tmp_path) == []


def test_the_sound_is_heard_before_the_last_of_it_is_there(tmp_path, player):
    player("aplay", "(here / 'first').write_bytes(sys.stdin.buffer.read(100)); sys.stdin.buffer.read()")
    with playing(RATE, buffering=AT_ONCE) as play:
        play(tone(0.2))
        until(lambda: (tmp_path / "first").exists())
        play(tone(0.2))


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_who_makes_the_sound_waits_for_who_plays_it(tmp_path, player):
    """The player takes nothing until it is told to: so much goes into the queue and the pipe, and no more."""
    player("aplay", "while not (here / 'go').exists(): time.sleep(0.01)\nsys.stdin.buffer.read()")
    done = []

    def make() -> None:
        with playing(RATE, buffering=Buffering(ahead=1.0)) as play:
            for _ in range(100):
                play(tone(0.5))
                done.append(True)

    maker = threading.Thread(target=make)
    maker.start()
    until(lambda: len(done) >= 2)
    time.sleep(0.3)
    assert len(done) < 12           # 1 s in the queue, 1.4 s in a pipe of 64 KiB, one piece that waits
    (tmp_path / "go").touch()
    maker.join(timeout=20)
    assert len(done) == 100
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("script", [
    "sys.stdin.buffer.read(5000); sys.exit('no such audio device')", "sys.exit('no such audio device')"])
def test_a_player_that_dies_ends_the_making_with_one_line(tmp_path, player, script):
    player("aplay", script)
    made = []

    def make() -> None:
        with playing(RATE, buffering=Buffering(ahead=0.5)) as play:
            for _ in range(1000):
                play(tone(0.1))
                made.append(True)
                time.sleep(0.01)

    with pytest.raises(UserError, match=r"^aplay stopped before .*\(no such audio device\)"):
        make()
    assert len(made) < 990
    assert left_behind(tmp_path) == []


def test_a_player_that_fails_at_the_very_end_is_told(tmp_path, player):
    player("play", "sys.stdin.buffer.read(); sys.exit('the device is gone')")
    with pytest.raises(UserError, match="the device is gone"), playing(RATE) as play:
        play(tone(0.1))
    assert left_behind(tmp_path) == []


def interrupted(buffering: Buffering, seconds: float, wanted: Path) -> None:
    """Hand over so much sound, and press Ctrl-C when the player has written a file."""
    def make() -> None:
        with playing(RATE, expected=1e6, buffering=buffering) as play:
            play(tone(seconds))
            until(lambda: wanted.exists() and wanted.read_text())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make()


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_an_error_while_sound_is_made_silences_the_player_at_once(tmp_path, player, reads, begun):
    player("aplay", "sys.stdin.buffer.read(); time.sleep(60)" if reads else "time.sleep(60)")
    started = time.monotonic()
    interrupted(Buffering(5.0 if begun else 60.0), 5.5, tmp_path / "number")
    assert time.monotonic() - started < 30
    assert left_behind(tmp_path) == []


def test_a_player_in_a_shell_is_silenced_with_all_that_it_started(tmp_path, player):
    player("aplay", "import subprocess\nsubprocess.run([sys.executable, '-c', \"import os, pathlib, time; "
                    "pathlib.Path(%r).write_text(str(os.getpid())); time.sleep(60)\" % str(here / 'child')])")
    interrupted(AT_ONCE, 0.1, tmp_path / "child")
    (tmp_path / "number").write_text((tmp_path / "child").read_text())
    until(lambda: left_behind(tmp_path) == [])      # whoever inherits it takes note of its end


def test_ctrl_c_while_the_rest_is_played_ends_both(tmp_path, player):
    player("aplay", "sys.stdin.buffer.read(); (here / 'all').touch(); time.sleep(60)")
    # a shell's background jobs ignore Ctrl-C, and so would this process if the tests were one
    code = ("import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "import numpy as np; from ane.audio.playback import playing\n"
            "try:\n"
            "    with playing(24000) as play: play(np.zeros(2400, np.float32))\n"
            "except KeyboardInterrupt: print('interrupted')\n")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "all").exists())
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert out.strip() == "interrupted"
    assert left_behind(tmp_path) == []


def test_sound_that_is_no_number_is_not_played(tmp_path, player):
    player("aplay", LISTEN)
    with pytest.raises(UserError, match="NaN"), playing(RATE) as play:
        play(np.array([0.0, np.nan], np.float32))
    assert left_behind(tmp_path) == []


DEVICE = """
class PortAudioError(Exception): pass
class RawOutputStream:
    heard = []
    def __init__(self, samplerate, channels, dtype): self.heard.append((samplerate, channels, dtype))
    def start(self): self.heard.append("start")
    def write(self, data):
        if {fails}: raise PortAudioError("device unplugged")
        self.heard.append(bytes(data))
    def stop(self, ignore_errors): self.heard.append("stop")
    def abort(self, ignore_errors): pass
    def close(self, ignore_errors): self.heard.append("close")
"""


@pytest.fixture
def sounddevice(tmp_path, monkeypatch) -> Callable[[str], None]:
    """``sounddevice(text)``: a module of that name with this text, on a machine without players."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)

    def install(text: str) -> None:
        (tmp_path / "sounddevice.py").write_text(text)

    yield install
    sys.modules.pop("sounddevice", None)


def test_without_a_player_the_library_plays(sounddevice):
    sounddevice(DEVICE.format(fails=False))
    with playing(RATE) as play:
        play(tone(0.3))
    first, *others = sys.modules["sounddevice"].RawOutputStream.heard
    assert first == (24000, 1, "int16")
    assert (others[0], others[-2:]) == ("start", ["stop", "close"])
    assert b"".join(others[1:-2]) == pcm16(tone(0.3)).tobytes()


def test_a_device_that_fails_is_told_in_one_line(sounddevice):
    sounddevice(DEVICE.format(fails=True))
    with pytest.raises(UserError, match=r"sounddevice stopped .*device unplugged"), playing(RATE) as play:
        play(tone(0.3))


def test_a_machine_that_cannot_play_says_what_to_install_before_the_work(sounddevice):
    sounddevice("raise OSError('PortAudio library not found')")
    for begin in (check_player, lambda: playing(RATE).__enter__()):
        with pytest.raises(UserError, match=r"install .*tortoise-ane\[play\]"):
            begin()


# --- when to begin


def gaps(piece: float, rate: float, pieces: int, known: bool) -> tuple[float, float]:
    """Pieces of sound made at a steady rate: when playing began, in seconds, and how long it then stood still."""
    buffering, made, began = Buffering(ahead=1e9, caution=1.001), Production(0.0), None
    total, heard_until, still = pieces * piece, None, 0.0
    for index in range(1, pieces + 1):
        now = index * piece / rate
        made.note(now, piece)
        if began is not None and heard_until < now:
            still, heard_until = still + now - heard_until, now
        if began is None:
            left = total - made.made if known else buffering.unknown
            if made.made >= buffering.needed(made.rate, made.longest, left) or index == pieces:
                began = heard_until = now
                heard_until += made.made
        else:
            heard_until += piece
    return began, still


@given(piece=st.floats(0.05, 3), rate=st.floats(0.1, 20), pieces=st.integers(1, 60))
def test_sound_that_is_made_at_a_steady_rate_is_played_without_a_gap(piece, rate, pieces):
    began, still = gaps(piece, rate, pieces, known=True)
    assert still < 1e-6
    assert began <= pieces * piece / rate


@given(piece=st.floats(0.05, 3), rate=st.floats(1.3, 20), pieces=st.integers(3, 60))
def test_sound_that_is_made_faster_than_it_is_heard_is_not_held_back(piece, rate, pieces):
    assert gaps(piece, rate, pieces, known=False)[0] <= piece / rate * 2


@given(rate=st.floats(0.1, 0.9), left=st.floats(1, 100), longest=st.floats(0.01, 5))
def test_the_slower_the_making_the_more_is_held_back(rate, left, longest):
    needed = Buffering().needed
    assert needed(rate, longest, left) > needed(rate + 0.1, longest, left) >= needed(2.0, longest, left)
    assert needed(rate, longest, left) > needed(rate, longest / 2, left)


def test_what_came_before_the_first_piece_does_not_count_as_slow_making():
    made = Production(0.0)
    made.note(8.0, 0.5)
    assert (made.rate, made.longest) == (0.0625, 8.0)
    made.note(8.25, 0.5)
    assert (made.rate, made.longest, made.made) == (2.0, 0.25, 1.0)


def test_a_full_queue_begins_whatever_the_rate(tmp_path, player):
    player("aplay", "sys.stdin.buffer.read(1); (here / 'begun').touch(); sys.stdin.buffer.read()")
    with playing(RATE, expected=1e6, buffering=Buffering(ahead=0.3)) as play:
        time.sleep(0.2)
        play(tone(0.1))
        time.sleep(0.2)
        assert not (tmp_path / "begun").exists()
        play(tone(0.3))
        until(lambda: (tmp_path / "begun").exists())


def test_playing_does_not_load_torch():
    code = "import sys, ane.audio.playback; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
