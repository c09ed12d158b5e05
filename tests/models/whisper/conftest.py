"""Provide fixtures for the tests of the Whisper model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ane.backends import load_backend
from ane.models.whisper.decoding import DecodedWindow
from ane.models.whisper.tokenizer_files import from_ranks
from ane.models.whisper.tokens import WhisperTokenizer
from ane.models.whisper.transcription import Transcriber
from tests.imported import imported
from tests.models.whisper.random_whisper import RANKS, write_hugging_face, write_openai


@pytest.fixture(scope="session")
def openai_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .pt file of random weights; tests must not change it."""
    return write_openai(tmp_path_factory.mktemp("openai"))


@pytest.fixture(scope="session")
def hugging_face_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as a Hugging Face folder; tests must not change it."""
    return write_hugging_face(tmp_path_factory.mktemp("hugging-face"))


@pytest.fixture(scope="session")
def tokenizer() -> WhisperTokenizer:
    """A part of the multilingual tokenizer."""
    return WhisperTokenizer(from_ranks(RANKS), 50257)


@pytest.fixture(scope="session")
def transcriber(hugging_face_folder: Path) -> Transcriber:
    """The random weights on torch."""
    model = imported(hugging_face_folder)
    return Transcriber(model, load_backend("torch:cpu", model))


@pytest.fixture(scope="session")
def noise() -> np.ndarray:
    """10 s of noise whose loudness changes, (S,) float32 at 16 kHz."""
    random = np.random.default_rng(1)
    loudness = np.repeat(random.uniform(0.01, 0.5, 40), 4000)
    return (random.standard_normal(160000) * loudness).clip(-1, 1).astype(np.float32)


class ScriptedDecoder:
    """In place of ``WindowDecoder``: returns the decoded windows of a script, and keeps the texts it was given."""

    def __init__(self, script: list[DecodedWindow]):
        self.script, self.calls = list(script), []

    def set_states(self, states):
        self.shape, self.states = states.shape, states

    def language_probabilities(self):
        self.heard = self.states
        return {"de": 1.0}

    def decode(self, text, options):
        self.calls.append((text, options))
        return replace(self.script.pop(0), temperature=options.temperature)


def window(*tokens: int, log_probability: float = -0.1, no_speech: float = 0.0) -> DecodedWindow:
    return DecodedWindow(tokens, log_probability, no_speech, 0.0)


@pytest.fixture
def scripted(transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScriptedDecoder]:
    """``scripted(script)``: the transcriber's decoder replaced by a ``ScriptedDecoder``."""

    def script(*windows: DecodedWindow) -> ScriptedDecoder:
        decoder = ScriptedDecoder(list(windows))
        monkeypatch.setattr(transcriber, "decoder", lambda candidates: decoder)
        return decoder

    return script
