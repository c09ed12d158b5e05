"""Define a transcript, and write it as plain text, JSON, SubRip subtitles (.srt) or WebVTT subtitles (.vtt)."""

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
    """A word and its times. Its text includes the space before it, and its punctuation."""

    word: str
    start: float  # seconds from the beginning of the recording
    end: float
    probability: float  # mean probability of the word's tokens


@dataclass(frozen=True)
class TranscriptSegment:
    """A part of a transcript, which is about one sentence long. Each of the decoder's windows has one or more segments.

    ``temperature`` and all fields after it, except ``words``, describe the window of the segment.
    """

    start: float  # seconds from the beginning of the recording
    end: float
    text: str  # the text, with the space before it
    tokens: tuple[int, ...]  # the tokens, with timestamps
    temperature: float  # temperature at which the window was decoded
    average_log_probability: float
    no_speech_probability: float
    compression_ratio: float
    words: tuple[TranscriptWord, ...] | None = None  # None if word_times was not set
    seek: int = 0  # start of the window, in mel frames of 10 ms


@dataclass(frozen=True, repr=False)
class Transcript:
    """The text of one recording."""

    text: str
    language: str  # code of the language; "" if nobody gave it, and there was no sound to detect it from
    duration: float  # length of the recording in seconds
    segments: tuple[TranscriptSegment, ...] = ()

    @property
    def words(self) -> tuple[TranscriptWord, ...]:
        """All words with their times.

        Raises:
            UserError: The recording was transcribed without ``word_times``.
        """
        if any(segment.words is None for segment in self.segments):
            raise UserError("this transcript has no word times: transcribe with word_times=True")
        return tuple(word for segment in self.segments for word in segment.words or ())

    def __repr__(self) -> str:
        return (
            f"<Transcript: {self.duration:.2f} s, {self.language or 'no language'}, {len(self.segments)} segments, "
            f"{textwrap.shorten(self.text, 40, placeholder='…')!r}>"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON. Segments have "words" only if ``word_times`` was set."""
        content = asdict(self)
        for segment in content["segments"]:
            if segment["words"] is None:
                del segment["words"]
        return content


def as_text(transcript: Transcript) -> str:
    """Write the text, with one line per segment."""
    return "".join(f"{segment.text.strip()}\n" for segment in transcript.segments)


def as_json(transcript: Transcript) -> str:
    """Write a JSON object with every field, on one line."""
    return json.dumps(transcript.as_dict(), ensure_ascii=False) + "\n"


def as_srt(transcript: Transcript) -> str:
    """Write SubRip subtitles, which are numbered. Times look like 00:00:00,000."""
    from ane.text.subtitles import srt  # imports all text rules, which can take longer than transcribing

    return srt(cues(transcript, lambda text: text.replace("-->", "->")))


def as_vtt(transcript: Transcript) -> str:
    """Write WebVTT subtitles, for web players. Times look like 00:00:00.000, and &, < and > are escaped."""
    from ane.text.subtitles import vtt

    return vtt(cues(transcript, partial(html.escape, quote=False)))


FORMATS: dict[str, Callable[[Transcript], str]] = {"txt": as_text, "json": as_json, "srt": as_srt, "vtt": as_vtt}


def cues(transcript: Transcript, escape: Callable[[str], str]) -> "Iterator[Cue]":
    """Yield the subtitles of a transcript.

    Each segment becomes one subtitle. But if words have times, each word and each pause between words becomes a
    subtitle. The subtitle of a word shows the whole segment with this word underlined, as with ``--highlight_words`` of
    openai-whisper.
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
    """Underline a word with <u>, but not the space before it."""
    text = word.lstrip()
    return f"{word[: len(word) - len(text)]}<u>{text}</u>"
