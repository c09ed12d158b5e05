"""Frames that are all there are vocoded in calls of few lengths, with little more than the frames themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.models.vocoders.streaming import FIRST_LENGTHS, LEAST, WHOLE, StreamingVocoder, call_lengths, vocoded_in_calls

HOP = 4


@pytest.mark.parametrize(("length", "first", "expected"), [
    (178, (), [128, 96]), (178, FIRST_LENGTHS, [60, 160]), (190, FIRST_LENGTHS, [80, 160]), (256, (), [256]),
    (50, (), [50]), (50, FIRST_LENGTHS, [50]), (600, (), [256, 224, 224]), (600, FIRST_LENGTHS, [60, 224, 224, 224])])
def test_calls_take_few_frames_beyond_those_of_the_sound(length, first, expected):
    assert call_lengths(length, 20, first) == expected


def test_a_vocoder_of_a_margin_that_no_call_holds_is_called_once():
    assert call_lengths(400, 128) == [400]


@given(length=st.integers(1, 3000), margin=st.integers(1, 40), first=st.sampled_from([(), FIRST_LENGTHS]))
def test_calls_have_few_lengths_and_cover_the_sound(length, margin, first):
    lengths = call_lengths(length, margin, first)
    assert sum(lengths) >= length + 2 * margin * (len(lengths) - 1)
    if length >= max(WHOLE[0] + LEAST, 2 * margin + LEAST + 32):
        assert set(lengths) <= {*WHOLE, *first}
        assert lengths[0] in (first or WHOLE)
    assert max(lengths) <= min(length, WHOLE[-1])


@given(length=st.integers(1, 700), margin=st.integers(1, 40), first=st.sampled_from([(), FIRST_LENGTHS]))
def test_the_pieces_are_those_of_one_call_with_all_frames(length, margin, first):
    def run(columns: np.ndarray) -> np.ndarray:
        """A network that reads ``margin`` frames on either side, and zeros beyond the ends."""
        called.append(columns.shape[1])
        sums = np.convolve(columns[0], np.ones(2 * margin + 1))[margin:-margin]
        return np.repeat(sums, HOP)

    columns, called = np.random.default_rng(length).integers(-9, 9, (1, length)).astype(np.float64), []
    whole = run(columns)
    called.clear()
    pieces = list(vocoded_in_calls(columns, margin, run, first))
    assert all(map(len, pieces))
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    if first and length > 100 and margin <= 20:
        assert len(pieces[0]) <= (FIRST_LENGTHS[-1] - margin) * HOP
    assert sum(called) <= length + 2 * margin * (len(called) - 1) + max(FIRST_LENGTHS[-1], 32 * len(called))
    vocoder = StreamingVocoder(margin, run, window=None)
    np.testing.assert_array_equal(np.concatenate([*vocoder.feed(columns), *vocoder.finish()]), whole)
