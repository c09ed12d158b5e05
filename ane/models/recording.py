"""What the results of all speech models have in common."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ane.audio import write
from ane.models.spoken_words import SpokenWord
from ane.system.timeline import Timeline

PhaseProgress = Callable[[str, int, int, str], None]        # (phase, done, total, note)


def report_nothing(phase: str, done: int, total: int, note: str) -> None:
    """The default progress callback."""


class Recording:
    """Sound with the time that it took.

    Attributes:
        audio: (S,) float32 within ±1 at ``sample_rate``.
        elapsed: wall-clock seconds of the work.
    """

    audio: np.ndarray
    sample_rate: int
    elapsed: float

    @property
    def seconds(self) -> float:
        return len(self.audio) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of work per second of audio; infinite without audio."""
        return self.elapsed / self.seconds if len(self.audio) else float("inf")

    def save(self, path: Path | str) -> None:
        """Write the audio to ``path``; the suffix is the format: .wav, .flac, .mp3 or .ogg.

        Raises:
            UserError: another suffix, or the file cannot be written.
        """
        write(path, self.audio, self.sample_rate)


class SoundStream(Iterator[np.ndarray]):
    """Sound that arrives in pieces (n,) float32 within ±1 at ``sample_rate``.

    Attributes:
        elapsed: seconds from the text to the last piece, including the caller's time between pieces.
        words: when each word is heard, of the chunks for which that is known so far; a family that needs another pass
            for them has none unless ``word_times`` was asked for.
    """

    sample_rate: int
    timeline: Timeline
    elapsed = 0.0
    words: Sequence[SpokenWord] = ()
    _samples = 0            # of the pieces returned so far

    @property
    def seconds(self) -> float:
        return self._samples / self.sample_rate

    @property
    def seconds_by_phase(self) -> dict[str, float]:
        return self.timeline.seconds_by_phase()

    @property
    def real_time_factor(self) -> float:
        """Seconds per second of audio; infinite before the first sample."""
        return self.elapsed / self.seconds if self._samples else float("inf")
