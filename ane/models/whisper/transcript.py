"""Hold a transcript, and write it as plain text, JSON, or subtitles of SubRip (.srt) and WebVTT (.vtt)."""

import html
import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.text.subtitles import Cue


@dataclass(frozen=True)
class TranscriptWord:
    """A word with its times. It includes the space before it, and its punctuation."""

    word: str
    start: float  # seconds from the beginning of the recording
    end: float
    probability: float  # mean probability of its tokens


@dataclass(frozen=True)
class TranscriptSegment:
    """A part of a transcript, about a sentence. Fields from ``temperature`` on, except words, describe its window."""

    start: float  # seconds from the beginning of the recording
    end: float
    text: str  # with the space before it
    tokens: tuple[int, ...]  # with timestamps
    temperature: float  # temperature at which it was decoded
    average_log_probability: float
    no_speech_probability: float
    compression_ratio: float
    words: tuple[TranscriptWord, ...] | None = None  # None if they were not asked for
    seek: int = 0  # frames of 10 ms before its window


@dataclass(frozen=True, repr=False)
class Transcript:
    """The text of one recording."""

    text: str
    language: str  # "" if it was neither given nor detected, because there was no sound
    duration: float  # length of the recording in seconds
    segments: tuple[TranscriptSegment, ...] = ()

    @property
    def words(self) -> tuple[TranscriptWord, ...]:
        """All words with their times.

        Raises:
            UserError: The recording was transcribed without ``word_times``.
        """
        if any(segment.words is None for segment in self.segments):
            raise UserError("this transcript has no times of words: transcribe with word_times=True")
        return tuple(word for segment in self.segments for word in segment.words or ())

    def __repr__(self) -> str:
        return (
            f"<Transcript: {self.duration:.2f} s, {self.language or 'no language'}, {len(self.segments)} segments, "
            f"{textwrap.shorten(self.text, 40, placeholder='…')!r}>"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON. Segments have "words" only if these were asked for."""
        content = asdict(self)
        for segment in content["segments"]:
            if segment["words"] is None:
                del segment["words"]
        return content


def as_text(transcript: Transcript) -> str:
    """Return a line per segment."""
    return "".join(f"{segment.text.strip()}\n" for segment in transcript.segments)


def as_json(transcript: Transcript) -> str:
    """Return a JSON object with every field, in one line."""
    return json.dumps(transcript.as_dict(), ensure_ascii=False) + "\n"


def as_srt(transcript: Transcript) -> str:
    """Return numbered subtitles. Times are written as 00:00:00,000."""
    from ane.text.subtitles import srt  # imports all rules of text, which take longer than a short recording

    return srt(cues(transcript, lambda text: text.replace("-->", "->")))


def as_vtt(transcript: Transcript) -> str:
    """Return subtitles for web players. Times are written as 00:00:00.000, and &, < and > are escaped."""
    from ane.text.subtitles import vtt

    return vtt(cues(transcript, partial(html.escape, quote=False)))


FORMATS: dict[str, Callable[[Transcript], str]] = {"txt": as_text, "json": as_json, "srt": as_srt, "vtt": as_vtt}


def cues(transcript: Transcript, escape: Callable[[str], str]) -> "Iterator[Cue]":
    """Yield a subtitle for each segment.

    If words are timed, yield one for each word, which is underlined in the segment's text, and one for each pause
    between words, as openai-whisper's ``--highlight_words`` does.
    """
    for segment in transcript.segments:
        if not segment.words:
            yield segment.start, segment.end, escape(segment.text.strip())
            continue
        parts = [escape(word.word) for word in segment.words]
        shown = segment.start
        for index, word in enumerate(segment.words):
            if word.start > shown:
                yield shown, word.start, "".join(parts).strip()
            yield word.start, word.end, "".join((*parts[:index], underlined(parts[index]), *parts[index + 1 :])).strip()
            shown = word.end


def underlined(word: str) -> str:
    """Return the word in <u>, with the space before it outside."""
    text = word.lstrip()
    return f"{word[: len(word) - len(text)]}<u>{text}</u>"
