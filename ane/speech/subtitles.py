"""Subtitles of a speech, from the times of its words."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ane.speech.words import SpokenWord
from ane.system.files import replacing
from ane.text.splitter import CLOSING
from ane.text.subtitles import Cue, escaped, srt, vtt, without_arrows

if TYPE_CHECKING:
    from ane.speech.stream import Speech

LINE = 42  # characters of a line, of which a subtitle has two
ENDS = (".", "!", "?", "…", ":")
PAUSE = 0.7  # seconds of silence between two words that divide a subtitle


def write_subtitles(path: Path, speech: "Speech") -> None:
    """Write the subtitles of a speech in the format of the suffix, .srt or .vtt."""
    form, escape = (srt, without_arrows) if path.suffix.lower() == ".srt" else (vtt, escaped)
    with replacing(path, lasting=True) as target:
        target.write_text(form(cues(speech.words, escape)), encoding="utf-8")


def cues(words: Sequence[SpokenWord], escape: Callable[[str], str]) -> Iterator[Cue]:
    """Yield a subtitle for each sentence, or part of one that fills two lines. Another voice or a pause begins one."""
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
    """Return the words in lines of at most ``LINE`` characters, or of one word."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word.word) <= LINE:
            lines[-1] += f" {word.word}"
        else:
            lines.append(word.word)
    return lines
