"""Files and folders are replaced whole or not at all: at no moment is there neither the old nor the new."""

import os
from pathlib import Path

import pytest

from ane.system import files
from ane.system.errors import UserError
from ane.system.files import replacing


@pytest.fixture
def bundle(tmp_path) -> Path:
    """A directory that somebody would miss."""
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "weights").write_text("old")
    return tmp_path / "bundle"


def renew(bundle: Path) -> None:
    with replacing(bundle, directory=True) as directory:
        (directory / "weights").write_text("new")


def test_a_directory_is_replaced_whole_and_leaves_no_crumbs(bundle):
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


@pytest.mark.parametrize(("fault", "seen"), [(OSError(5, "Input/output error"), UserError),
                                             (KeyboardInterrupt(), KeyboardInterrupt)])
def test_an_exchange_that_fails_half_way_brings_the_old_directory_back(bundle, monkeypatch, fault, seen):
    rename, calls = os.replace, []

    def fail_once(source, destination):
        calls.append(source)
        if len(calls) == 2:
            raise fault
        rename(source, destination)

    monkeypatch.setattr(files.os, "replace", fail_once)
    with pytest.raises(seen):
        renew(bundle)
    assert (bundle / "weights").read_text() == "old"
    assert list(bundle.parent.iterdir()) == [bundle]


def test_an_old_directory_that_cannot_be_brought_back_is_kept_and_its_place_told(bundle, monkeypatch):
    rename, calls = os.replace, []

    def fail_after_one(source, destination):
        calls.append(source)
        if len(calls) > 1:
            raise OSError(5, "Input/output error")
        rename(source, destination)

    monkeypatch.setattr(files.os, "replace", fail_after_one)
    with pytest.raises(UserError, match="the old one is kept as") as caught:
        renew(bundle)
    kept = next(path for path in bundle.parent.rglob("weights") if path.read_text() == "old")
    assert str(kept.parent) in str(caught.value)


def test_a_name_as_long_as_the_file_system_allows_can_be_written(tmp_path):
    path = tmp_path / ("ü" * 125 + ".wav")
    with replacing(path) as target:
        target.write_text("sound")
    assert path.read_text() == "sound"
