"""Test that the check of a command's files compares file identities, and knows which files a folder stands for."""

import os
import sys
from pathlib import Path

import pytest

from ane.system import file_gate
from ane.system.file_gate import check_apart, identity
from tests.refusals import assert_refused


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    Path("a/one").touch()
    Path("a/link").symlink_to("one")
    Path("b").symlink_to("a")
    os.link("a/one", "hard")


@pytest.mark.parametrize("spelling", ["a/one", "./a/one", "a/../a/one", "b/one", "b/link", "hard", "~/a/one"])
def test_a_file_is_known_by_every_spelling_and_link(monkeypatch, tmp_path, spelling):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert identity(spelling) == identity(tmp_path / "a" / "one") != identity("a/other")
    assert_refused(
        rf"cannot write {spelling}: --in reads it, so choose another output",
        check_apart,
        [("--in", "a/one")],
        [("--out", spelling)],
    )


def test_files_that_are_not_there_yet_are_compared_by_their_folders(tmp_path):
    assert identity("a/new/x") == identity("b/new/x") != identity("b/new/y")
    assert_refused(r"cannot write b/x: --one writes it too", check_apart, [], [("--one", "a/x"), ("--two", "b/x")])
    assert_refused(
        r"cannot write b/x: it is the same file as a/x", check_apart, [], [("--one", "a/x"), ("--one", "b/x")]
    )


def test_capitals_and_accents_hide_no_file_on_macos(monkeypatch):
    assert identity("Caf\u00e9") != identity("cafe\u0301")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert identity("Caf\u00e9") == identity("cafe\u0301")


def test_a_folder_that_is_read_stands_for_its_files_and_one_that_is_written_for_all_in_it():
    assert_refused("a/one: --in reads it", check_apart, [("--in", "b")], [("--out", "a/one")])
    assert_refused(r"cannot write \.: --in reads it", check_apart, [("--in", "b/one")], [("--out", ".")])
    check_apart([("--in", "b")], [("--out", "a/new")])


def test_devices_pipes_standard_streams_and_impossible_names_are_none(tmp_path):
    os.mkfifo("pipe")
    for path in ("/dev/null", "pipe", "nul\0", "-"):
        check_apart([("--in", path)], [("--out", path), ("--other", path)])


def test_a_file_that_is_redirected_to_standard_input_is_read(monkeypatch):
    with Path("a/one").open() as file:
        monkeypatch.setattr(file_gate.sys, "stdin", file)
        assert_refused("hard: --file reads it", check_apart, [("--file", "-")], [("--out", "hard")])
