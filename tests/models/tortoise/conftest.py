"""Fixtures of the tests of the Tortoise model."""

from pathlib import Path

import pytest

import ane
from ane.models.tortoise.synthesizer import Synthesizer


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches and stored voices of the test, not the user's."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def synthesizer() -> Synthesizer:
    """The embedded bundle on torch."""
    return ane.load("demo")
