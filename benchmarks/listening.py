"""Measure speech for the quality benchmark: words, pitch, and defects of the waveform."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ane.audio import resample
from ane.books.judging import clicks
from training.pitch import RATE, pitch_of

FRAME = 240  # samples of a loudness frame: 10 ms at 24 kHz
QUIET = 10 ** (-45 / 20)  # below this a frame is silence


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def edits(expected: Sequence[str], transcript: Sequence[str]) -> int:
    """Return the number of words to insert, delete or replace (Levenshtein distance)."""
    row = list(range(len(transcript) + 1))
    for i, word in enumerate(expected, 1):
        previous, row[0] = row[0], i
        for j, recognised in enumerate(transcript, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (word != recognised))
    return row[-1]


@dataclass(frozen=True)
class Wave:
    """Properties of a wave.

    Attributes:
        seconds: Length of the wave.
        f0: Median pitch of voiced frames in Hz.
        f0_spread: Standard deviation of their pitch in semitones.
        loudness: Loudness of the spoken frames, in dBFS.
        silent_end: Seconds of silence after the last sound.
        clicks: Number of clicks, as `ane read` finds them.
        finite: Whether it has neither NaN nor infinity.
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
