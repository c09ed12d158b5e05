"""Prepare an audiobook for ACX: one file per chapter. ACX prescribes its encoding, levels, room tone and credits.

Source: https://help.acx.com/s/article/what-are-the-acx-audio-submission-requirements.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ane.audio.media import FORMATS
from ane.books.assembly import BookTimeline, TimedChapter, TimedChunk
from ane.books.document import BookChapter, Document
from ane.system.errors import NoEffectError
from ane.text.blocks import PARAGRAPH, TextBlock

FORMAT = replace(FORMATS[".mp3"], bit_rate=192_000, rate=44_100)  # constant bit rate
CREDITS = ("Opening Credits", "Closing Credits")  # titles of chapters
HEAD, TAIL = 0.75, 2.0  # seconds of room tone before and after a chapter (ACX requires 0.5 to 1, and 1 to 5)
ROOM_TONE = -70.0  # dB RMS, added to the whole sound, because ACX rejects digital silence
RMS = -20.0  # dB RMS of the whole book
PEAK = -3.2  # dBTP, a little below ACX's limit because decoders differ
RMS_RANGE = (-22.5, -18.5)  # dB RMS of a single file; a file outside this range is moved to the nearer limit
# ACX's limits for every file: name of the measure → unit, minimum, maximum
LIMITS: Mapping[str, tuple[str, float, float]] = {
    "length": ("s", 0.0, 7200.0),
    "RMS": ("dB", -23.0, -18.0),
    "peak": ("dB", -np.inf, -3.0),
    "noise floor": ("dB", -np.inf, -60.0),
}


def check_options(path: Path, per_chapter: bool, loudness: float | None) -> None:
    """Raise NoEffectError unless the output of a book can be what ACX requires."""
    if path.suffix.lower() != ".mp3" or not per_chapter:
        needs = "an .mp3 output, one file per chapter, and no loudness, because it sets the level itself"
        raise NoEffectError("acx", f"on {path.suffix}", text=f"acx needs {needs}")
    if loudness is not None:
        raise NoEffectError("loudness", "with acx, which sets the level itself", "leave one out", ("acx",))


def opening_credits(title: str, author: str, narrator: str) -> str:
    """Return the text of the opening credits that ACX requires."""
    return (
        f"{title or 'This audiobook'}.{f' Written by {author}.' * bool(author)}"
        f"{f' Narrated by {narrator}.' * bool(narrator)}"
    )


def closing_credits(title: str, author: str, narrator: str) -> str:
    """Return the text of the closing credits that ACX requires."""
    return (
        f"You have been listening to {title or 'an audiobook'}{f', written by {author}' * bool(author)}"
        f"{f', narrated by {narrator}' * bool(narrator)}. The end."
    )


def with_credits(document: Document, opening: str, closing: str) -> Document:
    """Add a chapter of credits at the start and at the end of a document. An empty text adds no chapter."""
    first, last = (
        [BookChapter(title, [TextBlock(PARAGRAPH, text)])] * bool(text.strip())
        for title, text in zip(CREDITS, (opening, closing), strict=True)
    )
    return replace(document, chapters=[*first, *document.chapters, *last])


def with_room(timeline: BookTimeline) -> BookTimeline:
    """Add ``HEAD`` seconds before each chapter's speech and ``TAIL`` seconds after it. Return the new timeline."""
    head, tail = (round(seconds * timeline.rate) for seconds in (HEAD, TAIL))
    start, chapters = 0, list[TimedChapter]()
    for chapter in timeline.chapters:
        shift = start + head - chapter.start
        chunks = tuple[TimedChunk, ...](
            replace(timed, start=timed.start + shift, end=timed.end + shift) for timed in chapter.chunks
        )
        chapters.append(replace(chapter, start=start, end=chunks[-1].end + tail, chunks=chunks))
        start = chapters[-1].end
    return replace(timeline, chapters=tuple(chapters))


def with_room_tone(pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Add quiet noise to sound, which comes in pieces (n,) float32. The noise is the same in every run."""
    random, kernel = np.random.default_rng(0), np.full(8, 1 / 8)  # low-pass filter: the noise hums and does not hiss
    level = 10 ** (ROOM_TONE / 20) * np.sqrt(8)
    for piece in pieces:
        if len(piece):
            noise = np.convolve(random.normal(0, level, len(piece) + 7), kernel, "valid")
            yield (piece + noise).astype(np.float32)


def faults(measures: Iterable[float]) -> list[str]:
    """Return a sentence for every limit of ACX that a file exceeds.

    Args:
        measures: The measured values of the file, in the order of ``LIMITS``.
    """
    return [
        f"the {name} is {value:.1f} {unit}, but ACX requires "
        + (f"at least {least:g}" if value < least else f"at most {most:g}")
        for value, (name, (unit, least, most)) in zip(measures, LIMITS.items(), strict=True)
        if not least <= value <= most
    ]
