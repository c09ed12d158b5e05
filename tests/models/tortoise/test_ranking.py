"""Scores of candidates: their order, and which are refused."""

import numpy as np
import pytest

from ane.models.tortoise.ranking import CANDIDATES_PER_CALL, best_candidates, score_candidates
from ane.system.errors import UserError

CODES = np.arange(20)[:, None].repeat(3, axis=1)        # (20, 3): candidate i consists of code i


class FirstCodeBackend:
    """A backend of CLVP whose score of a candidate is its first code."""

    def __init__(self, factor: float = 1.0):
        self.factor, self.batches = factor, []

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        if stage == "clvp_text":
            return np.ones((1, 1), np.float32)
        self.batches.append(len(inputs["codes"]))
        return inputs["codes"][:, :1].astype(np.float32) * np.float32(self.factor)


def test_the_best_candidates_come_first():
    assert best_candidates(np.array([0.1, 0.7, -2.0, 0.5]), 3) == [1, 3, 0]


def test_of_equal_scores_the_earlier_candidate_comes_first():
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
    with pytest.raises(UserError, match="the ranking networks returned NaN or infinite scores"):
        score_candidates(FirstCodeBackend(factor), [1, 2], CODES[1:])


@pytest.mark.parametrize("clips", [None, np.empty((0, 80, 517), np.float32)])
def test_cvvp_without_clips_is_refused(clips):
    with pytest.raises(UserError, match="this voice has only latents"):
        score_candidates(FirstCodeBackend(), [1, 2], CODES, 0.5, clips)
