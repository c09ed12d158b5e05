"""Sound of a long text that arrives chunk by chunk."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.models.fastspeech.result import SAMPLE_RATE
from ane.models.recording import SoundStream
from ane.models.spoken_words import SpokenWord
from ane.system.timeline import Timeline


@dataclass(frozen=True)
class StreamedSound:
    """A piece of a stream: (m,) float32, the frames and the words of the mel that begins there (0, none: none does)."""

    audio: np.ndarray
    frames: int
    notes: Sequence[str]
    words: Sequence[SpokenWord]


class FastSpeechStream(SoundStream):
    """Sound that arrives incrementally: pieces (m,) float32 within ±1 at ``sample_rate``.

    Work is done only while the caller waits for a piece. ``notes``, ``facts``, ``words``, ``seconds``,
    ``seconds_by_phase`` and ``elapsed`` are as in ``FastSpeechResult``, for the chunks of which a piece has been
    returned; ``chunks`` are all.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, pieces: Iterator[StreamedSound], chunks: Sequence[str], speed: float, timeline: Timeline):
        self._pieces, self.chunks, self.speed, self.timeline = pieces, list(chunks), speed, timeline
        self._frames = 0
        self.notes: list[str] = []
        self.words: list[SpokenWord] = []

    def __next__(self) -> np.ndarray:
        try:
            piece = next(self._pieces)
        finally:
            self.elapsed = self.timeline.now() - self.timeline.text_ready
        self.timeline.mark_first_audio()
        self._samples += len(piece.audio)
        self._frames += piece.frames
        self.words += piece.words
        self.notes += [note for note in piece.notes if note not in self.notes]
        return piece.audio

    def close(self) -> None:
        """Stop the work and release the networks."""
        if hasattr(self._pieces, "close"):
            self._pieces.close()

    @property
    def facts(self) -> dict[str, Any]:
        return {"speed": self.speed, "frames": self._frames}
