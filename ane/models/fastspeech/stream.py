"""Sound of a long text that arrives chunk by chunk."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ane.models.fastspeech.result import SAMPLE_RATE
from ane.models.recording import SoundStream
from ane.system.timeline import Timeline


class FastSpeechStream(SoundStream):
    """Sound that arrives incrementally: pieces (m,) float32 within ±1 at ``sample_rate``.

    Work is done only while the caller waits for a piece. ``notes``, ``facts``, ``seconds``, ``seconds_by_phase`` and
    ``elapsed`` are as in ``FastSpeechResult``, for the pieces returned so far; ``chunks`` are all.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, pieces: Iterator[tuple[np.ndarray, int, list[str]]], chunks: Sequence[str], speed: float,
                 timeline: Timeline):
        """``pieces``: sound, the frames of the mel that begins there (0: none does), and notes."""
        self._pieces, self.chunks, self.speed, self.timeline = pieces, list(chunks), speed, timeline
        self._frames = 0
        self.notes: list[str] = []

    def __next__(self) -> np.ndarray:
        try:
            piece, frames, notes = next(self._pieces)
        finally:
            self.elapsed = self.timeline.now() - self.timeline.text_ready
        self.timeline.mark_first_audio()
        self._samples += len(piece)
        self._frames += frames
        self.notes += [note for note in notes if note not in self.notes]
        return piece

    def close(self) -> None:
        """Stop the work and release the networks."""
        if hasattr(self._pieces, "close"):
            self._pieces.close()

    @property
    def facts(self) -> dict[str, Any]:
        return {"speed": self.speed, "frames": self._frames}
