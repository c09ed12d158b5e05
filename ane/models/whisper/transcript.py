"""The result of a transcription: segments of text with their times."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TranscriptWord:
    """A word with its times, with the space before it and with its punctuation.

    Attributes:
        start, end: seconds from the beginning of the recording. probability: mean of those of its tokens.
    """

    word: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class TranscriptSegment:
    """A part of a transcript, about a sentence.

    Attributes:
        start, end: seconds from the beginning of the recording. text: with the space before it.
        tokens: with timestamps. temperature: at which its window was decoded.
        average_log_probability, no_speech_probability, compression_ratio: of its window.
        words: with their times; None: they were not asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    average_log_probability: float
    no_speech_probability: float
    compression_ratio: float
    words: tuple[TranscriptWord, ...] | None = None


@dataclass(frozen=True)
class Transcript:
    """The text of one recording.

    Attributes:
        language: its code; "" when it was neither given nor detected, because there was no sound.
        duration: of the recording, in seconds.
    """

    text: str
    language: str
    duration: float
    segments: tuple[TranscriptSegment, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON; segments have "words" only if these were asked for."""
        content = asdict(self)
        for segment in content["segments"]:
            if segment["words"] is None:
                del segment["words"]
        return content
