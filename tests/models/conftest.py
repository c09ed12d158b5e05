"""Provide the fixtures that the tests of all models share."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of caches and stored bundles of the test, not the user's."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
