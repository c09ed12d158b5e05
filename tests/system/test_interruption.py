"""Ctrl-C and SIGTERM end a command whatever code they meet on their way, and leave nothing behind."""

import argparse
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress

import numpy as np
import pytest

from ane.audio import writer
from ane.cli import main
from ane.commands import voices
from ane.system import files
from ane.system.errors import UserError
from ane.system.interruption import interruptions, uninterrupted

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
@pytest.mark.parametrize(("becomes", "said"), [
    (None, ""), (SystemExit(1), ""), (ValueError("no [/] shape"), " (ValueError: no [/] shape)"),
    (UserError("no room"), " (UserError: no room)"),
    (BrokenPipeError(32, "Broken pipe"), " (BrokenPipeError: [Errno 32] Broken pipe)")], ids=repr)
def test_a_command_that_was_stopped_says_so_whatever_became_of_it_on_its_way(monkeypatch, capsys, stop, becomes, said):
    """safetensors makes a ValueError of what is raised in it."""
    def work():
        try:
            signal.raise_signal(stop)
        except KeyboardInterrupt:
            raise becomes or KeyboardInterrupt from None

    command(monkeypatch, work)
    assert main(["voices"]) == 128 + stop
    assert capsys.readouterr().err == f"ane: interrupted{said}; no file was left half-written\n"


def test_the_first_of_two_stops_is_what_ends_a_command(monkeypatch):
    def work():
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)

    command(monkeypatch, work)
    assert main(["voices"]) == 128 + signal.SIGTERM


def program(work: str) -> str:
    """`ane voices` made to do something, as a program of its own; its output has a buffer whatever is set here."""
    return ("import signal, sys; from ane.cli import main; from ane.commands import voices\n"
            "from rich.console import Console\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler); sys.stdout = open(1, 'w')\n"
            f"def work(_): {work}\n"
            "voices.register = lambda commands: commands.add_parser('voices').set_defaults(handler=work)\n"
            "sys.exit(main(['voices']))\n")


def run(work: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", program(work)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            **{"stderr": subprocess.PIPE, "text": True, **options})


def test_a_second_stop_while_the_first_is_told_ends_the_program_without_more_words():
    telling = "Console.print = lambda *_: signal.raise_signal(signal.SIGTERM)"
    with run(f"{telling}; signal.raise_signal(signal.SIGINT)") as one:
        assert one.stderr.read() == ""
    assert one.returncode == -signal.SIGTERM


def test_a_stop_is_told_as_what_it_was_though_nobody_reads_of_it():
    with open(os.devnull) as unwritable, run("signal.raise_signal(signal.SIGTERM)", stderr=unwritable) as one:
        pass
    assert one.returncode == 143


def test_a_stop_on_its_way_through_exec_is_what_it_was(tmp_path):
    """`python -m` would end as of SIGINT after a KeyboardInterrupt that passed there, whatever the status."""
    (tmp_path / "stopped.py").write_text(program("exec('signal.raise_signal(signal.SIGTERM)')"))
    ended = subprocess.run([sys.executable, "-m", "stopped"], cwd=tmp_path, stderr=subprocess.PIPE, check=False,
                           env=os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))})
    assert ended.returncode == 143


def test_a_reader_who_was_stopped_as_well_is_not_told_of():
    """Ctrl-C ends both sides of a pipe."""
    with run("print('a voice'); sys.stdin.read(); signal.raise_signal(signal.SIGINT)") as one:
        one.stdout.close()
        one.stdin.close()
        assert one.stderr.read() == "ane: interrupted; no file was left half-written\n"
    assert one.returncode == 130


def test_an_error_without_a_stop_is_not_called_one(monkeypatch):
    def work():
        raise ValueError("a bug")

    command(monkeypatch, work)
    with pytest.raises(ValueError, match="a bug"):
        main(["voices"])


