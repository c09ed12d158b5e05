"""Folders of the package on each system."""

from pathlib import Path

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from ane.system import paths
from ane.system.errors import UserError

FOLDERS = (paths.cache_dir, paths.data_dir, paths.voices_dir, paths.bundles_dir)


@pytest.fixture(autouse=True)
def plain_linux(monkeypatch, tmp_path):
    """A user without any of the variables, whose home is ``tmp_path``."""
    for name in ("ANE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platformdirs, "PlatformDirs", Unix)
    monkeypatch.setenv("HOME", str(tmp_path))


def found(home: Path) -> list[str]:
    return [folder_of().relative_to(home).as_posix() for folder_of in FOLDERS]


def test_linux_uses_the_xdg_defaults(tmp_path):
    data = ".local/share/tortoise-ane"
    assert found(tmp_path) == [".cache/tortoise-ane", data, f"{data}/voices", f"{data}/bundles"]


def test_macos_uses_the_library_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(platformdirs, "PlatformDirs", MacOS)
    data = "Library/Application Support/tortoise-ane"
    assert found(tmp_path) == ["Library/Caches/tortoise-ane", data, f"{data}/voices", f"{data}/bundles"]


@pytest.mark.parametrize("platform", [Unix, MacOS])
def test_ane_home_holds_everything(tmp_path, monkeypatch, platform):
    monkeypatch.setattr(platformdirs, "PlatformDirs", platform)
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "all"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert found(tmp_path) == ["all/cache", "all", "all/voices", "all/bundles"]


def test_xdg_variables_set_cache_and_data_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "d"))
    assert found(tmp_path) == ["c/tortoise-ane", "d/tortoise-ane", "d/tortoise-ane/voices", "d/tortoise-ane/bundles"]


@pytest.mark.parametrize(("name", "value"), [("ANE_HOME", ""), ("XDG_CACHE_HOME", ""), ("XDG_CACHE_HOME", "relative")])
def test_empty_and_relative_variables_are_ignored(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert paths.cache_dir() == tmp_path / ".cache" / "tortoise-ane"


def test_a_tilde_in_ane_home_is_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", "~/speech")
    assert paths.data_dir() == tmp_path / "speech"
    monkeypatch.setenv("ANE_HOME", "~nobody-of-that-name/speech")
    assert paths.data_dir().name == "speech"


def test_a_user_without_a_home_is_told_to_set_one(monkeypatch):
    """For example in a container that runs under a user number that the system does not know."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(UserError, match="set ANE_HOME"):
        paths.cache_dir()


def test_asking_creates_nothing(tmp_path):
    for folder_of in FOLDERS:
        folder_of()
    assert list(tmp_path.iterdir()) == []


def test_a_deleted_working_directory_is_refused(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    paths.check_working_directory()
    (tmp_path / "gone").rmdir()
    with pytest.raises(UserError, match="working directory"):
        paths.check_working_directory()
