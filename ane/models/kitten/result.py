"""The result of synthesis with KittenTTS."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ane.models.recording import Recording
from ane.models.spoken_words import SpokenWord
from ane.system.timeline import Timeline

SAMPLE_RATE = 24000


@dataclass
class KittenSpeech(Recording):
    """Synthesised speech. The published graphs draw noise themselves, so only its length is the same in every run.

    Attributes:
        audio: (S,) float32 within ±1 at ``sample_rate``.
        voice: name of the voice's table.
        speed: speed of speech, without the voice's own factor.
        chunks: the pieces of text that were spoken in one pass each, preprocessed.
        tokens: number of ids that the graph was given.
        seconds_by_phase: seconds by phase of work ("phonemes", "synthesis").
        elapsed: total wall-clock seconds.
        notes: warnings about this result; there are none yet.
        timeline: when each phase ran.
        words: when each word is heard, estimated from the lengths of the chunks: the graph states no times.
    """

    audio: np.ndarray
    voice: str
    speed: float
    chunks: list[str]
    tokens: int
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    elapsed: float = 0.0
    notes: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    sample_rate: int = SAMPLE_RATE
    words: list[SpokenWord] = field(default_factory=list)
    alternatives: tuple[np.ndarray, ...] = ()       # there are none; other families have some

    @property
    def facts(self) -> dict[str, Any]:
        """What only this kind of model reports: the voice, the speed and the number of ids."""
        return {"voice": self.voice, "speed": self.speed, "tokens": self.tokens}
