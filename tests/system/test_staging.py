"""Test that folders are written whole or not at all, and that records from outside are checked."""

import fcntl
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from unittest.mock import MagicMock

import pytest
from pydantic import Field

from ane.system import staging
from ane.system.checked import read_record
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.staging import leftovers
from tests.refusals import assert_refused

WRITE = """
import os, signal, sys
from ane.system import files
with files.replacing(files.Path({path!r}), directory={directory}) as target:
    (target / "weights" if {directory} else target).write_text("half")
    {then}
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def write_in_process(path: Path, then: str, directory: bool = False) -> subprocess.Popen:
    code = WRITE.format(path=str(path), directory=directory, then=then)
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill_in_process(path: Path, directory: bool = False, then: str = KILL) -> None:
    with write_in_process(path, then, directory) as process:
        pass
    assert process.returncode == -9


@pytest.mark.parametrize("directory", [False, True])
def test_the_next_write_removes_what_a_killed_one_left(tmp_path, directory):
    path = tmp_path / "bundle"
    kill_in_process(path, directory)
    [left] = tmp_path.iterdir()
    assert leftovers(tmp_path) == [left]
    with replacing(path) as target:
        target.write_text("whole")
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_are_found_in_folders_within_folders_and_those_of_other_files_stay(tmp_path):
    folder = tmp_path / "a" / "b"
    kill_in_process(folder / "file")
    [left] = leftovers(tmp_path)
    assert left.parent == folder
    with replacing(folder / "other") as target:
        target.write_text("whole")
    assert leftovers(tmp_path) == [left]
    assert leftovers(tmp_path / "missing") == []


def test_what_a_live_process_writes_is_neither_listed_nor_removed(tmp_path):
    path = tmp_path / "file"
    with write_in_process(path, "print('written', flush=True); sys.stdin.read()") as process:
        assert process.stdout.readline() == "written\n"
        assert leftovers(tmp_path) == []
        with replacing(path) as target:
            assert len([entry for entry in tmp_path.iterdir() if entry.name.endswith(".partial")]) == 2
            target.write_text("ours")
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert path.read_text() == "half"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_without_a_lock_is_a_leftover_after_a_day_and_similar_names_are_none(tmp_path):
    young, old, *others = (
        tmp_path / name
        for name in (
            f".file.{'a' * 16}.partial",
            f".file.{'b' * 16}.partial",
            ".file.partial",
            f"file.{'a' * 16}.partial",
            f".file.{'a' * 16}.partial.txt",
        )
    )
    for folder in (young, old, *others):
        folder.mkdir()
    for folder in (old, *others):
        os.utime(folder, (time.time() - 25 * 3600,) * 2)
    assert leftovers(tmp_path) == [old]


def test_the_only_copy_of_a_directory_is_no_leftover_and_comes_back_with_the_next_write(tmp_path):
    path = tmp_path / "bundle"
    path.mkdir()
    (path / "weights").write_text("old")
    # the process was killed after it moved the old directory away
    kill_in_process(
        path, directory=True, then=f"rename = os.replace; files.os.replace = lambda *names: (rename(*names), {KILL})"
    )
    assert not path.exists()
    assert leftovers(tmp_path) == []
    with pytest.raises(ValueError, match="half"), replacing(path, directory=True):
        raise ValueError("half")
    assert (path / "weights").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_a_leftover_where_there_are_no_locks_or_in_a_folder_of_another_user(tmp_path, monkeypatch):
    kill_in_process(tmp_path / "file")
    with monkeypatch.context() as changed:
        changed.setattr(staging.os, "open", MagicMock(side_effect=PermissionError(13, "Permission denied")))
        assert leftovers(tmp_path) == []
    monkeypatch.setattr(fcntl, "flock", MagicMock(side_effect=OSError(37, "No locks available")))
    assert leftovers(tmp_path) == []
    with replacing(tmp_path / "other") as target:
        target.write_text("whole")
    assert (tmp_path / "other").read_text() == "whole"


@dataclass(frozen=True)
class Wheel:
    spokes: Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Cart:
    name: str
    colour: Literal["red", "blue"] = "red"
    wheels: dict[str, Wheel] = field(default_factory=dict)


def test_a_record_is_read_and_unknown_values_are_ignored():
    content = {"name": "hay", "wheels": {"left": {"spokes": 8}}, "later": 1}
    assert read_record(Cart, content, "cart.json") == Cart("hay", wheels={"left": Wheel(8)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "cart.json: name is missing; make it again"),
        ({"name": 5}, "cart.json: name must be a valid string, not 5; make it again"),
        ({"name": "hay", "colour": "green"}, "cart.json: colour must be 'red' or 'blue', not 'green'; make it again"),
        ({"name": "hay", "wheels": {"left": {}}}, "cart.json: wheels: left: spokes is missing; make it again"),
        ({"name": "hay", "wheels": {"left": {"spokes": "8"}}}, "wheels: left: spokes must be a valid integer, not '8'"),
        (
            {"name": "hay", "wheels": {"left": {"spokes": True}}},
            "wheels: left: spokes must be a valid integer, not True",
        ),
        ({"name": "hay", "wheels": {"left": {"spokes": 0}}}, "spokes must be greater than or equal to 1, not 0"),
        ({"name": "\ud800"}, "cart.json: invalid JSON"),
        ([], "cart.json: must be an object, not []"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_it(content, message):
    assert_refused(re.escape(message), read_record, Cart, content, "cart.json", "; make it again")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("two\nlines  of\ttext ", "two lines of text"),
        ("Zoë – «ok»", "Zoë – «ok»"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\udc80b", "a\\udc80b"),
        ("x\0y", "x\\x00y"),
    ],
)
def test_a_message_is_one_printable_line(text, message):
    assert str(UserError(text)) == message
    message.encode("utf-8")
