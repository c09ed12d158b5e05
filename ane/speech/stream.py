"""Apply speed, volume and pauses to the sound of chunks. Return it in pieces (``Stream``) or as a whole (``Speech``).

A chunk is a text that the networks speak in one pass.
"""

import re
import tempfile
from base64 import b64encode
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import GEN_CLOSED, getgeneratorstate
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ane.audio import write
from ane.audio.time_stretch import TimeStretcher
from ane.audio.writer import pcm16
from ane.speech.chunks import Chunk, RenderedChunk
from ane.speech.request import SpeechContext
from ane.speech.words import SpokenWord, delivered_words, words_until
from ane.system.errors import UserError, check_path
from ane.system.sound_formats import FORMATS
from ane.system.timeline import Timeline, closing_source

SHOWN = 40  # characters of the text that ``repr`` shows


class SoundFacts:
    """Base class of ``Speech`` and streams. It lets you read their facts as attributes, such as ``speech.seed``."""

    elapsed: float
    seconds: float

    @property
    def real_time_factor(self) -> float:
        """Seconds of work per second of audio, or infinity if there is no audio."""
        return self.elapsed / self.seconds if self.seconds else inf

    if TYPE_CHECKING:  # so that type checkers know the names of the facts, and report every other name
        seed: int
        voice: str
        speed: float
        codes: int
        frames: int
        tokens: int
        decoded: list[Any]
        mels: list[np.ndarray]
        durations: list[np.ndarray]
    else:

        def __getattr__(self, name: str) -> Any:
            for values in (self.__dict__.get("facts", {}), self.__dict__.get("details", {})):
                if name in values:
                    return values[name]
            kind = re.sub(r"(?<!^)(?=[A-Z])", " ", type(self).__name__).lower()
            raise AttributeError(f"this {kind} has no {name}")


@dataclass(repr=False, eq=False)
class Speech(SoundFacts):
    """The sound of one text, and facts about it. You can read the facts as attributes, such as ``speech.seed``.

    Two speeches are equal if their sound, sample rate, chunks and words are equal. Each kind of model reports its own
    facts and details:

    - Tortoise reports the facts ``seed``, which reproduces the speech, ``voice``, and ``codes``, which counts the codes
      of all candidates. Its detail ``decoded`` has the intermediate signals of the best candidate.
    - FastSpeech reports the facts ``speed``, ``frames``, which counts mel frames, and ``seed`` if the model uses one.
      Its details are ``mels``, (M mel bands, L frames) float32, and ``durations``, which has the number of frames of
      each symbol, (T symbols,) int64.
    - KittenTTS reports the facts ``voice``, ``speed`` and ``tokens``, which counts tokens.

    Attributes:
        audio: Samples within ±1 at ``sample_rate``, (S,) float32.
        sample_rate: Samples per second.
        chunks: Texts that the model spoke in one pass each.
        facts: Facts about the speech, by name.
        details: One list per name, with one value per chunk.
        alternatives: Audio of the second-best candidate, the third-best candidate and so on, if ``best`` exceeds 1.
        seconds_by_phase: Seconds of work in each phase, in the order in which the phases began.
        elapsed: Total wall-clock seconds.
        notes: Warnings about this speech, for example about a chunk that did not end.
        timeline: Timeline that records when each phase ran.
        words: Words with the times at which they are heard. Tortoise fills this only if you ask for ``word_times``.
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
        """Write the audio to a file, in the format that the suffix of the path names.

        The suffix is .wav, .flac, .aiff, .mp3 or .ogg. If PyAV is installed, it may also be .m4a, .m4b, .opus or .aac.

        Raises:
            UserError: The suffix is unknown, or the file cannot be written.
        """
        check_path(path)
        write(path, self.audio, self.sample_rate)

    def to_bytes(self, format: str = "wav") -> bytes:
        """Encode the audio, and return the bytes that ``save`` would write to a file.

        Args:
            format: Suffix of the file with or without its dot, such as "mp3" or ".WAV". The format "pcm" has no header:
                it consists of samples at ``sample_rate``, in 16 bits, little-endian.

        Raises:
            InvalidValueError: There is no such format.
        """
        suffix = f".{str(format).lower().removeprefix('.')}"
        if suffix == ".pcm":
            return pcm16(self.audio).tobytes()
        if suffix not in FORMATS:
            known = ", ".join([*(suffix[1:] for suffix in FORMATS), "pcm"])
            raise UserError(f"format must be one of {known}, got {format!r}", "format")
        with tempfile.TemporaryDirectory() as folder:
            self.save(file := Path(folder, f"speech{suffix}"))
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
        """Return the HTML of an audio player, which a notebook shows for this speech."""
        return f'<audio controls src="data:audio/wav;base64,{b64encode(self.to_bytes()).decode()}"></audio>'


class SoundStream(SoundFacts, Iterator[np.ndarray]):
    """An iterator over pieces of sound, (n samples,) float32 within ±1 with n ≥ 1. A ``with`` block closes it.

    Attributes:
        sample_rate: Samples per second.
        chunks: Texts that the model speaks in one pass each.
        timeline: Timeline that records when each phase ran.
        elapsed: Seconds from the arrival of the text to the last piece, including the time that you took between two
            pieces.
        words: Words with the times at which they are heard, for the chunks whose times are known so far.
    """

    sample_rate: int
    chunks: Sequence[str]
    timeline: Timeline
    elapsed = 0.0
    words: Sequence[SpokenWord] = ()
    # second of the timeline at which the work began. ``None`` means that it began when the text was known
    _began: float | None = None
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
    """An iterator over the sound of one text. It yields pieces, (n samples,) float32 within ±1 at ``sample_rate``.

    The model works only while you wait for a piece. ``facts``, ``notes``, ``seconds``, ``seconds_by_phase`` and
    ``elapsed`` have the same meaning as in ``Speech``, but cover only the pieces returned so far. You can read facts as
    attributes. ``words`` has the words of the chunks that the model has decoded. The last word of a chunk may end later
    than its sound, if silence after the word was removed.

    Attributes:
        chunks: Texts that the model will speak in one pass each. If a text proves to be too long for one pass, the
            model splits it further.
    """

    _collected = False

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
        """Prepare to read the chunks' sound. Work begins when you ask for the first piece.

        Args:
            rendered: Chunks with their sound, up to the last chunk of the text.
            chunks: All chunks of the text.
            facts: First values of the attribute ``facts``, such as the seed. Counters, such as the number of codes, are
                0, and grow with each piece.
            sample_rate: Samples per second.
            stretches: Whether the stream must stretch each chunk's sound to the speed of the chunk.
            context: Objects that the work on the request shares, such as its timeline.
            notes: Warnings that are known in advance.
            began: Second of the timeline at which the work began. ``None`` means that it began when the text was known.
        """
        self.chunks, self.sample_rate, self.timeline = [chunk.text for chunk in chunks], sample_rate, context.timeline
        self.facts = dict(facts)
        self.words: list[SpokenWord] = []
        self._stretches, self._batched, self._spoken, self._began = stretches, context.batched, list[str](), began
        self._notes: dict[str, list[int]] = {note: [] for note in notes}  # for each warning, the numbers of its chunks
        self._details: dict[str, list[Any]] = {}
        self._alternatives: list[list[np.ndarray]] = []
        self._sound = self._delivered(rendered)

    def _delivered(self, rendered: Iterator[RenderedChunk]) -> Generator[np.ndarray, None, None]:
        """Yield the pieces as a listener will hear them.

        Record the facts that become known with a piece before yielding it.
        """
        with closing_source(rendered):
            for chunk in rendered:
                for piece in self._chunk(chunk):
                    if len(piece):
                        if not self._batched:
                            self.timeline.mark_first_audio()
                        yield piece
        self.timeline.mark_first_audio()  # if the caller collects the whole speech, nobody hears sound before the end

    def _chunk(self, rendered: RenderedChunk) -> Iterator[np.ndarray]:
        """Yield the pieces of a chunk.

        The first piece of sound also has the last block of the silence before the chunk.
        """
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
        if self._batched:  # otherwise the listener has already read the words
            self.words[first:] = words_until(self._samples / self.sample_rate, self.words[first:])
        if rendered.alternatives:
            self._alternatives.append([delivery.whole(sound) for sound in rendered.alternatives])

    def _note(self, rendered: RenderedChunk, speed: float, begin: int) -> None:
        """Add the facts about a chunk to the facts about the text. The chunk's sound begins at sample ``begin``."""
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
        """Read the stream to its end, and return the whole speech.

        Raises:
            UserError: You already read a piece, or the stream was closed, collected, or ended by an error.
        """
        if self._collected:
            raise UserError("this stream was collected already: keep the Speech that collect returned")
        if not self._samples and getgeneratorstate(self._sound) == GEN_CLOSED:
            raise UserError("this stream was closed or failed, so there is nothing to collect: speak the text again")
        if self._samples:
            raise UserError(
                f"the first {self.seconds:.2f} s of this stream were read already, so collect would miss them: "
                "call collect before you read pieces, or join the pieces yourself"
            )
        samples = [np.zeros(0, np.float32), *self]
        self._collected = True
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


