"""Subtitles of a spoken book (SubRip, WebVTT), and its times as JSON."""

import html
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from ane.books.assembly import BookTimeline, TimedChunk
from ane.speech.words import WORDS, SpokenWord
from ane.text.passages import without_commands

LINE = 80       # characters of a line of a subtitle


def srt(timeline: BookTimeline) -> str:
    """SubRip: one subtitle a chunk, from its first to its last sample; where words are timed one a word, underlined."""
    shown = (cue for timed in timeline.chunks for cue in cues(timeline, timed, without_arrows))
    return "\n".join(f"{number}\n{_time(start, ',')} --> {_time(end, ',')}\n{text}\n"
                     for number, (start, end, text) in enumerate(shown, 1))


def vtt(timeline: BookTimeline) -> str:
    """WebVTT with the same subtitles, and the title of each chapter as a note before them."""
    parts = ["WEBVTT\n"]
    for chapter in timeline.chapters:
        parts.append(f"NOTE {without_arrows(' '.join(chapter.title.split()))}\n")
        parts += [f"{_time(start, '.')} --> {_time(end, '.')}\n{text}\n" for timed in chapter.chunks
                  for start, end, text in cues(timeline, timed, escaped)]
    return "\n".join(parts)


def cues(timeline: BookTimeline, timed: TimedChunk,
         escape: Callable[[str], str]) -> Iterator[tuple[float, float, str]]:
    """Seconds from and to which each subtitle of a chunk is shown, and its lines.

    With its words, a subtitle shows the chunk from a word to the next one, and underlines it, as `ane transcribe` does.
    """
    begin, end, voice = timeline.seconds(timed.start), timeline.seconds(timed.end), timed.chunk.voice
    said = "" if not voice else f"<v {escape(voice)}>" if escape is escaped else f"{escape(voice)}: "
    lines, words = _lines(timed.chunk.text), timed.words
    if not words or [word.word for word in words] != [word for line in lines for word in line]:
        yield begin, end, said + "\n".join(escape(" ".join(line)) for line in lines)
        return
    starts = [begin, *(begin + word.start for word in words[1:]), end]
    for index, (start, stop) in enumerate(pairwise(starts)):
        if stop > start:
            place = iter(range(len(words)))
            yield start, stop, said + "\n".join(
                " ".join(f"<u>{escape(word)}</u>" if next(place) == index else escape(word) for word in line)
                for line in lines)


def without_arrows(text: str) -> str:
    """An arrow would end a subtitle."""
    return text.replace("-->", "→")


def escaped(text: str) -> str:
    """Text for WebVTT."""
    return html.escape(without_arrows(text), quote=False)


def times(timeline: BookTimeline) -> list[dict[str, Any]]:
    """The chapters with their chunks, and these with their words if they are timed, in seconds from the start of the
    timeline."""
    return [{"title": chapter.title, "start": timeline.seconds(chapter.start), "end": timeline.seconds(chapter.end),
             "chunks": [{"number": timed.chunk.number, "kind": timed.chunk.kind,
                         "text": timed.chunk.text,
                         "start": timeline.seconds(timed.start), "end": timeline.seconds(timed.end),
                         **({"voice": timed.chunk.voice} if timed.chunk.voice else {}),
                         **({"language": timed.chunk.language} if timed.chunk.language else {}),
                         **word_list(timed.words, timeline.seconds(timed.start))}
                        for timed in chapter.chunks]} for chapter in timeline.chapters]


def word_list(words: Sequence[SpokenWord], offset: float) -> dict[str, Any]:
    """The key "words" of a chunk that begins at ``offset``; {} without words."""
    listed = [{"word": word.word, "start": offset + word.start, "end": offset + word.end,
               **({"estimated": True} if word.estimated else {})} for word in words]
    return {"words": listed} if listed else {}


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    return (f"{milliseconds // 3_600_000:02}:{milliseconds // 60_000 % 60:02}:{milliseconds // 1000 % 60:02}"
            f"{point}{milliseconds % 1000:03}")


def _lines(text: str) -> list[list[str]]:
    """The words of a text in lines of a subtitle."""
    lines: list[list[str]] = []
    for word in WORDS.findall(without_commands(text)):
        if lines and sum(map(len, lines[-1])) + len(lines[-1]) + len(word) <= LINE:
            lines[-1].append(word)
        else:
            lines.append([word])
    return lines or [[text]]
