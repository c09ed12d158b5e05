"""Split a text, or its passages, into chunks that a network speaks in one pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

import numpy as np

from ane.speech.words import SpokenWord
from ane.system.errors import UserError
from ane.text import nothing_to_say_error, shorten, split
from ane.text.passages import Passage


@dataclass(eq=False)
class Chunk:
    """A text that is spoken in one pass, with its voice and delivery.

    Kinds of models add the inputs of their networks. ``split_to_fit`` creates each chunk and fills in its delivery.

    Attributes:
        text: Text as written.
        named: Name that the text gives the voice. "" is the voice of the whole speech.
        voice: Voice in the form that ``Speaker.render`` takes.
        speed: Speed relative to the rest of the speech. 2 is twice as fast.
        gain: Factor that multiplies the samples.
        before: Seconds of silence before the chunk.
        after: Seconds of silence after the chunk.
        final: Whether this is the last chunk of its text.
    """

    text: str
    _: KW_ONLY
    named: str = ""
    voice: Any = None
    speed: float = 1.0
    gain: float = 1.0
    before: float = 0.0
    after: float = 0.0
    final: bool = True

    @property
    def length(self) -> int:
        """Length of the chunk, in the unit that limits one pass (``split_to_fit``)."""
        raise NotImplementedError


@dataclass(eq=False)
class RenderedChunk:
    """The sound of a chunk, which is made while you read it, and the facts about it.

    The model reports the facts (``report``) with the last sound or earlier.

    Attributes:
        chunk: The chunk.
        sound: Pieces of sound in order, (n,) float32 within ±1, n ≥ 0.
        words: Words with their times, in seconds from the beginning of the sound.
        counts: Numbers of codes, frames or tokens that were made for it.
        notes: Warnings. "{chunks}" in a warning stands for the numbers of all chunks that have it.
        details: Other facts, such as its mel, by the names that ``Speech.details`` uses.
        alternatives: Sounds of other candidates, if whole chunks are made.
        reported: Whether the facts are known.
    """

    chunk: Chunk
    sound: Iterator[np.ndarray] = field(default_factory=lambda: iter(()))
    words: Sequence[SpokenWord] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    alternatives: Sequence[np.ndarray] = ()
    reported: bool = False

    def report(
        self, words: Sequence[SpokenWord], counts: Mapping[str, int], notes: Sequence[str] = (), **details: Any
    ) -> None:
        """Report the facts about the chunk."""
        self.words, self.counts, self.notes, self.details, self.reported = words, counts, notes, details, True


OneChunk = TypeVar("OneChunk", bound=Chunk)


def split_to_fit(
    text: str | Sequence[Passage],
    make: Callable[[str, Passage], OneChunk | None],
    lengths: tuple[int, int] | None,
    most: int,
    unit: str,
    pause: Callable[[str], float] = lambda text: 0.0,
) -> list[OneChunk]:
    """Split a text into chunks that fit into one pass each.

    If a passage has nothing to say, its silence is added to the silence around it.

    Args:
        text: Text without markup, or passages.
        make: Function that creates the chunk for a piece of a passage, or returns ``None`` if nothing in the piece can
            be spoken.
        lengths: Desired and maximum characters of a piece. ``None`` makes each passage one piece.
        most: Greatest ``length`` of a chunk that fits into one pass.
        unit: Name of the unit of ``length``, for messages.
        pause: Function that returns the seconds of silence that the model leaves between a chunk with this text and the
            next one.

    Raises:
        UserError: There is nothing to say, or a piece is too long and cannot or must not be split.
    """
    passages = [Passage(text)] if isinstance(text, str) else text
    chunks: list[OneChunk] = []
    before = 0.0
    for passage in passages:
        parts = fitting_chunks(passage, make, lengths, most, unit)
        for part in parts:
            part.named, part.speed, part.gain = passage.voice, passage.speed, passage.gain
        if parts:
            parts[0].before, parts[-1].after, before = before, passage.silence, 0.0
            chunks += parts
        elif chunks:
            chunks[-1].after += passage.silence
        else:
            before += passage.silence
    if not chunks:
        raise nothing_to_say_error("".join(passage.text for passage in passages))
    for chunk in chunks[:-1]:
        chunk.final = False
        chunk.after += pause(chunk.text)
    return chunks


def fitting_chunks(
    passage: Passage,
    make: Callable[[str, Passage], OneChunk | None],
    lengths: tuple[int, int] | None,
    most: int,
    unit: str,
) -> list[OneChunk]:
    """Split one passage into chunks. A piece that is too long for one pass is halved until its parts fit."""

    def fitting(piece: str, maximum: int) -> list[OneChunk]:
        if (chunk := make(piece, passage)) is None:
            return []
        if chunk.length <= most:
            return [chunk]
        parts = [] if lengths is None else split(piece, *halves(min(maximum, len(piece))))
        if len(parts) < 2:
            raise UserError(
                f"{shorten(piece)!r} is {chunk.length} {unit} long, and one pass takes at most {most}: "
                + ("allow it to be split" if lengths is None else "insert spaces, or shorten it")
            )
        return [fit for part in parts for fit in fitting(part, len(part))]

    parts = [passage.text] if lengths is None else split(passage.text, *lengths)
    return [fit for part in parts for fit in fitting(part, lengths[1] if lengths else len(part))]


def halves(characters: int) -> tuple[int, int]:
    """Return the desired and the maximum characters for each half of a piece."""
    half = max(1, (characters + 1) // 2)
    return max(1, half * 3 // 4), half
