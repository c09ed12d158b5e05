"""Test the choice of codes and candidates: a request's random numbers, sampling, the ends of codes, ranking."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.models.tortoise.decoding import (
    CANDIDATES_PER_CALL,
    best_candidates,
    pad_codes,
    score_candidates,
    trimmed_length,
)
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.sampling import InverseCdfSampler, Randomness, Sampling, top_p, typical
from ane.system.errors import UserError


def test_the_defaults_are_upstreams():
    assert Sampling() == Sampling(
        temperature=0.8, repetition_penalty=2.0, top_k=50, top_p=0.8, typical_mass=None, max_codes=500
    )


@pytest.mark.parametrize(
    ("parameter", "allowed", "refused"),
    [
        ("temperature", [0.01, 100], [0.0099, 100.1, 0, -1, np.nan, np.inf]),
        ("repetition_penalty", [0.01, 1, 100], [0.0099, 100.1, 0, np.nan]),
        ("top_p", [0.001, 1], [0, 1.001, -0.1, np.nan]),
        ("typical_mass", [None, 0.001, 0.999], [0, 1, np.nan]),
        ("top_k", [1, 10**6], [0, -1]),
    ],
)
def test_each_parameter_has_limits_on_both_sides(parameter, allowed, refused):
    for value in allowed:
        assert getattr(Sampling(**{parameter: value}), parameter) == value
    for value in refused:
        with pytest.raises(UserError, match=f"^{parameter} must be .*got {value}$"):
            Sampling(**{parameter: value})


def test_top_p_drops_codes_whose_probability_together_is_exactly_the_rest():
    """As transformers 4.31 does: cumulative ≤ 1 − p."""
    assert np.isfinite(top_p(np.zeros(2, np.float32), 0.5)).tolist() == [False, True]


def test_typical_sampling_keeps_no_more_codes_than_reach_the_mass():
    assert np.isfinite(typical(np.zeros(4, np.float32), 0.5)).tolist() == [True, True, False, False]


def test_the_most_likely_code_stays_however_small_top_p_is():
    kept = top_p(np.array([3, 9, 1, 8], np.float32), 1e-9)
    np.testing.assert_array_equal(kept, np.array([-np.inf, 9, -np.inf, -np.inf], np.float32))


def test_codes_are_sampled_as_often_as_they_are_probable():
    sample = InverseCdfSampler(np.random.default_rng(0))
    ids, probabilities = np.array([3, 5, 11]), np.array([0.2, 0.5, 0.3], dtype=np.float32)
    sampled = [sample(ids, probabilities) for _ in range(4000)]
    shares = [sampled.count(code) / len(sampled) for code in ids]
    np.testing.assert_allclose(shares, probabilities, atol=0.03)


def test_the_largest_random_number_samples_the_last_code():
    class LargestNumber:
        def random(self) -> float:
            return 1.0 - 2**-53

    assert InverseCdfSampler(LargestNumber())(np.array([4, 9]), np.array([0.5, 0.5], dtype=np.float32)) == 9


def numbers(rng: np.random.Generator) -> tuple[float, ...]:
    return tuple(rng.random(4))


def test_the_same_seed_gives_the_same_streams_in_any_order():
    first, second = Randomness(7), Randomness(7)
    assert numbers(first.candidate(1, 2)) == numbers(second.candidate(1, 2))
    second.vocoder(0, 0).random(100)
    assert numbers(first.diffusion(0, 1)) == numbers(second.diffusion(0, 1))


def test_all_streams_of_a_request_differ():
    randomness = Randomness(7)
    streams = [
        randomness.voice(),
        randomness.diffusion(0, 0),
        randomness.vocoder(0, 0),
        randomness.vocoder(0, 1),
        *(randomness.candidate(chunk, index) for chunk in range(3) for index in range(3)),
    ]
    assert len({numbers(stream) for stream in streams}) == len(streams)


OFFICIAL = UnifiedVoiceConfig()


@given(st.lists(st.integers(0, 8191), max_size=500))
def test_padded_codes_have_the_full_length_and_keep_what_was_sampled(codes):
    padded = pad_codes(codes, 500, OFFICIAL)
    assert padded.shape == (500,)
    kept = len(codes) if len(codes) == 500 else min(len(codes), 497)
    np.testing.assert_array_equal(padded[:kept], codes[:kept])
    assert trimmed_length(padded, OFFICIAL) >= min(OFFICIAL.calm_run, 500)


@given(st.integers(0, 480), st.integers(0, OFFICIAL.calm_run))
def test_eight_silent_codes_are_kept_at_the_end(spoken, silent):
    """Silent codes that were sampled count among the eight."""
    codes = [7] * spoken + [OFFICIAL.calm_token] * silent
    assert trimmed_length(pad_codes(codes, 500, OFFICIAL), OFFICIAL) == spoken + OFFICIAL.calm_run


def test_silence_between_words_of_more_than_eight_codes_ends_the_latents():
    calm, run = OFFICIAL.calm_token, OFFICIAL.calm_run
    assert trimmed_length([7] * 5 + [calm] * run + [7] * 5, OFFICIAL) == 10 + run
    assert trimmed_length([7] * 5 + [calm] * (run + 1) + [7] * 5, OFFICIAL) == 5 + run


CODES = np.arange(20)[:, None].repeat(3, axis=1)  # (20, 3): candidate i consists of code i


class FirstCodeBackend:
    """A backend of CLVP whose score of a candidate is its first code."""

    def __init__(self, factor: float = 1.0):
        self.factor, self.batches = factor, []

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        if stage == "clvp_text":
            return np.ones((1, 1), np.float32)
        self.batches.append(len(inputs["codes"]))
        return inputs["codes"][:, :1].astype(np.float32) * np.float32(self.factor)


def test_the_best_candidates_come_first_and_of_equal_ones_the_earlier():
    assert best_candidates(np.array([0.1, 0.7, -2.0, 0.5]), 3) == [1, 3, 0]
    scores = np.zeros(256, np.float32)
    scores[[40, 200]] = 1
    assert best_candidates(scores, 256) == [40, 200, *(index for index in range(256) if index not in (40, 200))]


def test_candidates_are_scored_in_batches_and_progress_counts_them():
    backend, done = FirstCodeBackend(), []
    scores = score_candidates(backend, [1, 2], CODES, progress=done.append)
    np.testing.assert_array_equal(scores, np.arange(20))
    assert max(backend.batches) == CANDIDATES_PER_CALL
    assert done == [8, 16, 20]


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_refused(factor):
    """As networks in too low a precision would give them."""
    with pytest.raises(UserError, match="the ranking network returned NaN or infinite scores"):
        score_candidates(FirstCodeBackend(factor), [1, 2], CODES[1:])
