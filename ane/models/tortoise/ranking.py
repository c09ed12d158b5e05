"""Ranking candidates: CLVP scores codes against the text (upstream api.py)."""

from collections.abc import Callable, Sequence

import numpy as np

from ane.backends.base import Backend
from ane.system.errors import UserError

CANDIDATES_PER_CALL = 8     # enough to keep the hardware busy; more would only take more memory


def score_candidates(backend: Backend, tokens: Sequence[int], codes: np.ndarray,
                     progress: Callable[[int], None] = lambda done: None) -> np.ndarray:
    """Scores (n,) float32 of candidates, higher is better.

    Args:
        tokens: the text's ids with a stop token at the end, without a start token.
        codes: (n, S) int64, padded to one length by ``ane.models.tortoise.decoding.pad_codes``.
        progress: called with the number of candidates scored so far.

    Raises:
        UserError: scores that are NaN or infinite.
    """
    text = backend.run("clvp_text", tokens=np.array([tokens], dtype=np.int64))
    scores = []
    for start in range(0, len(codes), CANDIDATES_PER_CALL):
        speech = backend.run("clvp_speech", codes=codes[start:start + CANDIDATES_PER_CALL])
        scores.append((speech @ text.T)[:, 0])
        progress(min(start + CANDIDATES_PER_CALL, len(codes)))
    total = np.concatenate(scores)
    if not np.isfinite(total).all():
        raise UserError("the ranking network returned NaN or infinite scores: the weights are damaged, or the "
                        "precision is too low for them (use precision=fp32)")
    return total


def best_candidates(scores: np.ndarray, count: int) -> list[int]:
    """Indices of the ``count`` best scores, best first; of equal scores the earlier candidate comes first."""
    return [int(index) for index in np.argsort(-scores, kind="stable")[:count]]
