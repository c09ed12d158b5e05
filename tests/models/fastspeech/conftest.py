"""Provide a small FastSpeech with random weights, with and without a vocoder."""

from pathlib import Path

import pytest

from ane.backends import load_backend
from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer
from tests.fastspeech_files import write_fastspeech, write_hifigan
from tests.imported import imported


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with checkpoint.pt and generator.pth; tests must not change it."""
    folder = tmp_path_factory.mktemp("fastspeech")
    write_fastspeech(folder / "checkpoint.pt")
    write_hifigan(folder / "generator.pth")
    return folder


@pytest.fixture(scope="session")
def synthesizer(files: Path) -> FastSpeechSynthesizer:
    """The model with its vocoder; tests must not change it."""
    model = imported(files / "checkpoint.pt", vocoder=files / "generator.pth")
    return FastSpeechSynthesizer(model, load_backend("torch:cpu", model))
