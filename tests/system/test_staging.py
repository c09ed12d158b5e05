"""Folders written whole or not at all, and records that are read from outside."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from ane.system import staging
from ane.system.checked import read_record
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.staging import leftovers

WRITE = """
import os, signal, sys
from ane.system import files
from ane.system.files import replacing
with replacing({path!r}, directory={directory}) as target:
    (target / "weights" if {directory} else target).write_text("half")
    {then}
"""


def write_in_process(path: Path, then: str, directory: bool = False) -> subprocess.Popen:
    code = WRITE.format(path=str(path), directory=directory, then=then)
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill_in_process(path: Path, directory: bool = False, then: str = "") -> None:
    with write_in_process(path, f"{then}; os.kill(os.getpid(), signal.SIGKILL)".lstrip("; "), directory) as process:
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


def test_leftovers_are_found_in_folders_within_folders(tmp_path):
    kill_in_process(tmp_path / "a" / "b" / "file")
    [left] = leftovers(tmp_path)
    assert left.parent == tmp_path / "a" / "b"
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


def test_leftovers_of_other_files_stay(tmp_path):
    kill_in_process(tmp_path / "other")
    with replacing(tmp_path / "file") as target:
        target.write_text("whole")
    assert len(leftovers(tmp_path)) == 1


def test_a_folder_without_a_lock_is_a_leftover_after_a_day(tmp_path):
    young, old = (tmp_path / f".file.{digit * 16}.partial" for digit in "ab")
    young.mkdir()
    old.mkdir()
    os.utime(old, (time.time() - 25 * 3600,) * 2)
    assert leftovers(tmp_path) == [old]


def test_folders_with_similar_names_are_nobodys_leftovers(tmp_path):
    for name in (".file.partial", "file.aaaaaaaaaaaaaaaa.partial", ".file.aaaaaaaaaaaaaaaa.partial.txt"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    assert leftovers(tmp_path) == []


def killed_in_exchange(path: Path) -> Path:
    """Kill a process after it has moved the old directory away; the old directory in its staging folder."""
    path.mkdir()
    (path / "weights").write_text("old")
    rename = ("rename = os.replace; files.os.replace = "
              "lambda *names: (rename(*names), os.kill(os.getpid(), signal.SIGKILL))")
    with write_in_process(path, rename, directory=True) as process:
        pass
    assert process.returncode == -9
    assert not path.exists()
    return next(found for found in path.parent.rglob("weights") if found.read_text() == "old").parent


def test_the_only_copy_of_a_directory_is_not_a_leftover(tmp_path):
    kept = killed_in_exchange(tmp_path / "bundle")
    assert leftovers(tmp_path) == []
    assert (kept / "weights").read_text() == "old"


def test_a_directory_lost_in_an_exchange_comes_back_with_the_next_write(tmp_path):
    path = tmp_path / "bundle"
    killed_in_exchange(path)
    with pytest.raises(ValueError, match="half"), replacing(path, directory=True):
        raise ValueError("half")
    assert (path / "weights").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_of_another_user_is_nobodys_leftover(tmp_path, monkeypatch):
    def refuse(path, *flags):
        raise PermissionError(13, "Permission denied", path)

    kill_in_process(tmp_path / "file")
    monkeypatch.setattr(staging.os, "open", refuse)
    assert leftovers(tmp_path) == []


def test_a_file_system_without_locks_has_no_leftovers(tmp_path, monkeypatch):
    import fcntl

    def fail(*_):
        raise OSError(37, "No locks available")

    kill_in_process(tmp_path / "file")
    monkeypatch.setattr(fcntl, "flock", fail)
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


@pytest.mark.parametrize(("content", "message"), [
    ({}, "cart.json: name is missing; make it again"),
    ({"name": 5}, "cart.json: name must be a valid string, not 5; make it again"),
    ({"name": "hay", "colour": "green"}, "cart.json: colour must be 'red' or 'blue', not 'green'; make it again"),
    ({"name": "hay", "wheels": {"left": {}}}, "cart.json: wheels: left: spokes is missing; make it again"),
    ({"name": "hay", "wheels": {"left": {"spokes": "8"}}}, "wheels: left: spokes must be a valid integer, not '8'"),
    ({"name": "hay", "wheels": {"left": {"spokes": True}}}, "wheels: left: spokes must be a valid integer, not True"),
    ({"name": "hay", "wheels": {"left": {"spokes": 0}}}, "spokes must be greater than or equal to 1, not 0"),
    ({"name": "\ud800"}, "cart.json: invalid JSON"),
    ([], "cart.json: must be an object, not []"),
])
def test_a_wrong_value_is_one_line_that_names_it(content, message):
    with pytest.raises(UserError) as caught:
        read_record(Cart, content, "cart.json", "; make it again")
    assert message in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [
    ("two\nlines  of\ttext ", "two lines of text"), ("Zoë – «ok»", "Zoë – «ok»"),
    ("\x1b[31mred", "\\x1b[31mred"), ("a\udc80b", "a\\udc80b"), ("x\0y", "x\\x00y")])
def test_a_message_is_one_printable_line(text, message):
    assert str(UserError(text)) == message
    message.encode("utf-8")
