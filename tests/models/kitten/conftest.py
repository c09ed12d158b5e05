"""A small KittenTTS model for the tests of that family."""

from pathlib import Path

import pytest

from tests.models.kitten.kitten_model import write_kitten_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches and stored bundles of the test, not the user's."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with config.json, a graph without noise and two voices."""
    return write_kitten_model(tmp_path / "model")
