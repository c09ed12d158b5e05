"""Divide a speech into subtitles, and choose when each one appears and disappears, from the times of its words."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ane.speech.words import SpokenWord
from ane.system.files import replacing
from ane.text.splitter import CLOSING, ends_sentence
from ane.text.subtitles import Cue, escaped, srt, vtt, without_arrows

if TYPE_CHECKING:
    from ane.speech.stream import Speech

LINE = 42  # most characters in a line of a subtitle. A subtitle has at most two lines
PAUSE = 0.7  # if the silence between two words is longer than these seconds, a new subtitle begins


def write_subtitles(path: Path, speech: "Speech") -> None:
    """Write the subtitles of a speech to a file. The suffix of ``path`` chooses the format, .srt or .vtt."""
    form, escape = (srt, without_arrows) if path.suffix.lower() == ".srt" else (vtt, escaped)
    with replacing(path, lasting=True) as target:
        target.write_text(form(cues(speech.words, escape)), encoding="utf-8")


def cues(words: Sequence[SpokenWord], escape: Callable[[str], str]) -> Iterator[Cue]:
    """Divide words into subtitles, and yield them.

    A new subtitle begins after the end of a sentence, after a pause, when the voice changes, and when two lines are
    full.
    """
    held: list[SpokenWord] = []
    for word in words:
        if held and (
            ends_sentence([each.word for each in held], word.word)
            or held[-1].word.rstrip(CLOSING).endswith(":")
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
    """Break words into lines of at most ``LINE`` characters. A longer word gets a separate line."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word.word) <= LINE:
            lines[-1] += f" {word.word}"
        else:
            lines.append(word.word)
    return lines
