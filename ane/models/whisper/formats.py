"""Transcripts as plain text, JSON, and the subtitles of SubRip (.srt) and WebVTT (.vtt)."""

import json
from collections.abc import Callable

from ane.models.whisper.transcript import Transcript


def as_text(transcript: Transcript) -> str:
    """A line for each segment."""
    return "".join(f"{segment.text.strip()}\n" for segment in transcript.segments)


def as_json(transcript: Transcript) -> str:
    """One object with every field, in one line."""
    return json.dumps(transcript.as_dict(), ensure_ascii=False) + "\n"


def as_srt(transcript: Transcript) -> str:
    """Numbered subtitles; times as 00:00:00,000."""
    return "\n".join(f"{number}\n{clock(segment.start, ',')} --> {clock(segment.end, ',')}\n"
                     f"{segment.text.strip().replace('-->', '->')}\n"
                     for number, segment in enumerate(transcript.segments, 1))


def as_vtt(transcript: Transcript) -> str:
    """Subtitles for web players; times as 00:00:00.000, and &, < and > escaped."""
    return "WEBVTT\n" + "".join(f"\n{clock(segment.start, '.')} --> {clock(segment.end, '.')}\n"
                                f"{escaped(segment.text.strip())}\n" for segment in transcript.segments)


FORMATS: dict[str, Callable[[Transcript], str]] = {"txt": as_text, "json": as_json, "srt": as_srt, "vtt": as_vtt}


def clock(seconds: float, separator: str) -> str:
    """3723.5 → "01:02:03" + separator + "500"."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{separator}{milliseconds:03}"


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
