"""The suppression and timestamp rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.models.whisper.rules import TokenRules, log_sum_exp
from ane.models.whisper.tokens import SpecialTokens

SPECIAL = SpecialTokens.of(51865)
FIRST, END = SPECIAL.timestamps, SPECIAL.end


def allowed(sampled: list[int], rules: TokenRules | None = None, text: float = 20.0) -> np.ndarray:
    """Which tokens may follow, (V,) bool, where text is likelier than timestamps."""
    logits = np.zeros(51865, np.float32)
    logits[5] = text
    (rules or TokenRules(SPECIAL)).apply(logits, sampled)
    return np.isfinite(logits)


def test_the_first_token_is_a_timestamp_of_the_first_second():
    assert np.flatnonzero(allowed([])).tolist() == list(range(FIRST, FIRST + 51))


def test_text_follows_the_first_timestamp():
    follows = allowed([FIRST])
    assert not follows[FIRST:].any()
    assert follows[5]


def test_a_single_timestamp_after_text_is_followed_by_its_pair_or_the_end():
    follows = allowed([FIRST, 5, FIRST + 10], text=-1.0)
    assert not follows[:END].any()
    assert np.flatnonzero(follows[FIRST:])[0] == 10


def test_text_follows_a_pair():
    assert not allowed([FIRST, 5, FIRST + 10, FIRST + 10])[FIRST:].any()


def test_a_segment_ends_after_its_beginning():
    assert np.flatnonzero(allowed([FIRST + 3, 5])[FIRST:])[0] == 4


def test_only_timestamps_remain_where_they_are_likelier_together():
    assert not allowed([FIRST, 5], text=7.0)[:FIRST].any(), "ln 1500 is 7.3"
    assert allowed([FIRST, 5], text=7.5)[5]


def test_without_timestamps_only_suppression_applies():
    rules = TokenRules(SPECIAL, suppressed=(8, 9), blank=(220, END), timestamps=False)
    assert np.flatnonzero(~allowed([], rules)).tolist() == [8, 9, 220, END]
    assert np.flatnonzero(~allowed([5], rules)).tolist() == [8, 9]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 30.0))
def test_sampled_timestamps_never_decrease_and_segments_last(seed, text):
    """Whatever the logits are, timestamps come in pairs, in order, and no segment ends where it begins."""
    random, rules, sampled = np.random.default_rng(seed), TokenRules(SPECIAL), []
    for _ in range(30):
        logits = (random.standard_normal(51865) * 8).astype(np.float32)
        logits[random.integers(0, END, 3)] += np.float32(text)
        rules.apply(logits, sampled)
        token = int(logits.argmax())
        assert np.isfinite(logits[token])
        if token == END:
            break
        sampled.append(token)
    times = [token for token in sampled if token >= FIRST]
    assert times == sorted(times)
    assert all(end > begin for begin, end in zip(times[::2], times[1::2], strict=False))


def test_log_sum_exp_of_nothing_is_minus_infinity():
    assert log_sum_exp(np.full(3, -np.inf, np.float32)) == -np.inf
    assert log_sum_exp(np.zeros(4, np.float32)) == pytest.approx(np.log(4))
