"""Deliver the sound of chunks as the text's markup asks, in pieces (``Stream``) or as a whole (``Speech``)."""

import tempfile
from base64 import b64encode
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ane.audio import write
from ane.audio.time_stretch import TimeStretcher
from ane.speech.chunks import Chunk, RenderedChunk
from ane.speech.request import SpeechContext
from ane.speech.words import SpokenWord, delivered_words, words_until
from ane.system.errors import UserError
from ane.system.sound_formats import FORMATS
from ane.system.timeline import Timeline, closing_source

SHOWN = 40  # characters of the text that ``repr`` shows


class SoundFacts:
    """Base class of ``Speech`` and streams. Their facts can be read as attributes: ``speech.seed``."""

    elapsed: float
    seconds: float

    @property
    def real_time_factor(self) -> float:
        """Seconds of work per second of audio, or infinity if there is no audio."""
        return self.elapsed / self.seconds if self.seconds else inf

    def __getattr__(self, name: str) -> Any:
        for values in (self.__dict__.get("facts", {}), self.__dict__.get("details", {})):
            if name in values:
                return values[name]
        raise AttributeError(f"this {type(self).__name__.lower()} has no {name}")


@dataclass(repr=False, eq=False)
class Speech(SoundFacts):
    """The speech for one text. Its facts can be read as attributes: ``speech.seed``, ``speech.codes``.

    Two speeches are equal if their sound, sample rate, chunks and words are equal. The kinds of models report
    different facts and details:

    - Tortoise: the facts ``seed``, which reproduces the speech, ``voice``, and ``codes``, the number of codes sampled
      for all candidates. The detail ``decoded`` has signals of the best candidate.
    - FastSpeech: the facts ``speed``, ``frames``, the number of mel frames, and ``seed`` if there is one. The details
      ``mels``, (M, L) float32, and ``durations``, the frames of each symbol, (T,) int64.
    - KittenTTS: the facts ``voice``, ``speed`` and ``tokens``, the number of tokens.

    Attributes:
        audio: Samples within ±1 at ``sample_rate``, (S,) float32.
        sample_rate: Samples per second.
        chunks: The pieces of text that were spoken in one pass each.
        facts: Facts about the speech, by name.
        details: Lists with one value per chunk, by name.
        alternatives: Audio of the second-best candidate and so on, if ``best`` is more than 1.
        seconds_by_phase: Seconds of work in each phase, in the order in which the phases began.
        elapsed: Total wall-clock seconds.
        notes: Warnings about this speech, for example about a chunk that did not end.
        timeline: Timeline with the times at which each phase ran.
        words: Words with their times. Tortoise times them only if you ask for ``word_times``.
    """

    audio: np.ndarray
    sample_rate: int
    chunks: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    details: dict[str, list[Any]] = field(default_factory=dict)
    alternatives: list[np.ndarray] = field(default_factory=list)
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    elapsed: float = 0.0
    notes: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    words: list[SpokenWord] = field(default_factory=list)

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return len(self.audio) / self.sample_rate

    def save(self, path: Path | str) -> None:
        """Write the audio to a file.

        The suffix sets the format: .wav, .flac, .aiff, .mp3 or .ogg, and with PyAV also .m4a, .m4b, .opus or .aac.

        Raises:
            UserError: The suffix is unknown, or the file cannot be written.
        """
        write(path, self.audio, self.sample_rate)

    def to_bytes(self, format: str = "wav") -> bytes:
        """Return the bytes of the file that ``save`` writes.

        Args:
            format: Suffix of the file without its dot, such as "mp3".

        Raises:
            InvalidValueError: There is no such format.
        """
        if f".{format}" not in FORMATS:
            raise UserError(
                f"format must be one of {', '.join(suffix[1:] for suffix in FORMATS)}, got {format!r}", "format"
            )
        with tempfile.TemporaryDirectory() as folder:
            self.save(file := Path(folder, f"speech.{format}"))
            return file.read_bytes()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Speech):
            return NotImplemented
        return (self.sample_rate, self.chunks, self.words) == (other.sample_rate, other.chunks, other.words) and (
            np.array_equal(self.audio, other.audio)
        )

    def __repr__(self) -> str:
        first = self.chunks[0] if self.chunks else ""
        return (
            f"<Speech: {self.seconds:.2f} s at {self.sample_rate} Hz, "
            f"{first if len(first) <= SHOWN else first[:SHOWN] + '…'!r}>"
        )

    def _repr_html_(self) -> str:
        """Return an audio player for notebooks to show."""
        return f'<audio controls src="data:audio/wav;base64,{b64encode(self.to_bytes()).decode()}"></audio>'


