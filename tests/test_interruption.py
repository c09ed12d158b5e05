"""Ctrl-C and SIGTERM end a command whatever code they meet on their way, and leave nothing behind."""

import argparse
import signal
import threading

import numpy as np
import pytest

from ane import audio, files
from ane.cli import main
from ane.commands import voices
from ane.interruption import uninterrupted

STOPS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def listening():
    """SIGINT as in the foreground: a job in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def command(monkeypatch, does):
    """Make `ane voices` do something."""
    def register(commands: argparse._SubParsersAction) -> None:
        commands.add_parser("voices").set_defaults(handler=lambda args: does())

    monkeypatch.setattr(voices, "register", register)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("becomes", [None, ValueError("no shape"), OSError(5, "I/O error")], ids=repr)
def test_a_command_that_was_stopped_says_so_whatever_became_of_it_on_its_way(monkeypatch, capsys, stop, becomes):
    """safetensors makes a ValueError of what is raised in it."""
    def work():
        try:
            signal.raise_signal(stop)
        except KeyboardInterrupt:
            raise becomes or KeyboardInterrupt from None

    command(monkeypatch, work)
    assert main(["voices"]) == 128 + stop
    assert capsys.readouterr().err == "ane: interrupted; no file was left half-written\n"


def test_an_error_without_a_stop_is_not_called_one(monkeypatch):
    def work():
        raise ValueError("a bug")

    command(monkeypatch, work)
    with pytest.raises(ValueError, match="a bug"):
        main(["voices"])


def test_a_job_in_the_background_goes_on_after_ctrl_c(monkeypatch):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command(monkeypatch, lambda: signal.raise_signal(signal.SIGINT) or 0)
    assert main(["voices"]) == 0


def test_signals_do_after_a_command_what_they_did_before(monkeypatch):
    before = [signal.getsignal(stop) for stop in STOPS]
    command(monkeypatch, lambda: 0)
    main(["voices"])
    assert [signal.getsignal(stop) for stop in STOPS] == before


def test_what_is_uninterrupted_ends_first():
    reached = []

    def work():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_threads_are_not_interrupted_anyway():
    seen = []

    def work():
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize("call", [1, 2, 3, 6])
@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg"])
def test_a_stop_within_a_write_of_sound_is_not_lost(tmp_path, monkeypatch, suffix, call):
    """libsndfile writes by a callback, in which what is raised is printed and forgotten."""
    calls = []

    def write(disk, data):
        calls.append(len(data))
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return disk.file.write(data)

    monkeypatch.setattr(audio._Disk, "write", write)
    noise = np.random.default_rng(0).uniform(-1, 1, 200_000).astype(np.float32)
    with pytest.raises(KeyboardInterrupt):
        audio.write(tmp_path / f"speech.{suffix}", noise, 24000)
    assert len(calls) >= call
    assert list(tmp_path.iterdir()) == []


def test_a_stop_as_the_place_is_made_leaves_nothing(tmp_path, monkeypatch):
    made = files.tempfile.mkdtemp

    def stopped(*args, **kwargs):
        folder = made(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)
        return folder

    monkeypatch.setattr(files.tempfile, "mkdtemp", stopped)
    with pytest.raises(KeyboardInterrupt), files.replacing(tmp_path / "file") as target:
        target.write_text("whole")
    assert list(tmp_path.iterdir()) == []


def test_a_second_stop_does_not_keep_what_the_first_would_remove(tmp_path, monkeypatch):
    remove = files.shutil.rmtree

    def stopped(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        remove(*args, **kwargs)

    monkeypatch.setattr(files.shutil, "rmtree", stopped)
    with pytest.raises(KeyboardInterrupt), files.replacing(tmp_path / "file"):
        signal.raise_signal(signal.SIGINT)
    assert list(tmp_path.iterdir()) == []
