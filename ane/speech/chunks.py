"""Chunks: a text, or its passages, in pieces that a network speaks in one pass; and their sound."""

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
    """A text spoken in one pass: its words, who speaks them, and how. Families add what their networks take.

    ``split_to_fit`` makes each chunk once and fills in how it is spoken; nothing replaces it later.

    Attributes:
        text: as it is written.
        named: the name that the text gives its voice; "" is the voice of the whole speech.
        voice: the voice as ``Speaker.render`` takes it.
        speed: relative to the rest of the speech, 2 being twice as fast.
        gain: factor of the samples.
        before: seconds of silence before it, and ``after``: after it.
        final: whether it is the last of its text.
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
        """How much of what one pass takes it needs."""
        raise NotImplementedError


@dataclass(eq=False)
class RenderedChunk:
    """The sound of a chunk, which is made while it is read, and what else is known of it.

    A model states the facts at the latest with the last sound.

    Attributes:
        sound: Pieces (n,) float32 within ±1, n ≥ 0, in order.
        words: When each word is heard, in seconds from the beginning of the sound.
        counts: What was made for it: codes, frames or tokens.
        notes: Warnings. "{chunks}" in one stands for the numbers of all chunks that have it.
        details: Other facts, such as its mel, by the names under which ``Speech`` lists them.
        alternatives: Sound of other candidates, where whole chunks are made.
        stated: Whether the facts are known.
    """

    chunk: Chunk
    sound: Iterator[np.ndarray] = field(default_factory=lambda: iter(()))
    words: Sequence[SpokenWord] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    alternatives: Sequence[np.ndarray] = ()
    stated: bool = False

    def state(
        self, words: Sequence[SpokenWord], counts: Mapping[str, int], notes: Sequence[str] = (), **details: Any
    ) -> None:
        """State the facts."""
        self.words, self.counts, self.notes, self.details, self.stated = words, counts, notes, details, True


OneChunk = TypeVar("OneChunk", bound=Chunk)


def split_to_fit(
    text: str | Sequence[Passage],
    make: Callable[[str, Passage], OneChunk | None],
    lengths: tuple[int, int] | None,
    most: int,
    unit: str,
    pause: Callable[[str], float] = lambda text: 0.0,
) -> list[OneChunk]:
    """Return the chunks of a text without markup, or of passages, without empty ones.

    The silence of a passage that has nothing to say is added to the silence around it.

    Args:
        text: A text, or the passages of one.
        make: Returns the chunk of a piece of a passage, or None if nothing in the piece can be spoken.
        lengths: Desired and maximum characters of a piece. With None, each passage is one piece.
        most: The largest ``length`` of a chunk in one pass.
        unit: Name of what ``length`` counts, for messages.
        pause: Returns the seconds of silence that the model leaves after a chunk with this text, before the next one.

    Raises:
        UserError: There is nothing to say, or a piece is too long and cannot be split or must not be.
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
    """Return the chunks of one passage; a piece that is too long for one pass is halved until its parts fit."""

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
    """Return the desired and the maximum characters of the halves of a piece."""
    half = max(1, (characters + 1) // 2)
    return max(1, half * 3 // 4), half
