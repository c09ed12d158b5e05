"""From the sounds of a job to the sound of a book: when each chunk is heard, and the samples in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ane.audio.time_stretch import TimeStretcher
from ane.books.narration import BREATH
from ane.books.plan import PlannedBlock, PlannedChunk
from ane.books.store import JobStore, StoredChunk
from ane.speech.words import WORDS, SpokenWord, interpolate_words
from ane.system.errors import UserError
from ane.text import shorten
from ane.text.passages import without_commands

SILENCE_BLOCK = 1 << 18  # samples: about ten seconds
MAX_CUE_SPEED = 1.5  # of a subtitle that is spoken longer than it has time
LATE = 0.05  # seconds by which a subtitle may be late unnoticed


@dataclass(frozen=True)
class TimedChunk:
    """A chunk, the samples at which its sound starts and ends, how much faster than spoken it is heard, and its words,
    if they are wanted, in seconds from its start.
    """

    chunk: PlannedChunk
    start: int
    end: int
    speed: float = 1.0
    words: tuple[SpokenWord, ...] = ()


@dataclass(frozen=True)
class TimedChapter:
    """A chapter: its number in the book from 1, its title and its chunks, and the samples at which it starts and ends,
    its last silence included.
    """

    number: int
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


def planned_blocks(store: JobStore) -> list[PlannedBlock]:
    """The blocks of the job's text; none of a job of an earlier version."""
    return [PlannedBlock(*block) for block in (store.fact("text") or {}).get("blocks", [])]


def time_book(
    chunks: Sequence[StoredChunk], titles: Sequence[str], blocks: Sequence[PlannedBlock] = ()
) -> BookTimeline:
    """When each chunk is heard. Subtitles with times begin at them, or when the one before has ended.

    Raises UserError when a chunk has no sound yet, or one of another rate.
    """
    rates = {chunk.rate for chunk in chunks}
    if None in rates or len(rates) != 1:
        raise UserError("the job changed while it was written to a file: run the command again")
    if any(chunk.chunk.chapter >= len(titles) for chunk in chunks):
        raise UserError("the job is damaged, a chunk is in a chapter that it lacks: delete its folder to start over")
    rate, position, begun, speed = next(rate for rate in rates if rate), 0, 0, 1.0
    cues = {block.first: block.cue for block in blocks if block.cue}
    ends = dict(pairwise([*(index for index, one in enumerate(chunks) if one.chunk.number in cues), len(chunks)]))
    chapters: list[TimedChapter] = []
    timed: list[TimedChunk] = []
    for index, stored in enumerate(chunks):
        if cue := cues.get(stored.chunk.number):
            position = max(position, round(cue[0] * rate))
            after = ends[index]  # where the next subtitle begins
            slot_end = cues[chunks[after].chunk.number][0] if after < len(chunks) else cue[1]
            speed = cue_speed(chunks[index:after], round(slot_end * rate) - position)
        end_of_sound = position + round((stored.samples or 0) / speed)
        timed.append(TimedChunk(stored.chunk, position, end_of_sound, speed))
        last = index + 1 == len(chunks)
        position = end_of_sound
        if not cues or not (last or index + 1 in ends):
            position += silence_of(stored)
        if last or chunks[index + 1].chunk.chapter != stored.chunk.chapter:
            number = stored.chunk.chapter
            chapters.append(TimedChapter(number + 1, titles[number], begun, position, tuple(timed)))
            timed, begun = [], position
    return BookTimeline(rate, tuple(chapters))


def with_words(timeline: BookTimeline, store: JobStore, estimated: bool) -> BookTimeline:
    """The timeline with the words of its chunks.

    ``estimated``: a chunk that was spoken before its words were asked for has them in proportion to their letters.
    """

    def words(timed: TimedChunk) -> tuple[SpokenWord, ...]:
        known = [
            replace(word, start=word.start / timed.speed, end=word.end / timed.speed)
            for word in store.words(timed.chunk.key)
        ]
        if estimated and not known:
            seconds = (timed.end - timed.start) / timeline.rate
            known += interpolate_words(
                WORDS.findall(without_commands(timed.chunk.text)), (min(BREATH, seconds), max(0.0, seconds - BREATH))
            )
        return tuple(known)

    return replace(
        timeline,
        chapters=tuple(
            replace(chapter, chunks=tuple(replace(timed, words=words(timed)) for timed in chapter.chunks))
            for chapter in timeline.chapters
        ),
    )


def silence_of(stored: StoredChunk) -> int:
    """Samples of silence after a chunk."""
    return max(0, round((stored.chunk.silence - 2 * BREATH) * (stored.rate or 0))) if stored.samples else 0


def cue_speed(chunks: Sequence[StoredChunk], slot: int) -> float:
    """How much faster the chunks of a subtitle must be, at most ``MAX_CUE_SPEED``, to end within ``slot`` samples."""
    slot -= sum(map(silence_of, chunks[:-1]))
    samples = sum(chunk.samples or 0 for chunk in chunks)
    return MAX_CUE_SPEED if slot <= 0 else min(MAX_CUE_SPEED, max(1.0, samples / slot))


def late_cues(timeline: BookTimeline, blocks: Sequence[PlannedBlock]) -> list[str]:
    """Which subtitles begin later than they should, although those before them are as fast as they may be."""
    starts = {timed.chunk.number: timed for timed in timeline.chunks}
    late = [
        (starts[block.first], timeline.seconds(starts[block.first].start) - block.cue[0])
        for block in blocks
        if block.cue and block.first in starts
    ]
    return [
        f"chunk {timed.chunk.number}, {shorten(timed.chunk.text)!r}, begins {seconds:.1f} s late: what is before "
        f"it is too long, also at {MAX_CUE_SPEED:g} times its speed"
        for timed, seconds in late
        if seconds > LATE
    ]


def sound_of_book(store: JobStore, timeline: BookTimeline) -> Iterator[np.ndarray]:
    """The samples of all chunks with the silence between them, in pieces (n,) float32. One sound is in memory."""
    block, position = np.zeros(SILENCE_BLOCK, np.float32), timeline.chapters[0].start

    def silence(end: int) -> Iterator[np.ndarray]:
        return (block[: end - start] for start in range(position, end, SILENCE_BLOCK))

    for chapter in timeline.chapters:
        for timed in chapter.chunks:
            yield from silence(timed.start)
            stretcher = TimeStretcher(timed.speed, timeline.rate)
            yield stretcher.feed(store.sound(timed.chunk.key))
            yield stretcher.finish()
            position = timed.end
        yield from silence(chapter.end)
        position = chapter.end