@pytest.mark.parametrize("stop", STOPS)
def test_a_command_that_is_not_to_hear_a_signal_goes_on(monkeypatch, stop):
    """A job in the background ignores SIGINT."""
    earlier = signal.signal(stop, signal.SIG_IGN)
    command(monkeypatch, lambda: signal.raise_signal(stop) or 0)
    status = main(["voices"])
    signal.signal(stop, earlier)
    assert status == 0


def test_a_handler_that_is_not_of_python_is_left_alone(monkeypatch):
    """A program in C that has Python in it: its handler could not be set again."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.delattr(signal, "signal")
    command(monkeypatch, lambda: 0)
    assert main(["voices"]) == 0


@pytest.mark.parametrize("ends", [nullcontext(), suppress(ValueError)], ids=["well", "badly"])
def test_signals_do_after_a_command_what_they_did_before(monkeypatch, ends):
    before = [signal.getsignal(stop) for stop in STOPS]
    command(monkeypatch, lambda: 0 if isinstance(ends, nullcontext) else int("a bug"))
    with ends:
        main(["voices"])
    assert [signal.getsignal(stop) for stop in STOPS] == before


def test_what_is_uninterrupted_ends_first():
    reached = []

    def work(outer, inner):
        with interruptions(), uninterrupted():
            with uninterrupted():
                signal.raise_signal(signal.SIGTERM)
                reached.append(inner)
            reached.append(outer)

    with pytest.raises(KeyboardInterrupt):
        work("outer", "inner")
    assert reached == ["inner", "outer"]


def test_a_stop_within_what_fails_by_itself_is_a_stop():
    def work():
        with interruptions(), uninterrupted():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("full")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)


def test_a_stop_that_was_swallowed_is_heard_before_a_file_is_left(tmp_path):
    """coremltools tries its optional imports within a bare except."""
    def work():
        with interruptions(), files.replacing(tmp_path / "file") as target:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            target.write_text("whole")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(tmp_path.iterdir()) == []


def test_threads_neither_hear_of_stops_nor_hold_them_off():
    held = []

    def work():
        with interruptions(), uninterrupted():
            held.append(stops.held)

    with interruptions() as stops:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert held == [0]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", [1, 2, 3, 6, "last"])
@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg"])
def test_a_stop_within_a_write_of_sound_is_not_lost(tmp_path, monkeypatch, suffix, call):
    """libsndfile writes by a callback, in which what is raised is printed and forgotten."""
    calls, write = [], writer._DiskFile.write

    def count(disk, data):
        calls.append(len(data))
        if len(calls) == call:
            signal.raise_signal(signal.SIGTERM)
        return write(disk, data)

    def speak():
        with interruptions():
            writer.write(tmp_path / f"speech.{suffix}", noise, 24000)

    monkeypatch.setattr(writer._DiskFile, "write", count)
    noise = np.random.default_rng(0).uniform(-1, 1, 200_000).astype(np.float32)
    if call == "last":
        speak()
        (tmp_path / f"speech.{suffix}").unlink()
        call, calls = len(calls), []
    with pytest.raises(KeyboardInterrupt):
        speak()
    assert len(calls) >= call
    assert list(tmp_path.iterdir()) == []


def test_a_second_stop_does_not_keep_what_the_first_would_remove(tmp_path, monkeypatch):
    remove = files.shutil.rmtree

    def stopped(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        remove(*args, **kwargs)

    def work():
        with interruptions(), files.replacing(tmp_path / "file"):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(files.shutil, "rmtree", stopped)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(tmp_path.iterdir()) == []


def test_stops_within_an_exchange_of_folders_leave_the_new_one_whole(tmp_path, monkeypatch):
    rename = os.replace

    def stopped(*args):
        signal.raise_signal(signal.SIGINT)
        rename(*args)
        signal.raise_signal(signal.SIGINT)

    def renew(content):
        with interruptions(), files.replacing(tmp_path / "bundle", directory=True) as target:
            (target / "weights").write_text(content)

    renew("old")
    monkeypatch.setattr(files.os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        renew("new")
    assert (tmp_path / "bundle" / "weights").read_text() == "new"
    assert list(tmp_path.iterdir()) == [tmp_path / "bundle"]
