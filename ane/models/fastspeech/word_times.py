"""Times of words from the durations of their symbols, which FastSpeech predicts: exact to a mel frame."""

from collections.abc import Iterator, Sequence

import numpy as np

from ane.models.fastspeech.stages import HOP, SAMPLE_RATE
from ane.models.fastspeech.text import IDS, SYMBOLS, SymbolChunk
from ane.speech.words import SpokenWord, joined_pieces, matched_words


def chunk_words(chunk: SymbolChunk, repeats: np.ndarray) -> list[SpokenWord]:
    """The words of a chunk in seconds of its sound. ``repeats``: (T,) int64, frames of each symbol."""
    times = np.concatenate(([0], repeats.cumsum())) * HOP / SAMPLE_RATE
    return matched_words(chunk.text, [(word, (float(times[first]), float(times[last])))
                                      for word, first, last in symbol_words(chunk.ids)])


def symbol_words(ids: Sequence[int] | np.ndarray) -> Iterator[tuple[str, int, int]]:
    """Each word with its first symbol and the one after its last, without punctuation."""
    symbols = (SYMBOLS[number] for number in ids)
    return joined_pieces((symbol.removeprefix("@"), IDS[symbol] >= IDS["A"]) for symbol in symbols)
