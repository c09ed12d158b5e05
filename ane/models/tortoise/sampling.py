"""Draw the random numbers of a request, and sample codes from logits as transformers 4.31 does.

The logits processors run in upstream's order: repetition penalty, typical (optional), temperature, top-k, top-p.
"""

from collections.abc import Callable

import numpy as np

from ane.models.tortoise.settings import Sampling

# takes ids and their probabilities, and returns the sampled id
CodeSampler = Callable[[np.ndarray, np.ndarray], int]


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def repetition_penalty(scores: np.ndarray, history: np.ndarray, penalty: float) -> np.ndarray:
    """Divide the positive and multiply the negative scores of ids in ``history`` (Keskar et al. 2019)."""
    scores = scores.copy()
    repeated = scores[history]
    scores[history] = np.where(repeated < 0, repeated * np.float32(penalty), repeated / np.float32(penalty))
    return scores


def typical(scores: np.ndarray, mass: float) -> np.ndarray:
    """Keep the ids with information nearest the entropy, up to ``mass`` in probability (Meister et al. 2022)."""
    logp = log_softmax(scores)
    p = np.exp(logp)
    with np.errstate(invalid="ignore"):  # -inf · 0: an excluded id has no part in the sum
        entropy = -np.nansum(logp * p)
    order = np.argsort(np.abs(-logp - entropy), kind="stable")
    cumulative = np.exp(log_softmax(scores[order])).cumsum(dtype=np.float32)
    last = min(int((cumulative < mass).sum()), len(scores) - 1)
    typical_scores = np.full_like(scores, -np.inf)
    keep = order[: last + 1]
    typical_scores[keep] = scores[keep]
    return typical_scores


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Keep the k largest scores, and all scores equal to the k-th."""
    k = min(k, len(scores))
    threshold = np.partition(scores, -k)[-k]
    return np.where(scores < threshold, np.float32(-np.inf), scores)


def top_p(scores: np.ndarray, p: float) -> np.ndarray:
    """Drop the least likely ids while their cumulative probability is at most 1 − p (Holtzman et al. 2020)."""
    ids = np.flatnonzero(scores > -np.inf)
    order = ids[np.argsort(scores[ids], kind="stable")]
    cumulative = np.exp(log_softmax(scores[order])).cumsum(dtype=np.float32)
    drop = cumulative <= np.float32(1 - p)
    drop[-1] = False
    scores = scores.copy()
    scores[order[drop]] = -np.inf
    return scores


def process_scores(scores: np.ndarray, history: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Apply all processors to scores (V,) float32. ``history``: earlier ids, with upstream's prefix placeholder."""
    scores = repetition_penalty(scores, history, sampling.repetition_penalty)
    if sampling.typical_mass is not None:
        scores = typical(scores, sampling.typical_mass)
    scores = scores / np.float32(sampling.temperature)
    return top_p(top_k(scores, sampling.top_k), sampling.top_p)


def distribution(scores: np.ndarray, history: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids that can be sampled, ascending, and their probabilities, for inputs of ``process_scores``."""
    scores = process_scores(scores, history, sampling)
    ids = np.flatnonzero(scores > -np.inf)
    return ids, np.exp(log_softmax(scores[ids]))


class InverseCdfSampler:
    """A ``CodeSampler`` that draws a uniform number for each code and finds it in the cumulative distribution."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng

    def __call__(self, ids: np.ndarray, probabilities: np.ndarray) -> int:
        cumulative = probabilities.cumsum(dtype=np.float64)
        index = np.searchsorted(cumulative, self.rng.random() * cumulative[-1], side="right")
        return int(ids[min(int(index), len(ids) - 1)])


VOICE, CANDIDATE, DIFFUSION, VOCODER = range(4)


class Randomness:
    """Random streams of one request, each with its own key.

    ===========  ====================  ===========================================================================
    stream       key                   draws, in order
    ===========  ====================  ===========================================================================
    voice                              for each ``random`` voice the decoder's noise (1, D), then the diffusion
                                       decoder's (1, C). Crops of long clips always use seed 0, so that a voice stays
                                       the same in every request
    candidate    chunk, candidate      one uniform number per code
    diffusion    chunk, rank           x_T (1, 100, L), then for sampler ``p`` one (1, 100, L) per step, the last unused
    vocoder      chunk, rank           UnivNet's noise, one row per frame: (L + 10, 64), at once or incrementally;
                                       or the source filter's, one number per sample
    ===========  ====================  ===========================================================================
    """

    def __init__(self, seed: int):
        self.seed = seed

    def _stream(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))

    def voice(self) -> np.random.Generator:
        return self._stream(VOICE)

    def candidate(self, chunk: int, candidate: int) -> np.random.Generator:
        return self._stream(CANDIDATE, chunk, candidate)

    def diffusion(self, chunk: int, rank: int) -> np.random.Generator:
        return self._stream(DIFFUSION, chunk, rank)

    def vocoder(self, chunk: int, rank: int) -> np.random.Generator:
        return self._stream(VOCODER, chunk, rank)
