"""The median filter against brute force, and the times of tokens."""

from itertools import product

import numpy as np
import pytest

from ane.models.whisper.words import median_filter, token_times


@pytest.mark.parametrize(("width", "length"), list(product((1, 3, 7), (4, 5, 8, 30))))
def test_a_value_becomes_the_median_of_its_neighbours(width, length):
    x, half = np.random.default_rng(length).standard_normal((2, length)).astype(np.float32), width // 2
    mirrored = [abs(index) if index < length else 2 * (length - 1) - index for index in range(-half, length + half)]
    expected = [[np.median([row[mirrored[at + offset]] for offset in range(width)]) for at in range(length)]
                for row in x]
    assert np.array_equal(median_filter(x, width), np.array(expected, np.float32))


def test_what_is_too_short_to_be_mirrored_stays():
    x = np.array([[3.0, 1.0, 2.0]], np.float32)
    assert np.array_equal(median_filter(x, 7), x)


def test_tokens_begin_where_their_attention_is():
    """Two heads that attend to one part of the sound after the other, one of them far less clearly."""
    begins = [0, 20, 50, 90]
    scores = np.zeros((2, 6, 120), np.float32)
    for token, (start, end) in enumerate(zip(begins, [*begins[1:], 120], strict=True)):
        scores[0, token + 1, start:end] = 8
        scores[1, token + 1, start:end] = 2
    assert token_times(scores, first=1).tolist() == begins


def test_heads_that_attend_to_nothing_in_particular_give_times_all_the_same():
    times = token_times(np.zeros((1, 5, 40), np.float32), first=1)
    assert len(times) == 3
    assert (np.diff(times) >= 0).all()
