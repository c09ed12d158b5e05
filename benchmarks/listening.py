"""Measure properties of speech for the quality benchmark: word errors, pitch, and defects of the waveform."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ane.audio import resample
from ane.books.judging import clicks
from training.pitch import RATE, pitch_of

FRAME = 240  # samples per frame in which loudness is measured: 10 ms at 24 kHz
QUIET = 10 ** (-45 / 20)  # a frame with a smaller root mean square is silence


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def edits(expected: Sequence[str], transcript: Sequence[str]) -> int:
    """Count the words to insert, delete or replace to turn one list into the other (Levenshtein distance)."""
    row = list(range(len(transcript) + 1))
    for i, word in enumerate(expected, 1):
        previous, row[0] = row[0], i
        for j, recognised in enumerate(transcript, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (word != recognised))
    return row[-1]


@dataclass(frozen=True)
class Wave:
    """Properties of a sound.

    Attributes:
        seconds: Length of the sound.
        f0: Median pitch of the voiced frames in Hz.
        f0_spread: Standard deviation of the voiced frames' pitch in semitones.
        loudness: Root mean square of all frames that are not silent, in dBFS.
        silent_end: Seconds of silence at the end.
        clicks: Number of clicks, counted as `ane read` counts them.
        finite: Whether all samples are finite.
    """

    seconds: float
    f0: float
    f0_spread: float
    loudness: float
    silent_end: float
    clicks: int
    finite: bool

    @classmethod
    def of(cls, audio: np.ndarray, rate: int) -> "Wave":
        frames = audio[: len(audio) // FRAME * FRAME].reshape(-1, FRAME)
        energy = np.sqrt((frames**2).mean(axis=1))
        spoken = np.flatnonzero(energy > QUIET)
        level = np.sqrt((frames[spoken] ** 2).mean()) if len(spoken) else 0.0
        end = len(audio) - (spoken[-1] + 1) * FRAME if len(spoken) else len(audio)
        pitch = pitch_of(resample(audio, rate, RATE), len(audio) // FRAME)
        pitch = pitch[pitch > 0]
        f0 = float(np.median(pitch)) if len(pitch) else float("nan")
        spread = float(np.std(12 * np.log2(pitch))) if len(pitch) else float("nan")
        return cls(
            len(audio) / rate,
            f0,
            spread,
            float(20 * np.log10(max(level, 1e-9))),
            end / rate,
            clicks(audio, rate),
            bool(np.isfinite(audio).all()),
        )
