"""Render the subtitles of a spoken book as SubRip or WebVTT, and list the times of its chapters, chunks and words."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from ane.books.assembly import BookTimeline, TimedChunk
from ane.speech.words import WORDS, SpokenWord
from ane.text import subtitles
from ane.text.passages import without_commands
from ane.text.subtitles import Cue, escaped, without_arrows

LINE = 80  # characters per line of a subtitle


def srt(timeline: BookTimeline) -> str:
    """Render SubRip subtitles, one per chunk.

    If words have times, each word has a subtitle, in which it is underlined.
    """
    return subtitles.srt(cue for timed in timeline.chunks for cue in cues(timeline, timed, without_arrows))


def vtt(timeline: BookTimeline) -> str:
    """Render the subtitles of ``srt`` as WebVTT. Before each chapter, a NOTE block contains the title."""
    parts = (
        f"\nNOTE {without_arrows(' '.join(chapter.title.split()))}\n"
        + subtitles.vtt(cue for timed in chapter.chunks for cue in cues(timeline, timed, escaped)).removeprefix(
            subtitles.WEBVTT
        )
        for chapter in timeline.chapters
    )
    return subtitles.WEBVTT + "".join(parts)


def cues(timeline: BookTimeline, timed: TimedChunk, escape: Callable[[str], str]) -> Iterator[Cue]:
    """Yield each subtitle of a chunk: its start and end in seconds, and its lines.

    If the words have times, each word gets a subtitle, which shows the whole chunk with this word underlined.
    """
    begin, end, voice = timeline.seconds(timed.start), timeline.seconds(timed.end), timed.chunk.voice
    name = "" if not voice else f"<v {escape(voice)}>" if escape is escaped else f"{escape(voice)}: "
    lines, words = _lines(timed.chunk.text), timed.words
    if not words or [word.word for word in words] != [word for line in lines for word in line]:
        yield begin, end, name + "\n".join(escape(" ".join(line)) for line in lines)
        return
    starts = [begin, *(begin + word.start for word in words[1:]), end]
    for index, (start, stop) in enumerate(pairwise(starts)):
        if stop > start:
            place = iter(range(len(words)))
            yield (
                start,
                stop,
                name
                + "\n".join(
                    " ".join(f"<u>{escape(word)}</u>" if next(place) == index else escape(word) for word in line)
                    for line in lines
                ),
            )


def times(timeline: BookTimeline) -> list[dict[str, Any]]:
    """List the chapters, with their chunks and timed words. Times are seconds from the start of the timeline."""
    return [
        {
            "title": chapter.title,
            "start": timeline.seconds(chapter.start),
            "end": timeline.seconds(chapter.end),
            "chunks": [
                {
                    "number": timed.chunk.number,
                    "kind": timed.chunk.kind,
                    "text": timed.chunk.text,
                    "start": timeline.seconds(timed.start),
                    "end": timeline.seconds(timed.end),
                    **({"voice": timed.chunk.voice} if timed.chunk.voice else {}),
                    **({"language": timed.chunk.language} if timed.chunk.language else {}),
                    **word_list(timed.words, timeline.seconds(timed.start)),
                }
                for timed in chapter.chunks
            ],
        }
        for chapter in timeline.chapters
    ]


def word_list(words: Sequence[SpokenWord], offset: float) -> dict[str, Any]:
    """Return the JSON field "words" of a chunk that starts at ``offset`` seconds, or {} if no words are timed."""
    listed = [
        {
            "word": word.word,
            "start": offset + word.start,
            "end": offset + word.end,
            **({"estimated": True} if word.estimated else {}),
        }
        for word in words
    ]
    return {"words": listed} if listed else {}


def _lines(text: str) -> list[list[str]]:
    """Divide the words of a text among the lines of a subtitle."""
    lines: list[list[str]] = []
    for word in WORDS.findall(without_commands(text)):
        if lines and sum(map(len, lines[-1])) + len(lines[-1]) + len(word) <= LINE:
            lines[-1].append(word)
        else:
            lines.append([word])
    return lines or [[text]]
