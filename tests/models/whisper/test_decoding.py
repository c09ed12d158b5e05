"""Test how a window is decoded: greedily, by sampling and by beam search."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from ane.models.whisper.decoding import BeamSearch, DecodingOptions, WindowDecoder, WindowText, sample_token
from ane.models.whisper.tokens import log_sum_exp
from tests.refusals import assert_refused


@pytest.fixture(scope="module")
def make(transcriber):
    """``make(candidates)``: a decoder with a window of random numbers."""
    mel = np.random.default_rng(0).standard_normal((1, 80, 400)).astype(np.float32)

    def make(candidates: int = 1) -> WindowDecoder:
        decoder = WindowDecoder(transcriber.backend, transcriber.decoder_config, transcriber.special, candidates)
        decoder.set_states(transcriber.backend.run("encoder", mel=mel))
        return decoder

    return make


def test_the_same_seed_samples_the_same_tokens(make):
    decoder = make(2)
    options = [DecodingOptions(temperature=1.0, best_of=2, sample_length=12, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (decoder.decode(WindowText(), option).tokens for option in options)
    assert first == again != other


def test_the_best_candidate_is_returned(make):
    decoder = make(4)

    def probability(best_of: int) -> float:
        options = DecodingOptions(temperature=1.0, best_of=best_of, sample_length=12)
        found = decoder.decode(WindowText(), options)
        return found.average_log_probability * (len(found.tokens) + 1) / max(1, len(found.tokens))

    assert probability(4) >= probability(1), "the first candidate is the same"


def test_only_the_end_of_a_long_prompt_is_kept(make):
    decoder, options = make(), DecodingOptions(sample_length=8)
    limit = 64 // 2 - 1
    long = tuple(np.random.default_rng(0).integers(0, 256, 200).tolist())
    assert decoder.decode(WindowText(long), options) == decoder.decode(WindowText(long[-limit:]), options)
    assert decoder.decode(WindowText(long), options) != decoder.decode(WindowText(long[:limit]), options)


def test_sampling_stops_when_the_positions_are_used_up(make):
    never_ends = DecodingOptions(timestamps=False, suppressed=(50257,), sample_length=64)
    prompted, plain = (make().decode(text, never_ends) for text in (WindowText(tuple(range(40))), WindowText()))
    assert len(plain.tokens) == 64 - 4 + 1, "the last token has no position of its own"
    assert len(prompted.tokens) == 64 - 4 + 1 - 32


def test_a_sample_length_limits_the_tokens_and_the_prefix(make):
    decoder = make()
    options = DecodingOptions(timestamps=False, suppressed=(50257,), sample_length=30)
    long = WindowText(prefix=(5, 6, 7, 8))
    assert len(decoder.decode(long, options).tokens) == 30
    assert decoder.decode(long, options) == decoder.decode(WindowText(prefix=(7, 8)), options)


def test_a_prefix_beyond_the_positions_is_refused(make):
    assert_refused(
        "prefix must leave room", lambda: make().decode(WindowText(prefix=tuple(range(70))), DecodingOptions())
    )


def test_tokens_are_drawn_in_proportion_to_their_probabilities():
    logits, random = np.log(np.array([0.1, 0.6, 0.3, 1e-30], np.float32)), np.random.default_rng(0)
    logits[3] = -np.inf  # suppressed
    drawn = np.bincount([sample_token(logits, 1.0, random) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(drawn, [0.1, 0.6, 0.3, 0], atol=0.03)
    assert drawn[3] == 0


END, VOCABULARY, LONGEST = 3, 6, 3


def logits_after(tokens: tuple[int, ...]) -> np.ndarray:
    """A language of random numbers."""
    return np.random.default_rng([7, *tokens]).standard_normal(VOCABULARY).astype(np.float32)


def log_probability(tokens: tuple[int, ...]) -> float:
    return sum(
        float(row[token]) - log_sum_exp(row)
        for row, token in ((logits_after(tokens[:index]), token) for index, token in enumerate(tokens))
    )


def search(size: int, enough: int) -> BeamSearch:
    found = BeamSearch(size, enough, END)
    for _ in range(LONGEST):
        found.advance(np.stack([logits_after(tokens) for tokens, _ in found.beams]))
        if found.complete:
            break
    return found


def test_as_many_beams_as_there_are_sequences_find_the_likeliest_ones():
    beams = dict(search(125, 1000).beams)
    text = [token for token in range(VOCABULARY) if token != END]
    everything = {tokens: log_probability(tokens) for tokens in product(text, repeat=LONGEST)}
    assert len(beams) == 125
    assert beams == pytest.approx(everything)
    ended = search(4, 1000).ended
    assert ended
    assert ended == pytest.approx({tokens: log_probability((*tokens, END)) for tokens in ended})


def test_every_beam_continues_the_one_that_it_names():
    found = BeamSearch(3, 100, END)
    for _ in range(4):
        before = found.beams
        sources = found.advance(np.stack([logits_after(tokens) for tokens, _ in before]))
        assert [tokens[:-1] for tokens, _ in found.beams] == [before[source][0] for source in sources]


def test_the_search_is_complete_when_enough_sequences_ended_and_takes_no_more():
    assert len(search(5, 2).ended) == 2
    assert not search(5, 50).complete


def test_beams_fill_up_what_has_not_ended():
    found = BeamSearch(2, 2, END)
    row = np.zeros(VOCABULARY, np.float32)
    row[END] = -50
    found.advance(np.stack([row, row]))
    assert [len(tokens) for tokens, _ in found.candidates()] == [1, 1]


def test_a_backend_that_cannot_copy_lanes_is_refused(transcriber):
    decoder = WindowDecoder(transcriber.backend, transcriber.decoder_config, transcriber.special, candidates=2)
    decoder.decoder = SimpleNamespace(lanes=2, copies_lanes=False)
    assert_refused(
        "has no beam search: use backend=torch, or leave the beams out",
        lambda: decoder.decode(WindowText(), DecodingOptions(beam_size=2)),
    )


def test_one_beam_takes_the_likeliest_tokens(transcriber):
    decoder = WindowDecoder(transcriber.backend, transcriber.decoder_config, transcriber.special)
    decoder.set_states(np.random.default_rng(0).standard_normal((1, 200, 8)).astype(np.float32))
    greedy = decoder.decode(WindowText(), DecodingOptions())
    assert decoder.decode(WindowText(), DecodingOptions(beam_size=1)).tokens == greedy.tokens


def test_beams_are_searched_at_temperature_0_only():
    options = DecodingOptions(beam_size=4, best_of=3)
    assert (options.candidates, replace(options, temperature=0.2).candidates) == (4, 3)
