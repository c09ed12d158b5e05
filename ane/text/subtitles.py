"""Format subtitles, whose texts and times are known, as SubRip (.srt) and WebVTT (.vtt)."""

import html
from collections.abc import Iterable

WEBVTT = "WEBVTT\n"
Cue = tuple[float, float, str]  # a subtitle: the seconds at which it begins and ends, and its text


def srt(cues: Iterable[Cue]) -> str:
    """Write SubRip subtitles, which are numbered. Times look like 00:00:00,000."""
    return "\n".join(
        f"{number}\n{clock(start, ',')} --> {clock(end, ',')}\n{text}\n"
        for number, (start, end, text) in enumerate(cues, 1)
    )


def vtt(cues: Iterable[Cue]) -> str:
    """Write WebVTT subtitles, for web players. Times look like 00:00:00.000. The caller has escaped the texts."""
    return WEBVTT + "".join(f"\n{clock(start, '.')} --> {clock(end, '.')}\n{text}\n" for start, end, text in cues)


def clock(seconds: float, point: str) -> str:
    """Write 3723.5 seconds as "01:02:03.500". ``point`` replaces the decimal point."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{milliseconds:03}"


def without_arrows(text: str) -> str:
    """Replace "-->" in a text, because subtitle files use this arrow between the times."""
    return text.replace("-->", "→")


def escaped(text: str) -> str:
    """Escape a text for WebVTT."""
    return html.escape(without_arrows(text), quote=False)
