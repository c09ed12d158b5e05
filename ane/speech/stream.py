"""Sound that arrives in pieces, as a text's markup asks for it, and speech: a stream that has been collected."""

from base64 import b64encode
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from ane.audio import write
from ane.audio.time_stretch import TimeStretcher
from ane.speech.chunks import Chunk
from ane.speech.lanes import Lanes
from ane.speech.request import Piece, SpeechContext
from ane.speech.words import SpokenWord, delivered_words
from ane.system.timeline import Timeline, closing_source


class SoundFacts:
    """What speech and streams have in common. Facts that they keep are attributes too: ``speech.seed``."""

    elapsed: float
    seconds: float

    @property
    def real_time_factor(self) -> float:
        """Seconds of work per second of audio; infinite without audio."""
        return self.elapsed / self.seconds if self.seconds else inf

    def __getattr__(self, name: str) -> Any:
        for named in (self.__dict__.get("facts", {}), self.__dict__.get("details", {})):
            if name in named:
                return named[name]
        raise AttributeError(f"this {type(self).__name__.lower()} has no {name}")


@dataclass
class Speech(SoundFacts):
    """Synthesised speech. The facts are attributes too: ``speech.seed``, ``speech.codes``.

    Attributes:
        audio: (S,) float32 within ±1 at ``sample_rate``.
        chunks: the pieces of text that were spoken in one pass each.
        facts: what only this kind of model reports. Tortoise: ``seed``, which reproduces the speech, ``voice`` and the
            number of ``codes`` sampled in all candidates; FastSpeech: ``speed``, the number of mel ``frames``, and the
            ``seed`` if there is one; KittenTTS: ``voice``, ``speed`` and the number of ``tokens``.
        details: lists with one value for each chunk. Tortoise: ``decoded``, signals of the best candidate; FastSpeech:
            ``mels`` (M, L) float32 and ``durations``, the frames of each symbol (T,) int64.
        alternatives: audio of the second-best candidate and so on, when ``best`` is more than 1.
        seconds_by_phase: seconds by phase of work, in the order in which they began.
        elapsed: total wall-clock seconds.
        notes: warnings about this result, such as a chunk that did not end.
        timeline: when each phase ran.
        words: when each word is heard; of Tortoise only if ``word_times`` was asked for.
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
    def seconds(self) -> float:     # type: ignore[override]
        return len(self.audio) / self.sample_rate

    def save(self, path: Path | str) -> None:
        """Write the audio to ``path``; the suffix is the format: .wav, .flac, .aiff, .mp3 or .ogg.

        Raises:
            UserError: another suffix, or the file cannot be written.
        """
        write(path, self.audio, self.sample_rate)

    def _repr_html_(self) -> str:
        """A player, which notebooks show."""
        file = BytesIO()
        soundfile.write(file, self.audio, self.sample_rate, format="WAV", subtype="PCM_16")
        return f'<audio controls src="data:audio/wav;base64,{b64encode(file.getvalue()).decode()}"></audio>'


class SoundStream(SoundFacts, Iterator[np.ndarray]):
    """Sound that arrives in pieces (n,) float32 within ±1 at ``sample_rate``.

    Attributes:
        elapsed: seconds from the text to the last piece, including the caller's time between pieces.
        words: when each word is heard, of the chunks for which that is known so far.
    """

    sample_rate: int
    timeline: Timeline
    elapsed = 0.0
    words: Sequence[SpokenWord] = ()
    _samples = 0            # of the pieces returned so far
    _sound: Iterator[np.ndarray]
    _work: Generator        # makes the sound

    def __next__(self) -> np.ndarray:
        return next(self._sound)

    def close(self) -> None:
        """Stop the work and release the networks."""
        self._work.close()

    @property
    def seconds(self) -> float:     # type: ignore[override]
        return self._samples / self.sample_rate

    @property
    def seconds_by_phase(self) -> dict[str, float]:
        return self.timeline.seconds_by_phase()


def stepped(items: Iterable[Any], timeline: Timeline) -> Iterator[Any]:
    """The items but lanes, which take a step each time."""
    for item in items:
        if isinstance(item, Lanes):
            with timeline.record("decode"):
                item.step()
        else:
            yield item


class Stream(SoundStream):
    """Sound that arrives incrementally: pieces (n,) float32 within ±1 at ``sample_rate``.

    Work is done only while the caller waits for a piece. The facts, which are attributes too, ``notes``, ``seconds``,
    ``seconds_by_phase`` and ``elapsed`` are as in ``Speech``, for the pieces returned so far. ``words`` are those of
    the chunks that have been decoded; the last of a chunk may end in the silence that was removed after it.

    Attributes:
        chunks: the pieces of text that will be spoken in one pass each, unless one proves to be too long.
    """

    def __init__(self, pieces: Generator[Piece | Lanes, None, None], chunks: Sequence[Chunk], stated: Mapping[str, Any],
                 sample_rate: int, context: SpeechContext, notes: Sequence[str] = (), began: float | None = None):
        """``pieces``: up to the last of the text, as they are to be heard. ``stated``: facts known before, with 0 for
        what is counted; ``notes`` are known before, too. ``began``: second of the timeline at which its work did, when
        the text was not first."""
        self.chunks, self.sample_rate, self.timeline = [chunk.text for chunk in chunks], sample_rate, context.timeline
        self.facts = dict(stated)
        self.words: list[SpokenWord] = []
        self._work, self._whole, self._spoken, self._ended = pieces, context.batched, list[str](), 0
        self._notes: dict[str, list[int]] = {note: [] for note in notes}        # each with the numbers of its chunks
        self._began = context.timeline.text_ready if began is None else began
        self._tracked = self._tracking()
        self._sound = stepped(self.items(), self.timeline)

    def items(self) -> Iterator[np.ndarray | Lanes]:
        """The pieces of sound, and between them the lanes that must take a step before the next piece can come.

        For a caller that lets several streams share these lanes: iteration of the stream itself takes the steps.
        """
        for item in self._tracked:
            if isinstance(item, Lanes):
                yield item
            elif len(item.samples):
                yield item.samples

    def _tracking(self) -> Iterator[Piece | Lanes]:
        """The pieces, each after its facts have been noted."""
        while True:
            try:
                item = next(self._work, None)
            finally:
                self.elapsed = self.timeline.now() - self._began
            if item is None:
                break
            if isinstance(item, Piece):
                if len(item.samples) and not self._whole:
                    self.timeline.mark_first_audio()
                self._add(item)
            yield item
        self.timeline.mark_first_audio()        # of whole speech, of which nothing is heard before

    def _add(self, piece: Piece) -> None:
        """Note the facts of a piece."""
        self._samples += len(piece.samples)
        if len(self._spoken) == self._ended:
            self._spoken.append(piece.chunk.text)
        self._ended += piece.last
        self.words += piece.words
        for name, count in piece.counts.items():
            self.facts[name] = self.facts.get(name, 0) + count
        for note in piece.notes:
            self._notes.setdefault(note, []).append(len(self._spoken))

    def collect(self) -> Speech:
        """The speech: all pieces that are left."""
        samples: list[np.ndarray] = []
        details: dict[str, list[Any]] = {}
        others: list[Sequence[np.ndarray]] = []
        for piece in stepped(self._tracked, self.timeline):
            samples.append(piece.samples)
            for name, value in piece.details.items():
                details.setdefault(name, []).append(value)
            if piece.alternatives:
                others.append(piece.alternatives)
        return Speech(np.concatenate(samples), self.sample_rate, self._spoken, self.facts, details,
                      [np.concatenate(rank) for rank in zip(*others, strict=True)],
                      self.timeline.new_seconds_by_phase(), self.elapsed, self.notes, self.timeline, self.words)

    @property
    def notes(self) -> list[str]:
        return [note.replace("{chunks}", ", ".join(map(str, numbers))) for note, numbers in self._notes.items()]


BLOCK_SECONDS = 1.0     # of silence in a piece


class ChunkDelivery:
    """Delivers the sound of one chunk, which arrives in pieces. Samples that a gain takes beyond ±1 are clipped.

    Attributes:
        before, after: samples of silence that are still to come before and after the sound.
    """

    def __init__(self, chunk: Chunk, sample_rate: int, stretches: bool):
        self.gain, self.speed = chunk.gain, chunk.speed if stretches else 1.0
        self.stretcher = TimeStretcher(self.speed, sample_rate)
        self.before, self.after = round(chunk.before * sample_rate), round(chunk.after * sample_rate)

    def feed(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """Take (n,) float32 and return what is certain without the silence, all with ``last``."""
        if self.speed != 1:
            samples = self.stretcher.feed(samples)
            if last:
                samples = np.concatenate((samples, self.stretcher.finish()))
        return np.clip(samples * np.float32(self.gain), -1, 1) if self.gain != 1 else samples

    def whole(self, samples: np.ndarray) -> np.ndarray:
        """All of a chunk's sound at once, with its silence."""
        sound = self.feed(samples, last=True)
        return np.concatenate((np.zeros(self.before, np.float32), sound, np.zeros(self.after, np.float32)))


