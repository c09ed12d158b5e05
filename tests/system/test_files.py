"""Test that files are written whole or not at all, and where they are stored."""

import io
import itertools
import json
import math
import os
import socket
import stat
import threading
import zipfile
from contextlib import nullcontext
from pathlib import Path

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from ane.system import files, paths
from ane.system.errors import UserError
from ane.system.files import check_output_file, read_json, replacing, write_json
from tests.refusals import assert_refused, refusal_of


@pytest.fixture
def bundle(tmp_path) -> Path:
    """A directory with content that must not be lost."""
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "weights").write_text("old")
    return tmp_path / "bundle"


def fail_at(monkeypatch: pytest.MonkeyPatch, calls: tuple[int, ...], fault: BaseException) -> None:
    """Let these calls of os.replace fail, which begin with 1."""
    rename, faults = os.replace, dict.fromkeys(calls, fault)
    count = itertools.count(1)

    def replace(source: Path, destination: Path) -> None:
        if fault := faults.get(next(count)):
            raise fault
        rename(source, destination)

    monkeypatch.setattr(files.os, "replace", replace)


def renew(bundle: Path) -> None:
    with replacing(bundle, directory=True) as directory:
        (directory / "weights").write_text("new")


# replacing


def test_a_directory_is_replaced_as_a_whole_and_nothing_else_is_left(bundle):
    (bundle / "more").touch()
    renew(bundle)
    assert {path.name: path.read_text() for path in bundle.iterdir()} == {"weights": "new"}
    assert list(bundle.parent.iterdir()) == [bundle]


def test_old_and_new_are_on_the_disk_at_every_moment_of_the_exchange(bundle, monkeypatch):
    rename, seen = os.replace, []

    def watch(source, destination):
        seen.append(sorted(path.read_text() for path in bundle.parent.rglob("weights")))
        rename(source, destination)

    monkeypatch.setattr(files.os, "replace", watch)
    renew(bundle)
    assert seen == [["new", "old"], ["new", "old"]]


@pytest.mark.parametrize(
    ("fault", "seen"), [(OSError(5, "Input/output error"), UserError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_an_exchange_that_fails_half_way_brings_the_old_directory_back(bundle, monkeypatch, fault, seen):
    fail_at(monkeypatch, (2,), fault)
    with pytest.raises(seen):
        renew(bundle)
    assert (bundle / "weights").read_text() == "old"
    assert list(bundle.parent.iterdir()) == [bundle]


def test_an_old_directory_that_cannot_be_brought_back_is_kept_and_its_path_reported(bundle, monkeypatch):
    fail_at(monkeypatch, (2, 3), OSError(5, "Input/output error"))
    with pytest.raises(UserError, match="the old directory is kept as") as caught:
        renew(bundle)
    kept = next(path for path in bundle.parent.rglob("weights") if path.read_text() == "old")
    assert str(kept.parent) in str(caught.value)
    monkeypatch.undo()
    renew(bundle)
    assert (bundle / "weights").read_text() == "new"
    assert list(bundle.parent.iterdir()) == [bundle]


def test_a_name_as_long_as_the_file_system_allows_can_be_written(tmp_path):
    path = tmp_path / ("ü" * 125 + ".wav")
    with replacing(path) as target:
        target.write_text("sound")
    assert path.read_text() == "sound"


def test_what_a_link_refers_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "sound")
    with replacing(tmp_path / "link") as target:
        target.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "sound").read_text() == "new"


def test_new_content_keeps_the_mode_of_the_old(bundle, tmp_path):
    private = tmp_path / "private"
    private.touch(0o600)
    with replacing(private) as target:
        target.write_text("new")
    bundle.chmod(0o700)
    renew(bundle)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (private, bundle)] == [0o600, 0o700]


