"""Text to chunks, each with no more symbols than one pass can have."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ane.models.fastspeech.text import is_speakable, text_to_ids
from ane.speech.request import Chunk
from ane.system.errors import UserError
from ane.text import nothing_to_say_error, shorten, split
from ane.text.passages import Passage, as_passages, spread, whole_text, with_deliveries

# stands for a space within braces while a text is split, so that phonemes stay together; not in any text
JOINER = "\ue000"


@dataclass(frozen=True)
class SymbolChunk(Chunk):
    """A piece of text spoken in one pass. ``ids``: (T,) int64, at least one."""

    ids: np.ndarray


def split_into_symbols(text: str | Sequence[Passage], lengths: tuple[int, int] | None,
                       most: int) -> list[SymbolChunk]:
    """The chunks of a text, or of its passages, without those of which nothing can be spoken.

    Args:
        lengths: desired and maximum characters of a chunk; None: one chunk.
        most: the most symbols of a chunk.

    Raises:
        UserError: nothing to say, or a chunk that is too long and cannot be split or must not be.
    """
    def chunks_of(text: str) -> list[SymbolChunk]:
        pieces = [text] if lengths is None else split_text(text, *lengths)
        return [chunk for piece in pieces for chunk in _fitting(piece, lengths, most)]

    passages = as_passages(text)
    chunks = with_deliveries(passages, chunks_of)
    if not chunks:
        raise nothing_to_say_error(whole_text(passages))
    return [replace(chunk, delivery=delivery) for chunk, delivery in chunks]


def halve(chunk: SymbolChunk, most: int) -> list[SymbolChunk]:
    """The parts of a chunk, about half as long each; the chunk itself when it is a single word."""
    parts = split_text(chunk.text, *_half(len(chunk.text)))
    if len(parts) < 2:
        return [chunk]
    found = [part for text in parts for part in _fitting(text, (len(text), len(text)), most)]
    return [replace(part, delivery=delivery, final=chunk.final and part is found[-1])
            for part, delivery in zip(found, spread(chunk.delivery, len(found)), strict=True)]


def split_text(text: str, desired: int, maximum: int) -> list[str]:
    """``ane.text.split``, but text in braces stays together."""
    joined = "".join(_join_braces(text))
    return [piece.replace(JOINER, " ") for piece in split(joined, desired, maximum)]


def _join_braces(text: str) -> Iterator[str]:
    inside, last = False, text.rfind("}")
    for index, character in enumerate(text):
        if character == "{":
            inside = index < last
        elif character == "}":
            inside = False
        yield JOINER if inside and character.isspace() else character


def _fitting(text: str, lengths: tuple[int, int] | None, most: int) -> list[SymbolChunk]:
    """The chunk of ``text``, or those of its parts when it has more than ``most`` symbols."""
    ids = text_to_ids(text)
    if not is_speakable(ids):
        return []
    if len(ids) <= most:
        return [SymbolChunk(text, np.array(ids, np.int64))]
    parts = [] if lengths is None else split_text(text, *_half(min(lengths[1], len(text))))
    if len(parts) < 2:
        raise UserError(f"{shorten(text)!r} is {len(ids)} symbols long, and one pass takes at most {most}: "
                        + ("allow it to be split" if lengths is None else "insert spaces, or shorten it"))
    return [chunk for part in parts for chunk in _fitting(part, (len(part), len(part)), most)]


def _half(characters: int) -> tuple[int, int]:
    half = max(1, (characters + 1) // 2)
    return max(1, half * 3 // 4), half
