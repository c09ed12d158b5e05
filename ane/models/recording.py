"""What the results of all speech models have in common."""

from pathlib import Path

import numpy as np

from ane.audio import write


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
