"""Subtitles of a spoken book (SubRip, WebVTT), and its times as JSON."""

import html
import textwrap
from typing import Any

from ane.books.assembly import BookTimeline

LINE = 80       # characters of a line of a subtitle


def srt(timeline: BookTimeline) -> str:
    """SubRip: one subtitle a chunk, from its first to its last sample."""
    cues = [f"{number}\n{_time(timeline.seconds(timed.start), ',')} --> {_time(timeline.seconds(timed.end), ',')}\n"
            f"{_lines(timed.chunk.text)}\n" for number, timed in enumerate(timeline.chunks, 1)]
    return "\n".join(cues)


def vtt(timeline: BookTimeline) -> str:
    """WebVTT, with the title of each chapter as a note before it."""
    parts = ["WEBVTT\n"]
    for chapter in timeline.chapters:
        parts.append(f"NOTE {' '.join(chapter.title.replace('-->', '→').split())}\n")
        parts += [f"{_time(timeline.seconds(timed.start), '.')} --> {_time(timeline.seconds(timed.end), '.')}\n"
                  f"{html.escape(_lines(timed.chunk.text), quote=False)}\n" for timed in chapter.chunks]
    return "\n".join(parts)


def times(timeline: BookTimeline) -> list[dict[str, Any]]:
    """The chapters with their chunks, in seconds from the start of the timeline."""
    return [{"title": chapter.title, "start": timeline.seconds(chapter.start), "end": timeline.seconds(chapter.end),
             "chunks": [{"number": timed.chunk.number, "kind": timed.chunk.kind, "text": timed.chunk.text,
                         "start": timeline.seconds(timed.start), "end": timeline.seconds(timed.end),
                         **({"language": timed.chunk.language} if timed.chunk.language else {})}
                        for timed in chapter.chunks]} for chapter in timeline.chapters]


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    return (f"{milliseconds // 3_600_000:02}:{milliseconds // 60_000 % 60:02}:{milliseconds // 1000 % 60:02}"
            f"{point}{milliseconds % 1000:03}")


def _lines(text: str) -> str:
    return "\n".join(textwrap.wrap(" ".join(text.replace("-->", "→").split()), LINE)) or text
