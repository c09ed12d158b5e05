"""From logits to a code: the chain of transformers 4.31 that upstream samples with, one row at a time.

Order: repetition penalty, typical (when asked for), temperature, top-k, top-p, choice.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ane.system.errors import UserError

# ids and their probabilities → the chosen id
Choose = Callable[[np.ndarray, np.ndarray], int]


@dataclass(frozen=True)
class Sampling:
    """How codes are drawn. The defaults are upstream's presets; top_k 50 is transformers' own default."""

    temperature: float = 0.8
    repetition_penalty: float = 2.0
    top_k: int = 50
    top_p: float = 0.8
    typical_mass: float | None = None
    max_codes: int = 500

    def __post_init__(self):
        if not 0.01 <= self.temperature <= 100:
            raise UserError(f"--temperature {self.temperature}: it goes from 0.01 to 100 (0.8 is upstream's)")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise UserError(f"--repetition-penalty {self.repetition_penalty}: it goes from 0.01 to 100 (1 is none)")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top-p {self.top_p}: it is a share of probability, above 0 and at most 1")
        if self.typical_mass is not None and not 0 < self.typical_mass < 1:
            raise UserError(f"--typical-mass {self.typical_mass}: it is a share of probability, between 0 and 1")
        if self.top_k < 1:
            raise UserError(f"--top-k {self.top_k}: at least one code must be left to choose")


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def repetition_penalty(scores: np.ndarray, history: np.ndarray, penalty: float) -> np.ndarray:
    """Divide the positive and multiply the negative scores of ids met before (Keskar et al. 2019)."""
    scores = scores.copy()
    met = scores[history]
    scores[history] = np.where(met < 0, met * np.float32(penalty), met / np.float32(penalty))
    return scores


def typical(scores: np.ndarray, mass: float) -> np.ndarray:
    """Keep the ids whose information is nearest the entropy, up to ``mass`` (Meister et al. 2022)."""
    logp = log_softmax(scores)
    p = np.exp(logp)
    entropy = -np.nansum(logp * p)
    order = np.argsort(np.abs(-logp - entropy), kind="stable")
    cumulative = np.exp(log_softmax(scores[order])).cumsum(dtype=np.float32)
    last = min(int((cumulative < mass).sum()), len(scores) - 1)
    kept = np.full_like(scores, -np.inf)
    keep = order[:last + 1]
    kept[keep] = scores[keep]
    return kept


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Keep the k best; ties with the k-th stay."""
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


def filtered(scores: np.ndarray, history: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The whole chain on one row (V,) float32; ``history`` holds every id met, upstream's fake prefix included."""
    scores = repetition_penalty(scores, history, sampling.repetition_penalty)
    if sampling.typical_mass is not None:
        scores = typical(scores, sampling.typical_mass)
    scores = scores / np.float32(sampling.temperature)
    return top_p(top_k(scores, sampling.top_k), sampling.top_p)


def distribution(scores: np.ndarray, history: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Ids that may follow, ascending, and their probabilities."""
    scores = filtered(scores, history, sampling)
    ids = np.flatnonzero(scores > -np.inf)
    return ids, np.exp(log_softmax(scores[ids]))


def by_inverse_cdf(rng: np.random.Generator) -> Choose:
    """Choose with one uniform number a code: the id in whose share of the cumulative probability it falls."""
    def choose(ids: np.ndarray, probabilities: np.ndarray) -> int:
        cumulative = probabilities.cumsum(dtype=np.float64)
        index = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
        return int(ids[min(int(index), len(ids) - 1)])
    return choose
