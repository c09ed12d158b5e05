"""Speak with the ONNX graph of a StyleTTS 2 model, and compute several chunks in parallel."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Bundle
from ane.models.styletts.voices import StyleVoices
from ane.speech.chunks import Chunk, RenderedChunk
from ane.speech.request import SpeechContext, SpeechRequest
from ane.speech.speaker import Speaker
from ane.speech.words import SpokenWord, interpolate_words, timed_words
from ane.system.errors import UserError
from ane.system.timeline import closing_source
from ane.text import shorten
from ane.text.passages import Passage

SAMPLE_RATE = 24000
MOST_IDS = 510 + 2  # largest number of ids in one pass: 510 phonemes and the two pads

Spans = Sequence[tuple[str, int, int]]  # (word, index of its first id, index after its last id)


@dataclass(eq=False)
class StyleChunk(Chunk):
    """A chunk with the inputs of the graph.

    Attributes:
        input_ids: Ids of the phonemes, (1, T) int64.
        style_row: Number of the row in the voice's table that ``style`` comes from.
        style: Style vector, (1, 256) float32.
        graph_speed: Product of the speeds of the request, the passage and the voice, (1,) float32.
        spans: Positions of the words among the ids. The sequence is empty if nobody knows the positions.
    """

    input_ids: np.ndarray
    style_row: int
    style: np.ndarray
    graph_speed: np.ndarray
    spans: Spans = ()

    @property
    def length(self) -> int:
        return self.input_ids.size


class StyleSpeaker(Speaker):
    """Base class of the speakers for KittenTTS and Kokoro, which define ``chunks`` and ``trimmed``.

    The graph runs on the CPU. Several threads may use a speaker at once.

    Raises:
        UserError: The voices are damaged.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, model: Bundle, backend: Backend):
        super().__init__(model, backend)
        self.styles: StyleVoices = model.family.voices(model)  # type: ignore[attr-defined]

    @abstractmethod
    def trimmed(self, wave: np.ndarray, settings: Any) -> tuple[np.ndarray, int]:
        """Trim silence at both ends of a waveform (S,).

        Returns the rest, and the number of samples that were removed at the beginning.
        """

    def pause(self, text: str) -> float:
        """Return the seconds of silence after a chunk with this text."""
        return 0.0

    def voice_of(self, request: SpeechRequest, context: SpeechContext) -> str:
        """Look up the request's voice. Returns the name of the voice's table."""
        return self.styles.resolve(request.voice)

    def voice_of_passage(self, passage: Passage, request: SpeechRequest, context: SpeechContext) -> str:
        """Look up the voice of a passage (a stretch of text with one voice). Returns the name of the voice's table."""
        return self.named_voice(passage.voice, request, context) if passage.voice else self.voice_of(request, context)

    def facts(self, request: SpeechRequest, voice: str) -> dict[str, Any]:
        return {"voice": voice, "speed": request.speed, "tokens": 0}

    def chunk(
        self,
        text: str,
        ids: np.ndarray,
        spans: Spans,
        row: int,
        passage: Passage,
        request: SpeechRequest,
        context: SpeechContext,
    ) -> StyleChunk:
        """Make a chunk from ids (T,) int64. The chunk's style is the row ``row`` of the voice's table."""
        voice = self.voice_of_passage(passage, request, context)
        return StyleChunk(
            text,
            ids[None],
            *self.styles.style(voice, row),
            self.styles.speed(voice, request.speed * passage.speed),
            spans,
        )

    def render(
        self, chunks: Sequence[StyleChunk], request: SpeechRequest, context: SpeechContext
    ) -> Iterator[RenderedChunk]:
        """Compute several chunks in parallel, and yield them in order.

        A chunk is yielded as soon as it and all earlier chunks are ready.
        """
        outputs = context.timeline.record_each(
            "synthesis",
            self.backend.run_all(
                "speech",
                [{"input_ids": chunk.input_ids, "style": chunk.style, "speed": chunk.graph_speed} for chunk in chunks],
            ),
        )
        with closing_source(outputs):
            for done, chunk in enumerate(chunks, 1):
                try:
                    output = next(outputs)
                except UserError as error:
                    raise UserError(f"chunk {done} of {len(chunks)}, {shorten(chunk.text)!r}: {error}") from error
                durations, whole = np.split(output, [chunk.input_ids.size])
                wave, removed = self.trimmed(whole, request.settings)
                context.progress("synthesis", done, len(chunks), "")
                rendered = RenderedChunk(chunk, iter([wave]))
                rendered.report(
                    chunk_words(chunk, durations, len(whole), removed, len(wave)), {"tokens": chunk.input_ids.size}
                )
                yield rendered


def chunk_words(chunk: StyleChunk, durations: np.ndarray, whole: int, removed: int, remaining: int) -> list[SpokenWord]:
    """Compute when the words of a chunk begin and end, in seconds of its sound.

    Args:
        chunk: Chunk, with the positions of its words in ``spans``.
        durations: Duration of each id, (T,), in any unit. All durations together correspond to ``whole`` samples. Zeros
            mean that the durations are not known.
        whole: Number of samples that the graph made.
        removed: Number of samples that were trimmed at the beginning.
        remaining: Number of samples that are left after trimming.
    """
    if not chunk.spans or not durations.any():
        return list(interpolate_words(chunk.text.split(), (0.0, remaining / SAMPLE_RATE)))
    ends = np.concatenate(([0.0], durations.cumsum(dtype=np.float64))) / durations.sum(dtype=np.float64) * whole
    times = np.clip(ends - removed, 0, remaining) / SAMPLE_RATE
    return timed_words(chunk.text, chunk.spans, times)
