"""Synthesis of 24 kHz speech with a graph of StyleTTS 2's kind, several chunks in parallel."""

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ane.models.styletts.bundle import StyleModel
from ane.models.styletts.graph import StyleBackend
from ane.models.styletts.parallel import Parallelism, compute_in_order
from ane.speech.lanes import Lanes
from ane.speech.request import Chunk, Piece, Run, SpeechRequest
from ane.speech.speaker import Speaker
from ane.speech.words import SpokenWord, shared_time, timed_words
from ane.system.errors import UserError
from ane.system.iterators import closing_source

SAMPLE_RATE = 24000


@dataclass(frozen=True)
class StyleChunk(Chunk):
    """A chunk with the graph's inputs.

    Attributes:
        label: its number and text, for messages.
        input_ids: (1, T) int64. style: (1, 256) float32, row ``style_row`` of the voice's table. speed: (1,) float32,
            which has the speed of its passage.
        spans: each word with its first id and the one after its last; none if they are not known.
    """

    label: str
    input_ids: np.ndarray
    style_row: int
    style: np.ndarray
    speed: np.ndarray
    spans: Sequence[tuple[str, int, int]] = ()


class StyleSpeaker(Speaker):
    """A model on the CPU; several threads may call it. A kind of model defines ``chunks`` and ``trimmed``.

    Args:
        parallelism: how many chunks are computed at once.

    Raises:
        UserError: the voices are damaged.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, model: StyleModel, backend: StyleBackend, parallelism: Parallelism | None = None):
        super().__init__(model, backend)
        self.styles = model.read_voices()
        self.parallelism = parallelism or Parallelism()

    @abstractmethod
    def trimmed(self, wave: np.ndarray, settings: Any) -> tuple[np.ndarray, int]:
        """A chunk's waveform (S,) without silence at its ends, and how many samples were removed before it."""

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

    def render(self, chunks: Sequence[StyleChunk], request: SpeechRequest, run: Run) -> Iterator[Piece]:
        """Each chunk as soon as it and those before it are computed, several at once."""
        workers = self.parallelism.workers_for(len(chunks))
        graph = self.backend.graph(self.parallelism.threads_for(workers))
        finished = itertools.count(1)

        def sound(chunk: StyleChunk) -> tuple[np.ndarray, list[SpokenWord]]:
            try:
                whole, durations = graph.run(chunk.input_ids, chunk.style, chunk.speed)
                wave, removed = self.trimmed(whole, request.settings)
            except UserError as error:
                raise UserError(f"{chunk.label}: {error}") from error
            except Exception as error:
                error.add_note(f"in {chunk.label}")
                raise
            run.progress("synthesis", next(finished), len(chunks), "")
            if durations is None or not chunk.spans:
                return wave, list(shared_time(chunk.text.split(), (0.0, len(wave) / SAMPLE_RATE)))
            return wave, chunk_words(chunk, durations, len(whole), removed, len(wave))

        sounds = run.timeline.record_each("synthesis", compute_in_order(sound, chunks, workers))
        with closing_source(sounds):
            for chunk, (wave, words) in zip(chunks, sounds, strict=True):
                yield Piece(wave, chunk, True, words, {"tokens": chunk.input_ids.size})

    def prepare(self, voice: str | None = None, settings: Any = None) -> str:
        """Load what reads text, so that the first text is spoken sooner. Returns the voice's name. Errors: ``speak``.
        """
        request = self.request("a", voice, settings=settings)
        self.chunks(request, Run())
        self.backend.graph(self.parallelism.threads_for(1))
        return request.voice


def chunk_words(chunk: StyleChunk, durations: np.ndarray, whole: int, removed: int, kept: int) -> list[SpokenWord]:
    """The words of a chunk in seconds of its sound.

    Args:
        durations: (T,) of its ids, which share all of the graph's ``whole`` samples.
        removed: samples that were removed before the ``kept`` ones.
    """
    ends = np.concatenate(([0.0], durations.cumsum(dtype=np.float64))) / durations.sum(dtype=np.float64) * whole
    times = np.clip(ends - removed, 0, kept) / SAMPLE_RATE
    return timed_words(chunk.text, chunk.spans, times)
