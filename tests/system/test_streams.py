"""Test standard streams that are closed, full or without a reader."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from ane.system.streams import TolerantStream, silent_c_libraries, tolerant_streams


@pytest.fixture
def broken():
    """A stream whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        yield stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


def test_a_stream_that_cannot_be_written_takes_what_follows_all_the_same(broken):
    stream, long = TolerantStream(broken), "long " * 10_000
    assert stream.write(long) == len(long)
    stream.flush()
    assert stream.write("more") == 4
    stream.flush()
    assert stream.encoding == "utf-8"


def test_standard_error_never_fails_within_the_block_and_one_that_was_replaced_is_left_alone(monkeypatch, broken):
    monkeypatch.setattr(sys, "stderr", broken)
    with tolerant_streams():
        assert sys.stderr is broken
        broken.flush()
    monkeypatch.setattr(sys, "__stderr__", broken)
    with tolerant_streams():
        sys.stderr.write("lost")
    assert sys.stderr is broken


def test_what_c_libraries_print_is_hidden_within_the_block_alone(capfd):
    with silent_c_libraries():
        os.write(2, b"hidden")
    os.write(2, b"shown")
    assert capfd.readouterr().err == "shown"


def test_standard_error_is_as_before_although_threads_and_errors_leave_blocks_in_any_order(capfd):
    def block(number: int) -> None:
        with suppress(ValueError), silent_c_libraries():
            time.sleep(0.001 * (number % 3))
            raise ValueError

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(block, range(64)))
    os.write(2, b"at last")
    assert capfd.readouterr().err == "at last"


def test_streams_that_were_closed_at_the_start_are_known_and_take_no_other_files_descriptor(tmp_path):
    """Names that are no text can be printed, and reading is an error instead of another file's content."""
    code = """
import json, sys
from ane.system.streams import is_closed, tolerant_streams
with tolerant_streams():
    opened = open(sys.argv[1], "w")
    closed = [is_closed(stream) for stream in (sys.stdin, sys.stdout, sys.stderr, None)]
    print("\\udc80", file=sys.stderr)
    try:
        sys.stdin.read()
    except OSError as error:
        json.dump([opened.fileno() > 2, closed, error.strerror, sys.stdin.errors, sys.stdout.errors], opened)
"""
    command = 'exec "$0" -c "$1" "$2" <&- 2>&-'
    subprocess.run(["sh", "-c", command, sys.executable, code, tmp_path / "found"], timeout=60, check=True)
    assert json.loads((tmp_path / "found").read_text()) == [
        True,
        [True, False, True, True],
        "Bad file descriptor",
        "strict",
        "backslashreplace",
    ]
