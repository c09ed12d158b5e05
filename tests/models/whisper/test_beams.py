"""Beam search, against all sequences."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from ane.models.whisper.beams import BeamSearch, likeliest, sequence_score
from ane.models.whisper.decoding import DecodingOptions, WindowDecoder, WindowText
from ane.models.whisper.rules import log_sum_exp
from ane.models.whisper.transcription import TranscriptionOptions
from ane.system.errors import UserError

END, VOCABULARY, LONGEST = 3, 6, 3


def logits_after(tokens: tuple[int, ...]) -> np.ndarray:
    """A language of random numbers."""
    return np.random.default_rng([7, *tokens]).standard_normal(VOCABULARY).astype(np.float32)


def log_probability(tokens: tuple[int, ...]) -> float:
    return sum(float(row[token]) - log_sum_exp(row) for row, token in
               ((logits_after(tokens[:index]), token) for index, token in enumerate(tokens)))


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


def test_an_ended_sequence_has_the_probability_of_its_end():
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


def test_the_likeliest_are_in_order():
    row = np.random.default_rng(0).permutation(100).astype(np.float32)
    assert row[likeliest(row, 4)].tolist() == [99, 98, 97, 96]


def test_scores():
    assert sequence_score(-6.0, 3, None) == -2
    assert sequence_score(-6.0, 0, None) == -6
    assert sequence_score(-6.0, 7, 1.0) == -3
    assert sequence_score(-6.0, 7, 0.0) == -6


def test_a_backend_that_cannot_copy_lanes_is_refused(transcriber):
    decoder = WindowDecoder(transcriber.backend, transcriber.decoder_config, transcriber.special, candidates=2)
    decoder.decoder = SimpleNamespace(lanes=2, copies_lanes=False)
    with pytest.raises(UserError, match="cannot search beams: use backend=torch, or leave the beams out"):
        decoder.decode([WindowText()], DecodingOptions(beam_size=2))


def test_one_beam_takes_the_likeliest_tokens(transcriber, noise):
    decoder = WindowDecoder(transcriber.backend, transcriber.decoder_config, transcriber.special)
    decoder.set_states(np.random.default_rng(0).standard_normal((1, 200, 8)).astype(np.float32))
    greedy = decoder.decode([WindowText()], DecodingOptions())
    assert decoder.decode([WindowText()], DecodingOptions(beam_size=1))[0].tokens == greedy[0].tokens


def test_beams_are_searched_at_temperature_0_only():
    options = DecodingOptions(beam_size=4, best_of=3)
    assert (options.candidates, replace(options, temperature=0.2).candidates) == (4, 3)


@pytest.mark.parametrize(("options", "message"), [
    ({"beam_size": 0}, "beam_size must be at least 1"),
    ({"patience": 2.0}, "patience has no effect without beams: add beam_size=5"),
    ({"beam_size": 2, "patience": 0.1}, "patience must be such that"),
    ({"beam_size": 2, "patience": float("nan")}, "patience must be such that"),
    ({"length_penalty": float("nan")}, "length_penalty must be from 0 to 1"),
    ({"length_penalty": 1.5}, "length_penalty must be from 0 to 1")])
def test_values_that_mean_nothing_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        TranscriptionOptions(**options)
