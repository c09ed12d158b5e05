"""Provide fixtures for the tests of the interpreter."""

import shutil
from pathlib import Path

import pytest

from tests.backends.mil.programs import WEIGHT, convert, mb, saved


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """relu(conv(x)) + x in fp16. Tests must not change it."""
    return saved(
        convert(lambda x: mb.add(x=mb.relu(x=mb.conv(x=x, weight=WEIGHT)), y=x)), tmp_path_factory.mktemp("plain")
    )


@pytest.fixture
def copy(plain: Path, tmp_path: Path) -> Path:
    """A copy of the plain package that a test may damage."""
    return Path(shutil.copytree(plain, tmp_path / "copy.mlpackage"))