def delivered(pieces: Iterable[Piece | Lanes], sample_rate: int,
              stretches: bool = True) -> Generator[Piece | Lanes, None, None]:
    """Yield the pieces as they are to be heard, the words of each text in seconds from its beginning; and the lanes.

    The silence before a chunk comes when its sound does. Silence of more than ``BLOCK_SECONDS`` comes in blocks.
    ``stretches``: whether the speed of chunks is not yet that of their sound.
    """
    begins = samples = 0            # of the chunk, and so far, in its text
    current: ChunkDelivery | None = None
    with closing_source(pieces):
        for piece in pieces:
            if isinstance(piece, Lanes):
                yield piece
                continue
            chunk = piece.chunk
            current = current or ChunkDelivery(chunk, sample_rate, stretches)
            sound = current.feed(piece.samples, piece.last)
            before = silent_blocks(current.before if len(sound) or piece.last else 0, sample_rate)
            after = silent_blocks(current.after if piece.last else 0, sample_rate)
            current.before -= sum(map(len, before))
            if before or after:
                sound = np.concatenate((*before[-1:], sound, *after[:1]))
            yield from (Piece(block, chunk) for block in before[:-1])
            samples += sum(map(len, (*before[:-1], sound, *after[1:])))
            length = (samples - begins) / sample_rate if piece.last else inf
            yield replace(
                piece, samples=sound, last=piece.last and not after[1:],
                words=delivered_words(piece.words, 0.0, length, begins / sample_rate, current.speed, chunk.before,
                                      chunk.named),
                alternatives=[ChunkDelivery(chunk, sample_rate, stretches).whole(each) for each in piece.alternatives])
            yield from (Piece(block, chunk, block is after[-1]) for block in after[1:])
            if piece.last:
                current, begins = None, samples
                if chunk.final:
                    begins = samples = 0


def silent_blocks(samples: int, sample_rate: int) -> list[np.ndarray]:
    """Silence of so many samples in blocks that share their memory; none for 0."""
    block = np.zeros(min(samples, round(BLOCK_SECONDS * sample_rate)), np.float32)
    return [block[:samples - begin] for begin in range(0, samples, max(1, len(block)))]
