"""Sample codes from logits as transformers 4.31 does, and give each part of a request its own random numbers.

The logits processors run in upstream's order: repetition penalty, typical sampling (optional), temperature, top-k,
top-p.
"""

from collections.abc import Callable

import numpy as np

from ane.models.tortoise.settings import Sampling

# A function that takes ids and their probabilities, and returns the id that it sampled.
CodeSampler = Callable[[np.ndarray, np.ndarray], int]


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def repetition_penalty(scores: np.ndarray, history: np.ndarray, penalty: float) -> np.ndarray:
    """Lower the scores of the ids in ``history`` (Keskar et al. 2019).

    A positive score is divided by ``penalty``, and a negative score is multiplied by it.
    """
    scores = scores.copy()
    repeated = scores[history]
    scores[history] = np.where(repeated < 0, repeated * np.float32(penalty), repeated / np.float32(penalty))
    return scores


def typical(scores: np.ndarray, mass: float) -> np.ndarray:
    """Keep the ids whose −ln p is nearest to the entropy, until their probabilities reach ``mass``.

    The other scores become -inf. The method is typical sampling (Meister et al. 2022).
    """
    logp = log_softmax(scores)
    p = np.exp(logp)
    with np.errstate(invalid="ignore"):  # the product -inf · 0 of an excluded id is NaN, which nansum skips
        entropy = -np.nansum(logp * p)
    order = np.argsort(np.abs(-logp - entropy), kind="stable")
    cumulative = np.exp(log_softmax(scores[order])).cumsum(dtype=np.float32)
    last = min(int((cumulative < mass).sum()), len(scores) - 1)
    typical_scores = np.full_like(scores, -np.inf)
    keep = order[: last + 1]
    typical_scores[keep] = scores[keep]
    return typical_scores


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Keep the k largest scores, and all scores that equal the k-th. The other scores become -inf."""
    k = min(k, len(scores))
    threshold = np.partition(scores, -k)[-k]
    return np.where(scores < threshold, np.float32(-np.inf), scores)


def top_p(scores: np.ndarray, p: float) -> np.ndarray:
    """Drop the least likely ids, as many as together have a probability of at most 1 − p (Holtzman et al. 2020)."""
    ids = np.flatnonzero(scores > -np.inf)
    order = ids[np.argsort(scores[ids], kind="stable")]
    cumulative = np.exp(log_softmax(scores[order])).cumsum(dtype=np.float32)
    drop = cumulative <= np.float32(1 - p)
    drop[-1] = False
    scores = scores.copy()
    scores[order[drop]] = -np.inf
    return scores


def process_scores(scores: np.ndarray, history: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Apply all processors to scores (V,) float32.

    ``history`` holds the ids so far. Each position of the prefix (the input before the codes) has upstream's
    placeholder id.
    """
    scores = repetition_penalty(scores, history, sampling.repetition_penalty)
    if sampling.typical_mass is not None:
        scores = typical(scores, sampling.typical_mass)
    scores = scores / np.float32(sampling.temperature)
    return top_p(top_k(scores, sampling.top_k), sampling.top_p)


def distribution(scores: np.ndarray, history: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids that can be sampled, ascending, and their probabilities.

    The arguments are as for ``process_scores``.
    """
    scores = process_scores(scores, history, sampling)
    ids = np.flatnonzero(scores > -np.inf)
    return ids, np.exp(log_softmax(scores[ids]))


class InverseCdfSampler:
    """A ``CodeSampler`` that draws a uniform number for each code, and finds it in the cumulative distribution."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng

    def __call__(self, ids: np.ndarray, probabilities: np.ndarray) -> int:
        cumulative = probabilities.cumsum(dtype=np.float64)
        index = np.searchsorted(cumulative, self.rng.random() * cumulative[-1], side="right")
        return int(ids[min(int(index), len(ids) - 1)])


VOICE, CANDIDATE, DIFFUSION, VOCODER = range(4)


class Randomness:
    """Random generators of one request. Each method returns a new generator, whose seed depends on its arguments.

    ===========  ====================  ===========================================================================
    method       arguments             numbers that the caller draws, in order
    ===========  ====================  ===========================================================================
    voice                              for each ``random`` voice, the noise of the decoder's latent (1, D), then of
                                       the diffusion's latent (1, C). (The crop of a long clip always uses seed 0, so
                                       that a voice stays the same in every request)
    candidate    chunk, candidate      one uniform number per code
    diffusion    chunk, rank           x_T (1, 100, L). Sampler ``p`` then draws (1, 100, L) in each step, and does not
                                       use the last draw
    vocoder      chunk, rank           UnivNet: noise (L + 10, 64), one row per mel frame, in one draw or several.
                                       Source filter: one number per audio sample
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
