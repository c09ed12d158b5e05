"""Synthesis of 24 kHz speech with a graph of StyleTTS 2's kind, several chunks in parallel."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ane.backends.base import Backend
from ane.models.styletts.bundle import StyleModel
from ane.speech.lanes import Lanes
from ane.speech.request import Chunk, Piece, Run, SpeechRequest
from ane.speech.speaker import Speaker
from ane.speech.words import SpokenWord, shared_time, timed_words
from ane.system.errors import UserError
from ane.system.timeline import closing_source
from ane.text import shorten
from ane.text.passages import Delivery

SAMPLE_RATE = 24000
MOST_IDS = 510 + 2      # of one pass, with the pads

Spans = Sequence[tuple[str, int, int]]      # each word with its first id and the one after its last


@dataclass(frozen=True)
class StyleChunk(Chunk):
    """A chunk with the graph's inputs."""

    input_ids: np.ndarray       # (1, T) int64
    style_row: int
    style: np.ndarray           # (1, 256) float32, that row of the voice's table
    speed: np.ndarray           # (1,) float32, which has the speed of its passage
    spans: Spans = ()           # none if they are not known


class StyleSpeaker(Speaker):
    """A model on the CPU; several threads may call it. A kind of model defines ``chunks`` and ``trimmed``. Raises
    UserError: the voices are damaged."""

    sample_rate = SAMPLE_RATE

    def __init__(self, model: StyleModel, backend: Backend):
        super().__init__(model, backend)
        self.styles = model.read_voices()

    @abstractmethod
    def trimmed(self, wave: np.ndarray, settings: Any) -> tuple[np.ndarray, int]:
        """A chunk's waveform (S,) without silence at its ends, and how many samples were removed before it."""

    def pause(self, text: str) -> float:
        """Seconds of silence after a chunk that another one follows."""
        return 0.0

    def completed(self, request: SpeechRequest) -> SpeechRequest:
        """With the voice's own name."""
        return self.with_voice(super().completed(request), Run())

    def with_voice(self, request: SpeechRequest, run: Run) -> SpeechRequest:
        return replace(request, voice=self.styles.resolve(request.voice))

    def voice_of(self, voice: str, request: SpeechRequest, run: Run) -> str:
        """The voice's own name for that of a passage."""
        return self.named_voice(voice, request, run) if voice else request.voice

    def in_voices(self, chunks: Sequence[Chunk], request: SpeechRequest, voices: Mapping[str, Any],
                  run: Run) -> Iterator[Piece | Lanes]:
        """``render``: chunks have their voices, so that several of different voices are computed at once."""
        return self.render(chunks, request, run)        # type: ignore[arg-type]

    def facts(self, request: SpeechRequest) -> dict[str, Any]:
        return {"voice": request.voice, "speed": request.settings.speed, "tokens": 0}

    def chunk(self, text: str, ids: np.ndarray, spans: Spans, row: int, delivery: Delivery, request: SpeechRequest,
              run: Run) -> StyleChunk:
        """A chunk of ids (T,) int64, in its voice: the style is that of a row of the voice's table."""
        voice = self.voice_of(delivery.voice, request, run)
        return StyleChunk(text, ids[None], *self.styles.style(voice, row),
                          self.styles.speed(voice, request.settings.speed * delivery.speed), spans,
                          delivery=replace(delivery, speed=1.0))

    def render(self, chunks: Sequence[StyleChunk], request: SpeechRequest, run: Run) -> Iterator[Piece]:
        """Each chunk as soon as it and those before it are computed, several at once."""
        outputs = run.timeline.record_each("synthesis", self.backend.run_each("speech", [
            {"input_ids": chunk.input_ids, "style": chunk.style, "speed": chunk.speed} for chunk in chunks]))
        with closing_source(outputs):
            for done, chunk in enumerate(chunks, 1):
                try:
                    output = next(outputs)
                except UserError as error:
                    raise UserError(f"chunk {done} of {len(chunks)}, {shorten(chunk.text)!r}: {error}") from error
                durations, whole = np.split(output, [chunk.input_ids.size])
                wave, removed = self.trimmed(whole, request.settings)
                words = chunk_words(chunk, durations, len(whole), removed, len(wave))
                run.progress("synthesis", done, len(chunks), "")
                yield Piece(wave, chunk.with_pause(self.pause(chunk.text)), True, words,
                            {"tokens": chunk.input_ids.size})


def chunk_words(chunk: StyleChunk, durations: np.ndarray, whole: int, removed: int, kept: int) -> list[SpokenWord]:
    """The words of a chunk in seconds of its sound.

    Args:
        durations: (T,) of its ids, which share all of the graph's ``whole`` samples; zeros if they are not known.
        removed: samples that were removed before the ``kept`` ones.
    """
    if not chunk.spans or not durations.any():
        return list(shared_time(chunk.text.split(), (0.0, kept / SAMPLE_RATE)))
    ends = np.concatenate(([0.0], durations.cumsum(dtype=np.float64))) / durations.sum(dtype=np.float64) * whole
    times = np.clip(ends - removed, 0, kept) / SAMPLE_RATE
    return timed_words(chunk.text, chunk.spans, times)
