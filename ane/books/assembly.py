"""Assemble the sound of a book from the sounds of its chunks: decide when each chunk starts, and yield the samples."""

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

SILENCE_BLOCK = 1 << 18  # samples in one array of silence, about ten seconds
MAX_CUE_SPEED = 1.5  # maximum factor by which speech is sped up if it takes longer than its subtitle is shown
LATE = 0.05  # seconds by which a subtitle may start late before a note reports it


@dataclass(frozen=True)
class TimedChunk:
    """A chunk and its position in the sound of a book.

    Attributes:
        start: Sample at which the chunk's sound starts.
        end: Sample at which the chunk's sound ends.
        speed: Factor by which the book plays the chunk faster than the model spoke it.
        words: The words of the chunk, with times in seconds from ``start``. The list is empty until ``with_words`` adds
            the words.
    """

    chunk: PlannedChunk
    start: int
    end: int
    speed: float = 1.0
    words: tuple[SpokenWord, ...] = ()


@dataclass(frozen=True)
class TimedChapter:
    """A chapter and its position in the sound of a book.

    Attributes:
        number: Number of the chapter in the book, from 1.
        start: Sample at which the chapter starts.
        end: Sample at which the chapter ends, after its last silence.
    """

    number: int
    title: str
    start: int
    end: int
    chunks: tuple[TimedChunk, ...]


@dataclass(frozen=True)
class BookTimeline:
    """The positions of chapters in a sound file, in samples at ``rate`` Hz.

    The file has the sound of a whole book, or of some of its chapters.
    """

    rate: int
    chapters: tuple[TimedChapter, ...]

    @property
    def samples(self) -> int:
        return self.chapters[-1].end - self.chapters[0].start

    @property
    def chunks(self) -> Iterator[TimedChunk]:
        return (chunk for chapter in self.chapters for chunk in chapter.chunks)

    def seconds(self, sample: int) -> float:
        """Return the time of a sample in seconds since the start of the first chapter."""
        return (sample - self.chapters[0].start) / self.rate

    def parts(self) -> list["BookTimeline"]:
        """Split the timeline into timelines of one chapter each."""
        return [BookTimeline(self.rate, (chapter,)) for chapter in self.chapters]


def planned_blocks(store: JobStore) -> list[PlannedBlock]:
    """Return the blocks of text that a job (the narration of a book) stores: headings, paragraphs and so on.

    Old jobs did not store blocks.
    """
    return [PlannedBlock(*block) for block in (store.fact("text") or {}).get("blocks", [])]


def time_book(
    chunks: Sequence[StoredChunk], titles: Sequence[str], blocks: Sequence[PlannedBlock] = ()
) -> BookTimeline:
    """Decide when each chunk starts. A subtitle starts at its time, or later if the one before it has not ended.

    Raises:
        UserError: A chunk has no sound yet, or the sounds of two chunks have different sample rates.
    """
    rates = {chunk.rate for chunk in chunks}
    if None in rates or len(rates) != 1:
        raise UserError("the job changed while it was written to a file: run the command again")
    if any(chunk.chunk.chapter >= len(titles) for chunk in chunks):
        raise UserError("the job is damaged, because a chunk has no chapter: delete its folder to start over")
    rate, position, begun, speed = next(rate for rate in rates if rate), 0, 0, 1.0
    cues = {block.first: block.cue for block in blocks if block.cue}
    ends = dict(pairwise([*(index for index, chunk in enumerate(chunks) if chunk.chunk.number in cues), len(chunks)]))
    chapters: list[TimedChapter] = []
    timed: list[TimedChunk] = []
    for index, stored in enumerate(chunks):
        if cue := cues.get(stored.chunk.number):
            position = max(position, round(cue[0] * rate))
            after = ends[index]  # index of the next subtitle's first chunk
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
    """Add to a timeline the words of its chunks, with their times.

    Args:
        estimated: Whether to estimate, from numbers of letters, the times of words that the job has not timed.
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
    """Return the length of the silence after a chunk, in samples."""
    return max(0, round((stored.chunk.silence - 2 * BREATH) * (stored.rate or 0))) if stored.samples else 0


def cue_speed(chunks: Sequence[StoredChunk], slot: int) -> float:
    """Return the factor by which the chunks of a subtitle must be sped up to fit into ``slot`` samples.

    The factor is at least 1 and at most ``MAX_CUE_SPEED``.
    """
    slot -= sum(map(silence_of, chunks[:-1]))
    samples = sum(chunk.samples or 0 for chunk in chunks)
    return MAX_CUE_SPEED if slot <= 0 else min(MAX_CUE_SPEED, max(1.0, samples / slot))


def late_cues(timeline: BookTimeline, blocks: Sequence[PlannedBlock]) -> list[str]:
    """Return a note for each subtitle that starts late although the one before was sped up to ``MAX_CUE_SPEED``."""
    starts = {timed.chunk.number: timed for timed in timeline.chunks}
    late = [
        (starts[block.first], timeline.seconds(starts[block.first].start) - block.cue[0])
        for block in blocks
        if block.cue and block.first in starts
    ]
    return [
        f"chunk {timed.chunk.number}, {shorten(timed.chunk.text)!r}, starts {seconds:.1f} s late: the subtitles before "
        f"it are too long, even at {MAX_CUE_SPEED:g} times the speed"
        for timed, seconds in late
        if seconds > LATE
    ]


def sound_of_book(store: JobStore, timeline: BookTimeline) -> Iterator[np.ndarray]:
    """Yield the samples of all chunks and of the silences between them, in arrays (n,) float32.

    The function never has more than one chunk's sound in memory.
    """
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
