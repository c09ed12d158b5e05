"""Ranking candidates: CLVP scores codes against the text, CVVP against the voice (upstream api.py)."""

from collections.abc import Callable, Sequence

import numpy as np

from ane.backends.base import Backend
from ane.system.errors import UserError

CANDIDATES_PER_CALL = 8     # enough to keep the hardware busy; more would only take more memory


def score_candidates(backend: Backend, tokens: Sequence[int], codes: np.ndarray, cvvp_amount: float = 0.0,
                     clip_mels: np.ndarray | None = None,
                     progress: Callable[[int], None] = lambda done: None) -> np.ndarray:
    """Scores (n,) float32 of candidates, higher is better: cvvp·a + clvp·(1 − a).

    Args:
        tokens: the text's ids with a stop token at the end, without a start token.
        codes: (n, S) int64, padded to one length by ``ane.models.tortoise.decoding.pad_codes``.
        cvvp_amount: a, share of CVVP in the score, from 0 to 1.
        clip_mels: mels of the voice's clips (clips, 80, L), which CVVP compares with the codes.
        progress: called with the number of candidates scored so far by the current network.

    Raises:
        UserError: CVVP with a voice that has no clips, or scores that are NaN or infinite.
    """
    check_clips(cvvp_amount, clip_mels)
    total = np.zeros(len(codes), dtype=np.float32)
    if cvvp_amount < 1:
        text = backend.run("clvp_text", tokens=np.array([tokens], dtype=np.int64))
        total += np.float32(1 - cvvp_amount) * _compare(backend, "clvp_speech", text, codes, progress)
    if cvvp_amount:
        clips = backend.run("cvvp_clip", mel=clip_mels)
        total += np.float32(cvvp_amount) * _compare(backend, "cvvp_speech", clips, codes, progress)
    if not np.isfinite(total).all():
        raise UserError("the ranking networks returned NaN or infinite scores: the weights are damaged, or the "
                        "precision is too low for them (use precision=fp32)")
    return total


def check_clips(cvvp_amount: float, clip_mels: Sequence[np.ndarray] | np.ndarray | None) -> None:
    """Raise UserError when CVVP is used and the voice has no clips to compare with."""
    if cvvp_amount and (clip_mels is None or not len(clip_mels)):
        raise UserError("cvvp_amount compares candidates with the clips of a voice, and this voice has only latents: "
                        "use a folder of clips as the voice, or set it to 0")


def _compare(backend: Backend, stage: str, rows: np.ndarray, codes: np.ndarray,
             progress: Callable[[int], None]) -> np.ndarray:
    """The dot products of each candidate's speech vector with ``rows`` (r, E), averaged over the rows: (n,)."""
    scores = []
    for start in range(0, len(codes), CANDIDATES_PER_CALL):
        speech = backend.run(stage, codes=codes[start:start + CANDIDATES_PER_CALL])
        scores.append((speech @ rows.T).mean(axis=1))
        progress(min(start + CANDIDATES_PER_CALL, len(codes)))
    return np.concatenate(scores)


def best_candidates(scores: np.ndarray, count: int) -> list[int]:
    """Indices of the ``count`` best scores, best first; of equal scores the earlier candidate comes first."""
    return [int(index) for index in np.argsort(-scores, kind="stable")[:count]]