def test_a_check_sees_the_destination_immediately_before_the_rename_and_can_refuse_it(tmp_path):
    path, seen = tmp_path / "text", []

    def refuse(destination: Path) -> None:
        seen.append(destination.read_text())
        raise UserError("it is not ours")

    path.write_text("old")

    def write() -> None:
        with replacing(path, check=refuse) as target:
            target.write_text("new")
            path.write_text("edited")

    assert_refused("it is not ours", write)
    assert seen == [path.read_text()] == ["edited"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize("links", [True, False], ids=["", "without hard links"])
def test_a_name_that_something_gets_at_the_very_last_moment_is_not_replaced(tmp_path, monkeypatch, links):
    """Without hard links the file system offers no such way."""
    source, path = tmp_path / "source", tmp_path / "text"
    source.write_text("new")
    if links:
        path.write_text("made meanwhile")
        with pytest.raises(FileExistsError):
            files.rename_to_new(source, path)
        assert path.read_text() == "made meanwhile"
        path.unlink()
    else:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError("no links")))
    files.rename_to_new(source, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["text"]
    assert path.read_text() == "new"


# names that no file can have

BAD_NAMES = ["x" * 300, "x" * 300 + "/b", "/dev/null/x", "lone\ud800surrogate", "x\0y"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_names_that_no_file_can_have_are_refused_in_one_line(tmp_path, name):
    path = tmp_path / name
    for refuse in (check_output_file, read_json, lambda path: write_json(path, {})):
        refusal_of(refuse, path).encode("utf-8")


def test_a_deleted_working_directory_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    paths.check_working_directory()
    (tmp_path / "gone").rmdir()
    assert_refused("working directory", paths.check_working_directory)
    for refuse in (check_output_file, read_json, lambda path: write_json(path, 1)):
        assert_refused(r"^.*No such file or directory.*$", refuse, Path("folder/x.json"))


@pytest.mark.parametrize(("name", "message"), [("folder", "is a directory"), ("file/x", "is not a folder")])
def test_a_file_that_cannot_be_written_is_refused_beforehand(tmp_path, name, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert_refused(f"^cannot write {tmp_path / name}: .*{message}", check_output_file, tmp_path / name)
    missing = f"there is no folder {tmp_path / 'new'}: make it first, or choose another"
    assert_refused(missing, check_output_file, tmp_path / "new" / "x")
    check_output_file(tmp_path / "new" / "x", makes_folders=True)
    assert not (tmp_path / "new").exists()
    check_output_file("-")
    with pytest.raises(UserError, match=r"^cannot write .*file/x: [^;]*$"), replacing(tmp_path / "file" / "x"):
        pass


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("gone/x", "it is a link, and there is no folder .*gone"),
        ("file/x", "file is not a folder"),
        ("folder", "is a directory"),
        ("folder/x", ""),
    ],
)
def test_the_target_of_a_link_is_what_must_be_writable(tmp_path, target, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    with pytest.raises(UserError, match=f"^cannot write {link}: .*{message}") if message else nullcontext():
        check_output_file(link)
    assert not (tmp_path / "gone").exists()


def test_a_file_that_is_missing_is_looked_for_under_similar_names(tmp_path):
    (tmp_path / "chapter one.txt").touch()
    assert files.no_such_file(tmp_path / "chaptr one.txt").endswith(f" in {tmp_path}: did you mean chapter one.txt?")
    assert files.no_such_file(tmp_path / "book.epub") == (
        f"no such file or folder in {tmp_path}: check its name, or give its path"
    )
    assert files.no_such_file(tmp_path / "no" / "book.epub") == f"there is no folder {tmp_path / 'no'}"


# JSON


def test_json_is_indented_in_a_file_that_outlasts_a_power_cut(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(files.os, "fsync", flushed.append)
    path = tmp_path / "new" / "x.json"
    write_json(path, {"name": "Zoë \udc80", "values": [1, None, (True, "x")], "b": {"c": [math.inf, (-math.inf, 0.1)]}})
    assert path.read_text().endswith('"b": {\n  "c": [\n   null,\n   [\n    null,\n    0.1\n   ]\n  ]\n }\n}\n')
    assert read_json(path) == {"name": "Zoë \udc80", "values": [1, None, [True, "x"]], "b": {"c": [None, [None, 0.1]]}}
    assert len(flushed) == 2, "the file and its folder"


def test_a_dash_is_standard_output_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_json("-", {"a": [1, 2]})
    assert capsys.readouterr().out == json.dumps({"a": [1, 2]}) + "\n"
    assert list(tmp_path.iterdir()) == []


def test_json_can_be_written_to_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_json(tmp_path / "pipe", [1])
    reader.join(timeout=20)
    assert json.loads(received[0]) == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"1" * 10_000, "is not JSON"),
    ],
)
def test_json_that_cannot_be_parsed_is_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "x.json").write_bytes(content)
    assert str(tmp_path / "x.json") in assert_refused(message, read_json, tmp_path / "x.json")


