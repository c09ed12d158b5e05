"""Times of words from the durations of their symbols, which FastSpeech predicts: exact to a mel frame."""

from collections.abc import Iterator, Sequence

import numpy as np

from ane.models.fastspeech.chunks import SymbolChunk
from ane.models.fastspeech.result import HOP, SAMPLE_RATE
from ane.models.fastspeech.text import IDS, SYMBOLS
from ane.models.spoken_words import SpokenWord, delivered_words, joined_pieces, matched_words


def chunk_words(chunk: SymbolChunk, repeats: np.ndarray) -> list[SpokenWord]:
    """The words of a chunk in seconds of its sound. ``repeats``: (T,) int64, frames of each symbol."""
    times = np.concatenate(([0], repeats.cumsum())) * HOP / SAMPLE_RATE
    return matched_words(chunk.text, [(word, (float(times[first]), float(times[last])))
                                      for word, first, last in symbol_words(chunk.ids)])


def symbol_words(ids: Sequence[int] | np.ndarray) -> Iterator[tuple[str, int, int]]:
    """Each word with its first symbol and the one after its last, without punctuation."""
    symbols = (SYMBOLS[number] for number in ids)
    return joined_pieces((symbol.removeprefix("@"), IDS[symbol] >= IDS["A"]) for symbol in symbols)


def words_of(chunks: Sequence[tuple[SymbolChunk, np.ndarray]], sounds: Sequence[np.ndarray],
             pause: float) -> list[SpokenWord]:
    """The words of all chunks, each with the frames of its symbols, in the time of their sounds joined with pauses."""
    words: list[SpokenWord] = []
    offset = 0.0
    for (chunk, repeats), sound in zip(chunks, sounds, strict=True):
        seconds = len(sound) / SAMPLE_RATE
        words += delivered_words(chunk_words(chunk, repeats), chunk.spoken_delivery, 0.0, seconds, offset)
        offset += seconds + round(pause * SAMPLE_RATE) / SAMPLE_RATE
    return words
