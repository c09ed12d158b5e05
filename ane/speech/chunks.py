"""Split a text, or its passages, into chunks that a network speaks in one pass.

A passage is a stretch of the text with one voice, speed and volume, and the silence after it.
"""

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
    """A text that a network speaks in one pass, with its voice and delivery (speed, volume and silence).

    Each kind of model has a subclass, which adds the inputs of its networks. ``split_to_fit`` creates the chunks and
    fills in their delivery.

    Attributes:
        text: Text as written.
        named: Name of the voice, if the text names one. "" means the voice of the whole speech.
        voice: Voice, in the form that ``Speaker.render`` takes.
        speed: Speed relative to the rest of the speech. 2 is twice as fast.
        gain: Factor by which the samples are multiplied.
        before: Seconds of silence before the chunk.
        after: Seconds of silence after the chunk.
        final: Whether this is the last chunk of its text.
        notes: Warnings about parts of the text that the model will not speak.
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
    notes: Sequence[str] = ()

    @property
    def length(self) -> int:
        """Length of the chunk, in the unit in which the model limits one pass, such as tokens."""
        raise NotImplementedError


@dataclass(eq=False)
class RenderedChunk:
    """A chunk, its sound, and facts about the sound. The model makes the sound while you read it.

    The model calls ``report`` with the facts before it yields the last piece of sound, or earlier.

    Attributes:
        chunk: The chunk.
        sound: Iterator over pieces of sound in order, (n samples,) float32 within ±1, n ≥ 0.
        words: Words with their times, in seconds from the beginning of the sound.
        counts: Numbers of codes, frames or tokens that the model made for the chunk, by the name of the counter.
        notes: Warnings. "{chunks}" in a warning stands for the numbers of all chunks that have the warning.
        details: Other facts, such as the mel spectrogram of the chunk, by the names that ``Speech.details`` uses.
        alternatives: Sounds of the other candidates, if the model makes whole chunks.
        reported: Whether the model has reported the facts.
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
        """Store the facts about the chunk. The model calls this."""
        self.words, self.counts, self.notes, self.details, self.reported = words, counts, notes, details, True


def up_to_final(rendered: Iterator[RenderedChunk]) -> Iterator[RenderedChunk]:
    """Yield the chunks of ``rendered`` up to the last chunk of the current text.

    The iterator stays open for the next text.
    """
    for chunk in rendered:
        yield chunk
        if chunk.chunk.final:
            return


OneChunk = TypeVar("OneChunk", bound=Chunk)


def split_to_fit(
    text: str | Sequence[Passage],
    make: Callable[[str, Passage], OneChunk | None],
    lengths: tuple[int, int] | None,
    most: int,
    unit: str,
    pause: Callable[[str], float] = lambda text: 0.0,
) -> list[OneChunk]:
    """Split a text into chunks, each short enough for one pass of the network.

    If a passage has nothing to say, it does not become a chunk. The passage's silence is added to the silence of a
    neighbouring chunk.

    Args:
        text: Text without markup, or the passages of a text.
        make: Function that creates the chunk for a piece of a passage. It returns ``None`` if the piece has nothing to
            say.
        lengths: Desired and maximum number of characters in a piece. ``None`` makes each passage one piece.
        most: Largest ``length`` of a chunk that one pass takes.
        unit: Name of the unit of ``most``, for messages.
        pause: Function that takes a chunk's text, and returns the seconds of silence that the model leaves between this
            chunk and the next chunk.

    Raises:
        UserError: The text has nothing to say. Or a piece is too long for one pass, and cannot be split because it has
            no suitable place or because ``lengths`` is ``None``.
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
    """Split one passage into chunks. If a chunk is too long for one pass of the network, halve it until it fits."""

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
    """Return the desired and the maximum length for the halves of a text with ``characters`` characters."""
    half = max(1, (characters + 1) // 2)
    return max(1, half * 3 // 4), half