@pytest.mark.timeout(30)
def test_a_pipe_or_a_directory_is_not_replaced_nor_read_as_json(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    # a socket cannot be opened, so it is recognised before
    kinds = {"pipe": "not a regular file", "socket": "not a regular file", ".": "Is a directory", "no": "No such file"}
    for name, message in kinds.items():
        assert_refused(message, read_json, tmp_path / name)
    with pytest.raises(UserError, match="not a regular file"), replacing(tmp_path / "pipe") as target:
        target.write_text("new")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("directory", [False, True])
def test_what_lasts_is_on_the_disk_before_it_replaces_the_old_and_its_name_afterwards(tmp_path, monkeypatch, directory):
    steps, kinds, fsync, replace = [], {True: "folder", False: "file"}, os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda one: (steps.append(kinds[stat.S_ISDIR(os.fstat(one).st_mode)]), fsync(one)))
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("rename"), replace(*names)))
    with replacing(tmp_path / "new", directory=directory, lasting=True) as target:
        (target / "part" if directory else target).write_text("content")
    assert steps == ["file", *["folder"] * directory, "rename", "folder"]


def test_the_directory_of_a_zip_archive_is_found_at_its_very_end_and_nowhere_else(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", "text")
    whole = (tmp_path / "a.zip").read_bytes()
    assert files.zip_directory(io.BytesIO(whole))[0] == 1
    with pytest.raises(ValueError, match="no directory"):
        files.zip_directory(io.BytesIO(whole[:-1]))


FOLDERS = (paths.cache_dir, paths.data_dir, paths.voices_dir, paths.bundles_dir)


@pytest.fixture(autouse=True)
def plain_linux(monkeypatch, tmp_path):
    """A user without any of the variables, whose home is ``tmp_path``."""
    for name in ("ANE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platformdirs, "PlatformDirs", Unix)
    monkeypatch.setenv("HOME", str(tmp_path))


DATA, LIBRARY = ".local/share/tortoise-ane", "Library/Application Support/tortoise-ane"


@pytest.mark.parametrize(
    ("platform", "variables", "cache", "data"),
    [
        (Unix, {}, ".cache/tortoise-ane", DATA),
        (MacOS, {}, "Library/Caches/tortoise-ane", LIBRARY),
        *(
            (platform, {"ANE_HOME": "{home}/all", "XDG_CACHE_HOME": "{home}/xdg"}, "all/cache", "all")
            for platform in (Unix, MacOS)
        ),
        (Unix, {"XDG_CACHE_HOME": "{home}/c", "XDG_DATA_HOME": "{home}/d"}, "c/tortoise-ane", "d/tortoise-ane"),
        (Unix, {"ANE_HOME": "", "XDG_CACHE_HOME": ""}, ".cache/tortoise-ane", DATA),
        (Unix, {"XDG_CACHE_HOME": "relative"}, ".cache/tortoise-ane", DATA),
        (Unix, {"ANE_HOME": "~/speech"}, "speech/cache", "speech"),
    ],
)
def test_folders_of_a_system_and_its_variables(tmp_path, monkeypatch, platform, variables, cache, data):
    monkeypatch.setattr(platformdirs, "PlatformDirs", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    assert [folder().relative_to(tmp_path).as_posix() for folder in FOLDERS] == [
        cache,
        data,
        f"{data}/voices",
        f"{data}/bundles",
    ]
    assert list(tmp_path.iterdir()) == [], "asking creates nothing"


def test_a_home_of_nobody_is_a_folder_of_its_name(monkeypatch):
    monkeypatch.setenv("ANE_HOME", "~nobody-of-that-name/speech")
    assert paths.data_dir().name == "speech"


def test_a_user_without_a_home_is_told_to_set_one(monkeypatch):
    """For example in a container that runs under a user number that the system does not know."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert_refused("set ANE_HOME", paths.cache_dir)