class SoundStream(SoundFacts, Iterator[np.ndarray]):
    """An iterator over sound: pieces (n,) float32 within ±1 at ``sample_rate``, n ≥ 1. A ``with`` block closes it.

    Attributes:
        sample_rate: Samples per second.
        timeline: Timeline with the times at which each phase ran.
        elapsed: Seconds from the text to the last piece, including your time between pieces.
        words: Words with their times, for the chunks whose times are known so far.
    """

    sample_rate: int
    timeline: Timeline
    elapsed = 0.0
    words: Sequence[SpokenWord] = ()
    _began: float | None = (
        None  # second of the timeline at which the work began. ``None`` means when the text was known
    )
    _samples = 0  # samples in the pieces returned so far
    _sound: Generator[np.ndarray, None, None]

    def __next__(self) -> np.ndarray:
        try:
            piece = next(self._sound)
        finally:
            began = self.timeline.text_ready if self._began is None else self._began
            self.elapsed = self.timeline.now() - began
        self._samples += len(piece)
        return piece

    def close(self) -> None:
        """Stop the work and release the networks."""
        self._sound.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.seconds:.2f} s returned at {self.sample_rate} Hz>"

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return self._samples / self.sample_rate

    @property
    def seconds_by_phase(self) -> dict[str, float]:
        return self.timeline.seconds_by_phase()


class Stream(SoundStream):
    """An iterator over the sound of one text, made while you read it: pieces (n,) float32 within ±1 at ``sample_rate``.

    Work happens only while you wait for a piece. The facts (also as attributes), ``notes``, ``seconds``,
    ``seconds_by_phase`` and ``elapsed`` mean the same as in ``Speech``, for the pieces returned so far. ``words`` has
    the words of the chunks that have been decoded. A chunk's last word may end in silence that was removed after it.

    Attributes:
        chunks: The pieces of text that will be spoken in one pass each, unless one proves to be too long.
    """

    def __init__(
        self,
        rendered: Iterator[RenderedChunk],
        chunks: Sequence[Chunk],
        facts: Mapping[str, Any],
        sample_rate: int,
        stretches: bool,
        context: SpeechContext,
        notes: Sequence[str] = (),
        began: float | None = None,
    ):
        """Prepare to deliver the chunks. Work begins with the first piece.

        Args:
            rendered: Chunks with their sound, up to the last chunk of the text.
            chunks: The chunks, for their texts.
            facts: Facts that are known in advance, with 0 for each counter.
            sample_rate: Samples per second.
            stretches: Whether the sound still has to be stretched to the speed of its chunk.
            context: Context of the work.
            notes: Warnings that are known in advance.
            began: Second of the timeline at which the work began. ``None`` means when the text was known.
        """
        self.chunks, self.sample_rate, self.timeline = [chunk.text for chunk in chunks], sample_rate, context.timeline
        self.facts = dict(facts)
        self.words: list[SpokenWord] = []
        self._stretches, self._batched, self._spoken, self._began = stretches, context.batched, list[str](), began
        self._notes: dict[str, list[int]] = {note: [] for note in notes}  # warning → the numbers of its chunks
        self._details: dict[str, list[Any]] = {}
        self._alternatives: list[list[np.ndarray]] = []
        self._sound = self._delivered(rendered)

    def _delivered(self, rendered: Iterator[RenderedChunk]) -> Generator[np.ndarray, None, None]:
        """Yield the pieces as they will be heard. The facts that are known with a piece are noted before it."""
        with closing_source(rendered):
            for chunk in rendered:
                for piece in self._chunk(chunk):
                    if len(piece):
                        if not self._batched:
                            self.timeline.mark_first_audio()
                        yield piece
        self.timeline.mark_first_audio()  # whole speech is heard only now

    def _chunk(self, rendered: RenderedChunk) -> Iterator[np.ndarray]:
        """Yield the pieces of a chunk. The last block of silence before it comes together with its first sound."""
        delivery = ChunkDelivery(rendered.chunk, self.sample_rate, self._stretches)
        self._spoken.append(rendered.chunk.text)
        first, begin, noted = len(self.words), self._samples, False
        with closing_source(rendered.sound):
            for samples in rendered.sound:
                if rendered.reported and not noted:
                    self._note(rendered, delivery.speed, begin)
                    noted = True
                yield from delivery.feed(samples)
        if not noted:
            self._note(rendered, delivery.speed, begin)
        yield from delivery.finish()
        if self._batched:  # a stream has already reported its words
            self.words[first:] = words_until(self._samples / self.sample_rate, self.words[first:])
        if rendered.alternatives:
            self._alternatives.append([delivery.whole(sound) for sound in rendered.alternatives])

    def _note(self, rendered: RenderedChunk, speed: float, begin: int) -> None:
        """Note the facts about a chunk that begins at sample ``begin`` of its text."""
        self.words += delivered_words(
            rendered.words, 0.0, inf, begin / self.sample_rate, speed, rendered.chunk.before, rendered.chunk.named
        )
        for name, count in rendered.counts.items():
            self.facts[name] = self.facts.get(name, 0) + count
        for note in rendered.notes:
            self._notes.setdefault(note, []).append(len(self._spoken))
        for name, value in rendered.details.items():
            self._details.setdefault(name, []).append(value)

    def collect(self) -> Speech:
        """Read the stream to its end, and return the speech. Raises UserError if pieces were already read."""
        if self._samples:
            raise UserError(
                f"the first {self.seconds:.2f} s of this stream were read already, and would be missing: "
                "collect a stream before its pieces are read, or join the pieces"
            )
        samples = [np.zeros(0, np.float32), *self]
        return Speech(
            np.concatenate(samples),
            self.sample_rate,
            self._spoken,
            self.facts,
            self._details,
            [np.concatenate(rank) for rank in zip(*self._alternatives, strict=True)],
            self.timeline.new_seconds_by_phase(),
            self.elapsed,
            self.notes,
            self.timeline,
            self.words,
        )

    @property
    def notes(self) -> list[str]:
        return [note.replace("{chunks}", ", ".join(map(str, numbers))) for note, numbers in self._notes.items()]


