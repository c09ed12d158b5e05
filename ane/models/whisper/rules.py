"""Which tokens may follow: Whisper's suppression and timestamp rules (openai/whisper decoding.py, logit filters)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ane.models.whisper.tokens import SpecialTokens


@dataclass(frozen=True)
class TokenRules:
    """Rules for the logits of one sequence.

    Attributes:
        suppressed: tokens that are never sampled. blank: tokens that are not sampled first.
        timestamps: whether text is framed by timestamps.
        max_initial_timestamp: index of the latest timestamp that may come first (50 is 1.0 s); None: any.
    """

    special: SpecialTokens
    suppressed: tuple[int, ...] = ()
    blank: tuple[int, ...] = ()
    timestamps: bool = True
    max_initial_timestamp: int | None = 50

    def apply(self, logits: np.ndarray, sampled: Sequence[int]) -> None:
        """Set the logits (V,) float32 of tokens that must not follow ``sampled`` to −∞, in place."""
        if not sampled:
            logits[list(self.blank)] = -np.inf
        logits[list(self.suppressed)] = -np.inf
        if self.timestamps:
            self._apply_timestamp_rules(logits, sampled)

    def _apply_timestamp_rules(self, logits: np.ndarray, sampled: Sequence[int]) -> None:
        """Timestamps come in pairs, one that ends a segment and one that begins the next, and never decrease.

        The first token is a timestamp. Where all timestamps together are likelier than every text token, only
        timestamps are allowed.
        """
        first = self.special.timestamps
        logits[self.special.no_timestamps] = -np.inf
        after_timestamp = len(sampled) >= 1 and sampled[-1] >= first
        after_pair = after_timestamp and (len(sampled) < 2 or sampled[-2] >= first)
        if after_pair:
            logits[first:] = -np.inf                    # a pair, or the first timestamp: text follows
        elif after_timestamp:
            logits[:self.special.end] = -np.inf         # a segment has ended: the next begins, or all ends
        latest = next((token for token in reversed(sampled) if token >= first), None)
        if latest is not None:
            # the end of a segment is after its beginning; the beginning of one may equal the end before it
            logits[first:latest if after_timestamp and not after_pair else latest + 1] = -np.inf
        if not sampled:
            logits[:first] = -np.inf
            if self.max_initial_timestamp is not None:
                logits[first + self.max_initial_timestamp + 1:] = -np.inf
        if log_sum_exp(logits[first:]) > logits[:first].max():
            logits[:first] = -np.inf


def log_sum_exp(logits: np.ndarray) -> float:
    """ln Σ exp(logits) of (n,) float32, in float64; −∞ when all are."""
    highest = float(logits.max())
    if highest == -np.inf:
        return -np.inf
    return highest + float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))