BLOCK_SECONDS = 1.0  # one piece has at most this many seconds of silence


class ChunkDelivery:
    """Applies a chunk's speed and gain to its sound, and adds the silence around it. The sound may arrive in pieces.

    Samples beyond ±1 are clipped. Silence that is longer than ``BLOCK_SECONDS`` comes in blocks.
    """

    def __init__(self, chunk: Chunk, sample_rate: int, stretches: bool):
        self.chunk, self.sample_rate, self.stretches = chunk, sample_rate, stretches
        self.speed = chunk.speed if stretches else 1.0
        self.stretcher = TimeStretcher(self.speed, sample_rate)
        self.before = round(chunk.before * sample_rate)  # samples of silence that must still precede the sound

    def whole(self, samples: np.ndarray) -> np.ndarray:
        """Apply the chunk's speed, volume and silence to another whole sound, such as another candidate's sound."""
        other = ChunkDelivery(self.chunk, self.sample_rate, self.stretches)
        return np.concatenate([*other.feed(samples), *other.finish()])

    def feed(self, samples: np.ndarray, last: bool = False) -> Iterator[np.ndarray]:
        """Take the next samples, and yield the sound that later samples cannot change.

        Args:
            samples: Samples of the chunk, (n,) float32.
            last: Whether the chunk ends with these samples. If so, the method yields the rest of the sound and the
                silence after it.
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
        """End the chunk: yield the rest of its sound, and the silence after it."""
        return self.feed(np.zeros(0, np.float32), last=True)


def silent_blocks(samples: int, sample_rate: int) -> list[np.ndarray]:
    """Make silence in blocks of at most ``BLOCK_SECONDS``.

    The blocks share memory. For 0 samples, there is no block.
    """
    block = np.zeros(min(samples, round(BLOCK_SECONDS * sample_rate)), np.float32)
    return [block[: samples - begin] for begin in range(0, samples, max(1, len(block)))]
