"""Provide tiny checkpoints that tests may damage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ane.bundles.contents import Contents
from ane.bundles.writing import write_bundle
from ane.models.tortoise.checkpoints import import_tortoise


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches and stored bundles of the tests, not the user's."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def copy_checkpoints(golden_checkpoints: Path, golden_config: Path) -> Callable[[Path], Path]:
    """``copy_checkpoints(directory)``: writable copies of the golden checkpoints and their config.json."""

    def copy(directory: Path) -> Path:
        directory.mkdir(parents=True)
        for path in golden_checkpoints.glob("*.pth"):
            shutil.copyfile(path, directory / path.name)
        shutil.copyfile(golden_config, directory / "config.json")
        return directory

    return copy


@pytest.fixture
def directory(copy_checkpoints: Callable[[Path], Path], tmp_path: Path) -> Path:
    """A directory of tiny checkpoints that the test may change."""
    return copy_checkpoints(tmp_path / "checkpoints")


@pytest.fixture(scope="session")
def checkpoints(copy_checkpoints: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return import_tortoise(copy_checkpoints(tmp_path_factory.mktemp("pth") / "tiny"))


@pytest.fixture(scope="session")
def original(checkpoints: Contents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the tiny checkpoints in fp32; tests copy it before they change it."""
    return write_bundle(checkpoints, tmp_path_factory.mktemp("bundle") / "tiny", precision="fp32").path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "tiny"))
