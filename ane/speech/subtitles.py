"""Write subtitles for a speech, from the times of its words."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ane.speech.words import SpokenWord
from ane.system.files import replacing
from ane.text.splitter import CLOSING
from ane.text.subtitles import Cue, escaped, srt, vtt, without_arrows

if TYPE_CHECKING:
    from ane.speech.stream import Speech

LINE = 42  # most characters in a line. A subtitle has two lines
ENDS = (".", "!", "?", "…", ":")
PAUSE = 0.7  # seconds of silence between two words that begin a new subtitle


def write_subtitles(path: Path, speech: "Speech") -> None:
    """Write the subtitles of a speech, in the format that the suffix names, .srt or .vtt."""
    form, escape = (srt, without_arrows) if path.suffix.lower() == ".srt" else (vtt, escaped)
    with replacing(path, lasting=True) as target:
        target.write_text(form(cues(speech.words, escape)), encoding="utf-8")


def cues(words: Sequence[SpokenWord], escape: Callable[[str], str]) -> Iterator[Cue]:
    """Yield one subtitle per sentence, or several if it fills more than two lines.

    Another voice or a pause also begins a new subtitle.
    """
    held: list[SpokenWord] = []
    for word in words:
        if held and (
            held[-1].word.rstrip(CLOSING).endswith(ENDS)
            or len(lines_of([*held, word])) > 2
            or word.voice != held[-1].voice
            or word.start - held[-1].end > PAUSE
        ):
            yield cue_of(held, escape)
            held = []
        held.append(word)
    if held:
        yield cue_of(held, escape)


def cue_of(words: Sequence[SpokenWord], escape: Callable[[str], str]) -> Cue:
    voice = words[0].voice
    said = "" if not voice else f"<v {escape(voice)}>" if escape is escaped else f"{escape(voice)}: "
    return words[0].start, words[-1].end, said + "\n".join(map(escape, lines_of(words)))


def lines_of(words: Sequence[SpokenWord]) -> list[str]:
    """Break words into lines of at most ``LINE`` characters. A longer word fills a line alone."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word.word) <= LINE:
            lines[-1] += f" {word.word}"
        else:
            lines.append(word.word)
    return lines
