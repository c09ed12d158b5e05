"""Test that Ctrl-C and SIGTERM end a command in any code, and leave no temporary files."""

import argparse
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

from ane.__main__ import main as command_line
from ane.audio import write, writer
from ane.cli import main
from ane.commands import voices
from ane.system import files
from ane.system.errors import UserError
from ane.system.interruption import Stopped, check_interrupted, interruptions, uninterrupted

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
STOPS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def foreground():
    """Handle SIGINT as in the foreground: a job in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def command(monkeypatch, work):
    """Make `ane voices` call ``work``."""

    def register(commands: argparse._SubParsersAction) -> None:
        commands.add_parser("voices").set_defaults(handler=lambda args: work())

    monkeypatch.setattr(voices, "register", register)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(
    "raised",
    [None, SystemExit(1), ValueError("no shape"), UserError("is damaged"), BrokenPipeError(32, "Broken pipe")],
    ids=repr,
)
def test_a_stopped_command_reports_only_that_whatever_the_exception_became(monkeypatch, capsys, stop, raised):
    """safetensors turns an exception of its caller into a ValueError, and our code that into "the file is damaged"."""

    def work():
        try:
            signal.raise_signal(stop)
        except KeyboardInterrupt:
            raise raised or KeyboardInterrupt from None

    command(monkeypatch, work)
    assert main(["voices"]) == 128 + stop
    assert capsys.readouterr().err == "ane: interrupted; no file was left half-written\n"


def test_the_first_of_two_signals_decides_the_status(monkeypatch):
    def work():
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)

    command(monkeypatch, work)
    assert main(["voices"]) == 128 + signal.SIGTERM


def test_a_signal_that_ended_a_block_stops_nothing_after_it():
    with suppress(Stopped), interruptions():
        signal.raise_signal(signal.SIGTERM)
    check_interrupted()
    with interruptions():
        check_interrupted()


def program(work: str) -> str:
    """A program in which `ane voices` runs ``work``. Its output is buffered whatever the environment says."""
    return (
        "import signal, sys; from ane.cli import main; from ane.commands import voices\n"
        "from rich.console import Console\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler); sys.stdout = open(1, 'w')\n"
        f"def work(_): {work}\n"
        "voices.register = lambda commands: commands.add_parser('voices').set_defaults(handler=work)\n"
        "sys.exit(main(['voices']))\n"
    )


def run(work: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program(work)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **{"stderr": subprocess.PIPE, "text": True, **options},
    )


def test_a_second_signal_while_the_first_is_reported_ends_the_program_silently():
    report = "Console.print = lambda *_: signal.raise_signal(signal.SIGTERM)"
    with run(f"{report}; signal.raise_signal(signal.SIGINT)") as one:
        assert one.stderr.read() == ""
    assert one.returncode == -signal.SIGTERM


def test_the_status_is_that_of_the_signal_after_exec_and_when_the_message_cannot_be_written(tmp_path):
    """`python -m` ends as SIGINT would after a KeyboardInterrupt that passed through exec, whatever the status."""
    (tmp_path / "stopped.py").write_text(program("exec('signal.raise_signal(signal.SIGTERM)')"))
    with open(os.devnull) as unwritable:
        ended = subprocess.run(
            [sys.executable, "-m", "stopped"],
            cwd=tmp_path,
            stderr=unwritable,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
        )
    assert ended.returncode == 143


def test_a_reader_of_the_output_that_was_stopped_too_is_not_mentioned():
    """Ctrl-C ends both sides of a pipe."""
    with run("print('a voice'); sys.stdin.read(); signal.raise_signal(signal.SIGINT)") as one:
        one.stdout.close()
        one.stdin.close()
        assert one.stderr.read() == "ane: interrupted; no file was left half-written\n"
    assert one.returncode == 130


@pytest.mark.parametrize("stop", STOPS)
def test_an_ignored_signal_does_not_stop_a_command(monkeypatch, stop):
    """A job in the background ignores SIGINT."""
    earlier = signal.signal(stop, signal.SIG_IGN)
    command(monkeypatch, lambda: signal.raise_signal(stop) or 0)
    status = main(["voices"])
    signal.signal(stop, earlier)
    assert status == 0


def test_a_handler_set_by_c_code_is_left_alone(monkeypatch):
    """A C program that embeds Python: its handler could not be restored."""
    command(monkeypatch, lambda: 0)
    # restores the signals before pytest cancels the test's time limit, which uses one
    with monkeypatch.context() as signals:
        signals.setattr(signal, "getsignal", lambda number: None)
        signals.delattr(signal, "signal")
        assert main(["voices"]) == 0


@pytest.mark.parametrize("fails", [False, True])
def test_signal_handlers_are_restored_after_a_command_and_an_error_is_not_called_an_interruption(monkeypatch, fails):
    before = [signal.getsignal(stop) for stop in STOPS]
    command(monkeypatch, lambda: int("a bug") if fails else 0)
    with pytest.raises(ValueError, match="a bug") if fails else nullcontext():
        main(["voices"])
    assert [signal.getsignal(stop) for stop in STOPS] == before


@pytest.mark.parametrize("fault", [None, ValueError("full")])
def test_an_uninterrupted_block_ends_before_the_stop_also_if_it_fails(fault):
    reached = []

    def work():
        with interruptions(), uninterrupted():
            with uninterrupted():
                signal.raise_signal(signal.SIGTERM)
                reached.append("inner")
            reached.append("outer")
            if fault:
                raise fault

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert reached == ["inner", "outer"]
    assert caught.value.__context__ is fault


def test_a_stop_that_was_swallowed_takes_effect_before_a_file_is_replaced(tmp_path):
    """coremltools tries its optional imports within a bare except."""

    def work():
        with interruptions(), files.replacing(tmp_path / "file") as target:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            target.write_text("whole")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(tmp_path.iterdir()) == []


def test_threads_neither_receive_nor_defer_signals():
    deferrals = []

    def work():
        with interruptions(), uninterrupted():
            deferrals.append(stops.deferrals)

    with interruptions() as stops:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert deferrals == [0]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", [1, 3, "last"])
@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg"])
def test_a_stop_while_sound_is_written_is_not_lost(tmp_path, monkeypatch, suffix, call):
    """libsndfile writes through a callback, whose exceptions are printed and discarded."""
    calls, write_data = [], writer._DiskFile.write

    def count(disk, data):
        calls.append(len(data))
        if len(calls) == call:
            signal.raise_signal(signal.SIGTERM)
        return write_data(disk, data)

    def speak():
        with interruptions():
            write(tmp_path / f"speech.{suffix}", noise, 24000)

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


def test_a_second_signal_does_not_prevent_the_cleanup_after_the_first(tmp_path, monkeypatch):
    remove = files.shutil.rmtree

    def stopped(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        remove(*args, **kwargs)

    monkeypatch.setattr(files.shutil, "rmtree", stopped)
    with pytest.raises(KeyboardInterrupt), interruptions(), files.replacing(tmp_path / "file"):
        signal.raise_signal(signal.SIGINT)
    assert list(tmp_path.iterdir()) == []


def test_signals_during_an_exchange_of_folders_leave_the_new_one_complete(tmp_path, monkeypatch):
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


@pytest.mark.parametrize("stop", STOPS)
def test_a_signal_while_the_command_line_is_imported_is_one_line(monkeypatch, capsys, stop):
    """Also where a bare ``except`` around an import swallows the exception."""

    class Finder:
        @staticmethod
        def find_spec(name, *_):
            if name == "ane.cli":
                with suppress(BaseException):
                    signal.raise_signal(stop)

    monkeypatch.delitem(sys.modules, "ane.cli")
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert command_line() == 128 + stop
    assert capsys.readouterr().err == "ane: interrupted\n"


def test_the_console_script_is_what_catches_signals_from_the_start():
    [script] = [line for line in PYPROJECT.read_text().splitlines() if line.startswith("ane = ")]
    assert script == 'ane = "ane.__main__:main"'
