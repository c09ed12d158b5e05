"""From the sounds of a job to the sound of a book: when each chunk is heard, and the samples in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ane.audio.loudness import LoudnessMeter
from ane.books.narration import EDGE
from ane.books.plan import PlannedChunk
from ane.books.store import JobStore, StoredChunk
from ane.system.errors import UserError

SILENCE_BLOCK = 1 << 18     # samples: about ten seconds


@dataclass(frozen=True)
class TimedChunk:
    """A chunk with the samples at which its sound starts and ends, and the samples of silence after it."""

    chunk: PlannedChunk
    start: int
    end: int
    silence: int


@dataclass(frozen=True)
class TimedChapter:
    """A chapter: its title and its chunks, and the samples at which it starts and ends, its last silence included."""

    title: str
    start: int
    end: int
    chunks: tuple[TimedChunk, ...]


@dataclass(frozen=True)
class BookTimeline:
    """The chapters of a book, or of one file of it, in samples at ``rate`` Hz."""

    rate: int
    chapters: tuple[TimedChapter, ...]

    @property
    def samples(self) -> int:
        return self.chapters[-1].end - self.chapters[0].start

    @property
    def chunks(self) -> Iterator[TimedChunk]:
        return (chunk for chapter in self.chapters for chunk in chapter.chunks)

    def seconds(self, sample: int) -> float:
        """The time of a sample, from the start of the first chapter."""
        return (sample - self.chapters[0].start) / self.rate

    def parts(self) -> list["BookTimeline"]:
        """One timeline a chapter."""
        return [BookTimeline(self.rate, (chapter,)) for chapter in self.chapters]


def time_book(chunks: Sequence[StoredChunk], titles: Sequence[str]) -> BookTimeline:
    """When each chunk is heard. Raises UserError when one has no sound yet, or of another rate."""
    rates = {chunk.rate for chunk in chunks}
    if None in rates or len(rates) != 1:
        raise UserError("the job changed while it was written to a file: run the command again")
    rate, position = next(rate for rate in rates if rate), 0
    chapters: list[TimedChapter] = []
    timed: list[TimedChunk] = []
    for index, stored in enumerate(chunks):
        end = position + (stored.samples or 0)
        silence = max(0, round((stored.chunk.silence - 2 * EDGE) * rate)) if stored.samples else 0
        timed.append(TimedChunk(stored.chunk, position, end, silence))
        position = end + silence
        if index + 1 == len(chunks) or chunks[index + 1].chunk.chapter != stored.chunk.chapter:
            chapters.append(TimedChapter(titles[stored.chunk.chapter], timed[0].start, position, tuple(timed)))
            timed = []
    return BookTimeline(rate, tuple(chapters))


def sound_of_book(store: JobStore, timeline: BookTimeline) -> Iterator[np.ndarray]:
    """The samples of all chunks with the silence between them, in pieces (n,) float32. One sound is in memory."""
    block = np.zeros(SILENCE_BLOCK, np.float32)
    for timed in timeline.chunks:
        yield store.sound(timed.chunk.key)
        for start in range(0, timed.silence, SILENCE_BLOCK):
            yield block[:timed.silence - start]


def measure_book(store: JobStore, timeline: BookTimeline) -> LoudnessMeter:
    """The loudness of the whole book: one measurement, so that all chapters get the same gain."""
    meter = LoudnessMeter(timeline.rate)
    for piece in sound_of_book(store, timeline):
        meter.feed(piece)
    return meter
