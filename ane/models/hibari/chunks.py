"""Text to chunks, each with no more phonemes than one pass takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ane.models.hibari.symbols import IDS, symbol_ids
from ane.speech.request import Chunk
from ane.system.errors import UserError
from ane.text import nothing_to_say_error, shorten, split
from ane.text.passages import Passage, whole_text, with_deliveries
from ane.text.phonemes import phonemise


@dataclass(frozen=True)
class PhonemeChunk(Chunk):
    """A piece of text spoken in one pass.

    Attributes:
        ids: (T,) int64. spans: each word with its first id and the one after its last.
    """

    ids: np.ndarray
    spans: Sequence[tuple[str, int, int]]


def split_into_phonemes(passages: Sequence[Passage], lengths: tuple[int, int] | None,
                        most: int, known: Mapping[str, int] = IDS, british: bool = False) -> list[PhonemeChunk]:
    """The chunks of passages, without those of which nothing can be spoken.

    Args:
        lengths: desired and maximum characters of a chunk; None: one chunk.
        most: the most ids of a chunk. known: the ids of phonemes. british: how words are pronounced.

    Raises:
        UserError: nothing to say, or a chunk that is too long and cannot be split or must not be.
    """
    def chunks_of(text: str) -> list[PhonemeChunk]:
        pieces = [text] if lengths is None else split(text, *lengths)
        return [chunk for piece in pieces for chunk in fitting(piece, lengths, most, known, british)]

    chunks = with_deliveries(passages, chunks_of)
    if not chunks:
        raise nothing_to_say_error(whole_text(passages))
    return [replace(chunk, delivery=delivery) for chunk, delivery in chunks]


def fitting(text: str, lengths: tuple[int, int] | None, most: int, known: Mapping[str, int],
            british: bool) -> list[PhonemeChunk]:
    """The chunk of ``text``, or those of its parts when it has more than ``most`` ids."""
    ids, spans = symbol_ids(phonemise(text, british), known)
    if not spans:
        return []
    if len(ids) <= most:
        return [PhonemeChunk(text, ids, spans)]
    half = max(2, (len(text) + 1) // 2)
    parts = [] if lengths is None else split(text, half * 3 // 4, half)
    if len(parts) < 2:
        raise UserError(f"{shorten(text)!r} is {len(ids)} phonemes long, and one pass takes at most {most}: "
                        + ("allow it to be split" if lengths is None else "insert spaces, or shorten it"))
    return [chunk for part in parts for chunk in fitting(part, lengths, most, known, british)]
