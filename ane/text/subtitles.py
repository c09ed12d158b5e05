"""Write subtitles as SubRip (.srt) and WebVTT (.vtt)."""

import html
from collections.abc import Iterable

WEBVTT = "WEBVTT\n"
Cue = tuple[float, float, str]  # seconds from and to which a text is shown


def srt(cues: Iterable[Cue]) -> str:
    """Return numbered subtitles, with times as 00:00:00,000."""
    return "\n".join(
        f"{number}\n{clock(start, ',')} --> {clock(end, ',')}\n{text}\n"
        for number, (start, end, text) in enumerate(cues, 1)
    )


def vtt(cues: Iterable[Cue]) -> str:
    """Return subtitles for web players, with times as 00:00:00.000. The texts are escaped already."""
    return WEBVTT + "".join(f"\n{clock(start, '.')} --> {clock(end, '.')}\n{text}\n" for start, end, text in cues)


def clock(seconds: float, point: str) -> str:
    """Write 3723.5 seconds as "01:02:03", ``point`` and "500"."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{milliseconds:03}"


def without_arrows(text: str) -> str:
    """Return a text without the arrow that would end a subtitle."""
    return text.replace("-->", "→")


def escaped(text: str) -> str:
    """Return a text for WebVTT."""
    return html.escape(without_arrows(text), quote=False)