BLOCK_SECONDS = 1.0  # most seconds of silence in one piece


class ChunkDelivery:
    """Applies speed, gain and the silence around it to the sound of one chunk, which arrives in pieces.

    Samples that a gain takes beyond ±1 are clipped. Silence longer than ``BLOCK_SECONDS`` comes in blocks.
    """

    def __init__(self, chunk: Chunk, sample_rate: int, stretches: bool):
        self.chunk, self.sample_rate, self.stretches = chunk, sample_rate, stretches
        self.speed = chunk.speed if stretches else 1.0
        self.stretcher = TimeStretcher(self.speed, sample_rate)
        self.before = round(chunk.before * sample_rate)  # samples of silence that are still to come

    def whole(self, samples: np.ndarray) -> np.ndarray:
        """Return another sound for the chunk, delivered in one piece."""
        other = ChunkDelivery(self.chunk, self.sample_rate, self.stretches)
        return np.concatenate([*other.feed(samples), *other.finish()])

    def feed(self, samples: np.ndarray, last: bool = False) -> Iterator[np.ndarray]:
        """Take samples (n,) float32, and yield the sound that is certain so far.

        With ``last``, yield all of it and the silence after it.
        """
        sound = self.stretcher.feed(samples)
        if last:
            sound = np.concatenate((sound, self.stretcher.finish()))
        if self.chunk.gain != 1:
            sound = np.clip(sound * np.float32(self.chunk.gain), -1, 1)
        if len(sound) or last:
            blocks, self.before = silent_blocks(self.before, self.sample_rate), 0
            yield from blocks[:-1]
            yield np.concatenate((blocks[-1], sound)) if blocks else sound
        if last:
            yield from silent_blocks(round(self.chunk.after * self.sample_rate), self.sample_rate)

    def finish(self) -> Iterator[np.ndarray]:
        """Yield the rest of the sound, and the silence after it."""
        return self.feed(np.zeros(0, np.float32), last=True)


def silent_blocks(samples: int, sample_rate: int) -> list[np.ndarray]:
    """Make silence in blocks that share their memory. 0 samples make no block."""
    block = np.zeros(min(samples, round(BLOCK_SECONDS * sample_rate)), np.float32)
    return [block[: samples - begin] for begin in range(0, samples, max(1, len(block)))]
