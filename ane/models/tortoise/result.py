"""The result of synthesis."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ane.models.recording import Recording
from ane.models.spoken_words import SpokenWord
from ane.system.timeline import Timeline

SAMPLE_RATE = 24000


@dataclass(frozen=True)
class DecodingSignals:
    """What the codes of a chunk tell about its speech.

    Attributes:
        stopped: whether they ended with a stop code.
        loop: how many codes in a row repeat those just before them.
        log_probability: mean in nats, among the codes that could be sampled.
    """

    stopped: bool
    loop: int
    log_probability: float


@dataclass
class Speech(Recording):
    """Synthesised speech.

    Attributes:
        audio: (S,) float32 within ±1 at ``sample_rate``.
        alternatives: audio of the second-best candidate and so on, when ``Settings.best`` is more than 1.
        seed: reproduces this speech with the same text, voice and settings.
        voice: name of the voice.
        chunks: the pieces of text that were spoken in one pass each.
        codes: number of codes sampled, in all candidates.
        seconds_by_phase: seconds by phase of work ("voice", "decode", "rank", …), in the order in which they began.
        elapsed: total wall-clock seconds.
        notes: warnings about this result, such as a chunk that did not end.
        timeline: when each phase ran.
        decoded: signals of each chunk's best candidate.
        words: when each word is heard; none unless ``word_times`` was asked for.
    """

    audio: np.ndarray
    seed: int
    voice: str
    chunks: list[str]
    codes: int
    alternatives: list[np.ndarray] = field(default_factory=list)
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    elapsed: float = 0.0
    notes: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    sample_rate: int = SAMPLE_RATE
    words: list[SpokenWord] = field(default_factory=list)
    decoded: list[DecodingSignals] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Any]:
        """What only this kind of model reports: the seed, the voice and the number of codes."""
        return {"seed": self.seed, "voice": self.voice, "codes": self.codes}
