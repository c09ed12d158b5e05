"""The times of words are those of openai-whisper with the same weights (tests/parity/families/whisper)."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ane.backends import load_backend
from ane.models.whisper.checkpoints import WhisperCheckpoint
from ane.models.whisper.tokenizer_files import from_ranks
from ane.models.whisper.tokens import SpecialTokens, WhisperTokenizer
from ane.models.whisper.transcript import TranscriptSegment
from ane.models.whisper.words import AlignedWord, WordAligner, add_words
from tests.models.whisper.random_whisper import RANKS
from tests.parity.whisper_golden import open_golden_whisper

ROUNDED = 0.0101        # seconds: openai-whisper rounds some times to 0.01 s and not others


@pytest.fixture(scope="module")
def golden(golden_families: Path) -> Path:
    return golden_families / "whisper"


@pytest.fixture(scope="module")
def cases(golden) -> dict[str, Any]:
    if not (golden / "word_times.json").is_file():
        pytest.skip("this golden set has no word_times.json: run without --families")
    return json.loads((golden / "word_times.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(golden, whisper_facts, tmp_path_factory) -> WhisperCheckpoint:
    return open_golden_whisper(golden, whisper_facts, "full", tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def states(golden, model) -> np.ndarray:
    mel = load_file(golden / "stages.safetensors")["encoder/mel"]
    return load_backend("torch:cpu", model).run("encoder", mel=mel)[0]


@pytest.fixture(scope="module", params=["fp32", "auto"])
def aligner(model, request) -> Callable[..., WordAligner]:
    """With heads (None: those of the upper half); in fp32 the linear layers are packed."""
    backend, special = load_backend("torch:cpu", model, request.param), SpecialTokens.of(51865)
    tokenizer = WhisperTokenizer(from_ranks(RANKS), special.end)

    def make(heads: list[list[int]] | None) -> WordAligner:
        config = replace(model.config("decoder"), alignment_heads=tuple(map(tuple, heads or ())))
        return WordAligner(backend, config, special, tokenizer)

    return make


def test_words_of_a_window(aligner, cases, states):
    for case in cases["alignment"]:
        found = aligner(case["heads"]).align(case["tokens"], states, case["frames"], case["language"])
        assert [[word.word, list(word.tokens)] for word in found] == [word[:2] for word in case["words"]]
        for word, (_, _, start, end, probability) in zip(found, case["words"], strict=True):
            assert (word.start, word.end) == pytest.approx((start, end), abs=1e-4)
            assert word.probability == pytest.approx(probability, rel=1e-3)


def test_punctuation_and_the_limits_of_words_and_segments(cases):
    """Made-up alignments with pauses, long words and punctuation."""
    for case in cases["segments"]:
        segments = [TranscriptSegment(start, end, "", tuple(tokens), 0, 0, 0, 0)
                    for start, end, tokens in case["segments"]]
        words = [AlignedWord(word, tuple(tokens), *rest) for word, tokens, *rest in case["words"]]
        found = add_words(segments, words, 50257, case["offset"], case["last_speech"])
        for segment, (start, end, expected) in zip(found, case["expected"], strict=True):
            assert (segment.start, segment.end) == pytest.approx((start, end), abs=ROUNDED)
            assert [word.word for word in segment.words] == [word for word, *_ in expected]
            for word, (_, *times) in zip(segment.words, expected, strict=True):
                assert (word.start, word.end) == pytest.approx(times, abs=ROUNDED)
