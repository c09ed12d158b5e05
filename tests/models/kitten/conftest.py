"""Provide a small KittenTTS model for the tests of its family."""

from pathlib import Path

import pytest

from tests.models.kitten.kitten_model import write_kitten_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with config.json, a graph without noise and two voices."""
    return write_kitten_model(tmp_path / "model")
