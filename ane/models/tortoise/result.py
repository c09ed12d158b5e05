"""What comes out of synthesis."""

from dataclasses import dataclass, field

import numpy as np

from ane.system.timeline import Timeline

SAMPLE_RATE = 24000


@dataclass
class Speech:
    """What was spoken.

    Attributes:
        audio: (S,) float32 within ±1 at ``sample_rate``.
        alternatives: the second-best reading and so on, when more than one was asked for.
        seed: with the same text, voice and settings, it speaks the same again.
        voice: its name.
        chunks: the pieces of text that were spoken in one go.
        codes: codes sampled, in all candidates.
        spent: seconds of work of each stage, in the order in which they began.
        took: wall-clock seconds of it all; less than the sum of ``spent`` where stages worked side by side.
        notes: what the user should know about this result.
        timeline: when each stage worked.
    """

    audio: np.ndarray
    seed: int
    voice: str
    chunks: list[str]
    codes: int
    alternatives: list[np.ndarray] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    took: float = 0.0
    notes: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    sample_rate: int = SAMPLE_RATE

    @property
    def seconds(self) -> float:
        return len(self.audio) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of audio."""
        return self.took / self.seconds
