"""The result of FastSpeech."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ane.models.recording import Recording
from ane.models.spoken_words import SpokenWord
from ane.system.timeline import Timeline

SAMPLE_RATE = 22050
HOP = 256               # samples of a mel frame
HIGHEST = 8000.0        # Hz: upper end of the mel bands


@dataclass
class FastSpeechResult(Recording):
    """Synthesised speech.

    Attributes:
        audio: (S,) float32 within ±1 at ``sample_rate``.
        speed: speed of speech.
        chunks: the pieces of text that were spoken in one pass each.
        mels: of each chunk, (M, L) float32, natural logarithms.
        durations: of each chunk, the frames of its symbols, (T,) int64.
        seconds_by_phase: seconds by phase of work ("text", "mel", "vocode").
        elapsed: total wall-clock seconds.
        notes: warnings about this result.
        timeline: when each phase ran.
        words: when each word is heard.
        seed: of WaveGlow's noise; None with another vocoder, where nothing is random.
    """

    audio: np.ndarray
    speed: float
    chunks: list[str]
    mels: list[np.ndarray]
    durations: list[np.ndarray]
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    elapsed: float = 0.0
    notes: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    sample_rate: int = SAMPLE_RATE
    seed: int | None = None
    words: list[SpokenWord] = field(default_factory=list)
    alternatives: tuple[np.ndarray, ...] = ()       # there are none; other families have some

    @property
    def facts(self) -> dict[str, Any]:
        """What only this kind of model reports: the speed, the number of mel frames, and the seed if there is one."""
        seed = {} if self.seed is None else {"seed": self.seed}
        return seed | {"speed": self.speed, "frames": sum(mel.shape[1] for mel in self.mels)}
