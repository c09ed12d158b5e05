"""Beam search for one window (openai/whisper decoding.py, ``BeamSearchDecoder``)."""

from dataclasses import dataclass

import numpy as np

from ane.models.whisper.tokens import log_sum_exp

Tokens = tuple[int, ...]


@dataclass
class BeamSearch:
    """The likeliest unfinished sequences of a window, its beams, and those that ended.

    Attributes:
        size: number of beams. enough: ended sequences with which the search is complete. end: the end token.
        beams: tokens and log-probability of each; all are empty at first.
        ended: log-probability, with that of the end token, by tokens without it.
    """

    size: int
    enough: int
    end: int

    def __post_init__(self) -> None:
        self.beams: list[tuple[Tokens, float]] = [((), 0.0)] * self.size
        self.ended: dict[Tokens, float] = {}

    @property
    def complete(self) -> bool:
        return len(self.ended) >= self.enough

    def advance(self, logits: np.ndarray) -> np.ndarray:
        """Extend the beams by one token each, by logits (size, V) float32; the beam that each continues (size,) int64.

        Of all continuations the likeliest are kept, up to ``size`` that go on. Those above the last of them that end
        here have ended.
        """
        scores: dict[Tokens, tuple[float, int]] = {}
        for index, ((tokens, total), row) in enumerate(zip(self.beams, logits, strict=True)):
            scale = log_sum_exp(row)
            for token in likeliest(row, self.size + 1):
                scores[(*tokens, int(token))] = total + float(row[token]) - scale, index
        kept: list[tuple[Tokens, float]] = []
        sources = []
        ranked = sorted(scores.items(), key=lambda item: item[1][0], reverse=True)
        for tokens, (score, index) in ranked:
            if tokens[-1] != self.end:
                kept.append((tokens, score))
                sources.append(index)
            elif not self.complete:
                self.ended[tokens[:-1]] = score
            if len(kept) == self.size:
                break
        self.beams = kept
        return np.array(sources, np.int64)

    def candidates(self) -> list[tuple[Tokens, float]]:
        """Tokens and log-probabilities of the sequences that ended; if they are too few, the best beams too."""
        found = dict(self.ended)
        for tokens, score in sorted(self.beams, key=lambda beam: beam[1], reverse=True):
            if len(found) >= self.size:
                break
            found[tokens] = score
        return list(found.items())


def likeliest(row: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` highest values of row (V,), the highest first."""
    found = np.argpartition(-row, min(count, len(row)) - 1)[:count]
    return found[np.argsort(-row[found], kind="stable")]
