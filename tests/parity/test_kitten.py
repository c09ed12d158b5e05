"""Compare KittenTTS with the unmodified KittenTTS 0.8.1: text, ids, styles, speeds and audio."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ane.models.kitten.published_text import preprocess, split_published
from ane.models.kitten.synthesizer import PUBLISHED_CUT, VOCABULARY, KittenSynthesizer
from ane.models.styletts.settings import KittenSettings
from ane.speech.request import SpeechContext
from tests.models.kitten.kitten_model import kitten_speaker
from tests.parity.conftest import golden_facts

PUBLISHED = KittenSettings(published=True)
AUDIO_TOLERANCE = 1e-5
EVERY = 7  # the golden audio has every 7th sample


@pytest.fixture(scope="module")
def facts(golden_families: Path) -> dict[str, Any]:
    return golden_facts(golden_families / "kitten")


@pytest.fixture(scope="module")
def replayed(facts: dict[str, Any], golden_families: Path) -> KittenSynthesizer:
    """The golden model with a phonemizer that returns the recorded phonemes of each chunk."""
    recorded = {
        chunk: phonemes for run in facts["runs"] for chunk, phonemes in zip(run["chunks"], run["phonemes"], strict=True)
    }
    return kitten_speaker(golden_families / "kitten", None, recorded.__getitem__)


def test_vocabulary_preprocessing_and_published_chunks(facts: dict[str, Any]) -> None:
    assert facts["vocabulary"] == VOCABULARY
    assert [preprocess(case["text"]) for case in facts["preprocess"]] == [case["out"] for case in facts["preprocess"]]
    for case in (*facts["chunk"], *facts["chunk_small"]):
        limits = [case["max_len"]] if "max_len" in case else []
        assert split_published(case["text"], *limits) == case["out"]


def test_inputs_of_the_graph(facts: dict[str, Any], replayed: KittenSynthesizer) -> None:
    for run in facts["runs"]:
        request = replayed.request(run["text"], run["voice"], speed=run["speed"], settings=PUBLISHED)
        chunks = replayed.chunks(request, SpeechContext())
        assert [
            (chunk.text, chunk.input_ids.tolist()[0], chunk.style_row, chunk.graph_speed.tolist()[0])
            for chunk in chunks
        ] == list(zip(run["chunks"], run["input_ids"], run["style_row"], run["effective_speed"], strict=True))
        for chunk in chunks:
            inputs = chunk.input_ids, chunk.style, chunk.graph_speed
            assert [str(array.dtype) for array in inputs] == ["int64", "float32", "float32"]
            assert (chunk.input_ids.ndim, chunk.style.shape, chunk.graph_speed.shape) == (2, (1, 256), (1,))


def test_audio_whole_and_as_a_stream(facts, replayed: KittenSynthesizer, golden_families: Path) -> None:
    assert facts["trim"] == PUBLISHED_CUT
    with np.load(golden_families / "kitten" / "audio_every_7th_sample.npz") as golden:
        for run in facts["runs"]:
            audio = replayed.speak(run["text"], run["voice"], speed=run["speed"], settings=PUBLISHED).audio
            assert audio.shape == (run["samples"],)
            assert np.abs(audio[::EVERY] - golden[run["audio"]]).max(initial=0) <= AUDIO_TOLERANCE
            pieces = list(replayed.stream(run["text"], run["voice"], speed=run["speed"], settings=PUBLISHED))
            assert len(pieces) == len(run["chunks"])
            np.testing.assert_array_equal(np.concatenate(pieces), audio)
