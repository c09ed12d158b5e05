"""Decoding of windows in lanes; its tokens are compared with the reference in tests/parity/test_whisper.py."""

import numpy as np
import pytest

from ane.models.whisper.decoding import DecodingOptions, WindowDecoder, WindowText, sample_token
from ane.system.errors import UserError


@pytest.fixture(scope="module")
def mels() -> np.ndarray:
    """Three windows of the random model."""
    return np.random.default_rng(0).standard_normal((3, 80, 400)).astype(np.float32)


@pytest.fixture(scope="module")
def make(transcriber, mels):
    """``make(windows, candidates)``: a decoder with the first ``windows`` of ``mels`` encoded."""

    def make(windows: int = 1, candidates: int = 1, first: int = 0) -> WindowDecoder:
        decoder = WindowDecoder(transcriber.backend, transcriber.decoder_config, transcriber.special, windows,
                                candidates)
        decoder.encode(mels[first:first + windows])
        return decoder

    return make


TEXTS = (WindowText((1, 2, 3), first_frame=0), WindowText(first_frame=1), WindowText(tuple(range(50)), first_frame=2))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_window_is_decoded_alike_alone_and_among_others(make, temperature):
    options = DecodingOptions(temperature=temperature, best_of=3, sample_length=20)
    together = make(3, 3).decode(TEXTS, options)
    for index, text in enumerate(TEXTS):
        [alone] = make(1, 3, index).decode([text], options)
        assert together[index].tokens == alone.tokens
        assert together[index].average_log_probability == pytest.approx(alone.average_log_probability, abs=1e-4)
        assert together[index].no_speech_probability == pytest.approx(alone.no_speech_probability, abs=1e-5)


def test_the_same_seed_samples_the_same_tokens(make):
    decoder = make(1, 2)
    options = [DecodingOptions(temperature=1.0, best_of=2, sample_length=12, seed=seed) for seed in (1, 1, 2)]
    first, again, other = ([window.tokens for window in decoder.decode([WindowText()], option)] for option in options)
    assert first == again != other


def test_the_best_candidate_is_returned(make):
    decoder = make(1, 4)

    def probability(best_of: int) -> float:
        options = DecodingOptions(temperature=1.0, best_of=best_of, sample_length=12)
        [found] = decoder.decode([WindowText()], options)
        return found.average_log_probability * (len(found.tokens) + 1) / max(1, len(found.tokens))

    assert probability(4) >= probability(1), "the first candidate is the same"


def test_only_the_end_of_a_long_prompt_is_kept(make):
    decoder, options = make(), DecodingOptions(sample_length=8)
    limit = 64 // 2 - 1
    long = tuple(np.random.default_rng(0).integers(0, 256, 200).tolist())
    assert decoder.decode([WindowText(long)], options) == decoder.decode([WindowText(long[-limit:])], options)
    assert decoder.decode([WindowText(long)], options) != decoder.decode([WindowText(long[:limit])], options)


def test_sampling_stops_when_the_positions_are_used_up(make):
    decoder = make(2)
    never_ends = DecodingOptions(timestamps=False, suppressed=(50257,), sample_length=64)
    prompted, plain = decoder.decode([WindowText(tuple(range(40))), WindowText()], never_ends)
    assert len(plain.tokens) == 64 - 4 + 1, "the last token has no position of its own"
    assert len(prompted.tokens) == 64 - 4 + 1 - 32


def test_a_sample_length_limits_the_tokens_and_the_prefix(make):
    decoder = make()
    options = DecodingOptions(timestamps=False, suppressed=(50257,), sample_length=30)
    long = WindowText(prefix=(5, 6, 7, 8))
    assert len(decoder.decode([long], options)[0].tokens) == 30
    assert decoder.decode([long], options) == decoder.decode([WindowText(prefix=(7, 8))], options)


def test_a_prefix_beyond_the_positions_is_refused(make):
    with pytest.raises(UserError, match="prefix must leave room"):
        make().decode([WindowText(prefix=tuple(range(70)))], DecodingOptions())


def test_prefixes_of_different_lengths_are_refused(make):
    with pytest.raises(ValueError, match="same length"):
        make(2).decode([WindowText(prefix=(1,)), WindowText()], DecodingOptions())


def test_an_unknown_language_is_refused(make):
    with pytest.raises(UserError, match="language must be one of"):
        make().decode([WindowText()], DecodingOptions(language="xx"))


def test_tokens_are_drawn_in_proportion_to_their_probabilities():
    logits = np.log(np.array([0.1, 0.6, 0.3], np.float32))
    random = np.random.default_rng(0)
    drawn = np.bincount([sample_token(logits, 1.0, random) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(drawn, [0.1, 0.6, 0.3], atol=0.03)


def test_a_suppressed_token_is_never_drawn():
    logits = np.array([-np.inf, 0.0, -np.inf], np.float32)
    random = np.random.default_rng(0)
    assert {sample_token(logits, 0.7, random) for _ in range(200)} == {1}
