"""Turn chunks of text into sound in four steps: decode, rank, diffuse, vocode.

If the caller wants the whole sound, ``Rendering`` works on groups of chunks. A group finishes one step and releases the
networks of that step before the next step begins, so that few networks are loaded at the same time. If the caller wants
a stream, ``Rendering`` alternates between the steps, so that sound comes early.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from typing import Any

import numpy as np

from ane.audio.trimming import Trimmer
from ane.backends.base import Backend
from ane.backends.windows import StreamingWindow
from ane.bundles import Bundle
from ane.models.tortoise.chunks import TokenChunk
from ane.models.tortoise.decoding import (
    Candidate,
    Embeddings,
    Prompt,
    best_candidates,
    check_codes,
    longest_loop,
    make_lanes,
    score_candidates,
)
from ane.models.tortoise.diffusion import WindowedDiffusion, spectrograms
from ane.models.tortoise.sampling import InverseCdfSampler, Randomness
from ane.models.tortoise.settings import SAMPLE_RATE
from ane.models.tortoise.vocoding import DiffusedSound, make_vocoder, vocoder_of
from ane.models.tortoise.voices import cloning_notes
from ane.models.tortoise.word_times import SECONDS_PER_CODE, WordTimer
from ane.speech.chunks import RenderedChunk
from ane.speech.lanes import Decoding, Lanes
from ane.speech.request import SpeechContext, SpeechRequest
from ane.speech.words import SpokenWord

NO_SOUND = np.zeros(0, np.float32)
LARGEST_WINDOW = 126  # largest number of mel frames in one vocoder call of a stream
MIN_GROUP = 16  # smallest number of chunks in a group: enough to keep the decoder's lanes busy
UNFINISHED = (
    "chunk {chunks} did not end with a stop code: the speech may be cut off or ramble; try another seed, "
    "more candidates or shorter sentences"
)
TOO_LONG = (
    "chunk {chunks} was ended because it had far more codes than its words need: the speech may be cut off; try "
    "another seed or a longer sentence"
)
UNRANKED = "chunk {chunks} was not ranked: CLVP does not know all of its tokens, so the first candidates are spoken"


@dataclass(frozen=True)
class DecodingSignals:
    """Properties of a chunk's codes that hint at faulty speech."""

    stopped: bool  # whether the decoder sampled a stop code
    loop: int  # length of the longest repetition, in codes (``longest_loop``)
    log_probability: float  # mean log-probability of a code in nats, among the codes that could be sampled


class Rendering:
    """Renders the chunks of one request. Call ``rendered`` for the sound.

    Args:
        model: Bundle of the model.
        backend: Backend that runs the model's networks.
        chunks: Chunks of the text, in order.
        request: Request, whose seed and settings are set.
        context: Object that records progress and times. If several streams share the decoder's lanes, it also has these
            lanes.
        timer: Object that times the spoken words. ``None`` means that words get no times.
    """

    def __init__(
        self,
        model: Bundle,
        backend: Backend,
        chunks: Sequence[TokenChunk],
        request: SpeechRequest,
        context: SpeechContext,
        timer: WordTimer | None = None,
    ):
        self.model, self.backend, self.chunks, self.context, self.timer = model, backend, chunks, context, timer
        self.settings, self.timeline = request.settings, context.timeline
        self.randomness, self.config = Randomness(request.seed), model.config("autoregressive")
        self.diffused = self.settings.diffusion is not None
        self.vocoder = vocoder_of(model.networks, self.diffused)
        settings, count = self.settings, len(chunks)
        steps = settings.diffusion.steps if settings.diffusion else 0
        self._totals = {
            "decode": count * settings.candidates,
            "rank": count * settings.candidates,
            "diffuse": count * settings.best * steps,
            "vocode": count,
        }
        self._done = dict.fromkeys(self._totals, 0)
        self._noted: set[int] = set()  # ids of voices whose notes have been reported
        self._decodings: list[Decoding] = []

    def rendered(self) -> Iterator[RenderedChunk]:
        """Yield every chunk with its sound, in order."""
        if not self.context.batched:
            yield from self._streamed()
            return
        group = max(MIN_GROUP, 2 * self.settings.lanes // self.settings.candidates)
        for start in range(0, len(self.chunks), group):
            yield from self._group(self.chunks[start : start + group])
            self.backend.release(self.vocoder)

    # Whole chunks: each step of the work runs on a group of chunks

    def _group(self, chunks: Sequence[TokenChunk]) -> Iterator[RenderedChunk]:
        """Make the sound for a group of chunks, and yield the chunks in order.

        A chunk's candidates are ranked as soon as the last candidate ends, so that only the best candidates stay in
        memory.
        """
        made: list[tuple[RenderedChunk, list[Candidate]]] = []
        lanes = self._own_lanes(chunks)
        try:
            self._decodings = [lanes.submit(self._prompt(chunk)) for chunk in chunks]
            for chunk, decoding in zip(chunks, self._decodings, strict=True):
                with self.timeline.record("decode"):
                    candidates = decoding.all(self._report_decoding)
                if chunk is chunks[-1]:
                    lanes.close()  # before the next network is loaded
                    if self.timer is None:
                        self.backend.release("autoregressive")
                made.append((rendered := RenderedChunk(chunk), self._ranked(rendered, candidates)))
                del candidates  # free the candidates that are not among the best
        finally:
            lanes.close()
        self._decodings.clear()
        self._add("decode", len(chunks) * self.settings.candidates)
        self.backend.release("autoregressive", "clvp")
        columns = iter(self._diffused(made))
        for rendered, best in made:
            trimmers = [self._trimmer() for _ in best]
            first, *rendered.alternatives = [
                np.concatenate(
                    [NO_SOUND, *self._trimmed(self._vocoder(rendered.chunk, rank).finish(next(columns)), trimmer)]
                )
                for rank, trimmer in enumerate(trimmers)
            ]
            self._count_trimmed(rendered, trimmers[0])
            rendered.sound = iter([first])
            self._add("vocode", 1)
            self._report("vocode", 0)
            yield rendered

    def _diffused(self, made: Sequence[tuple[RenderedChunk, list[Candidate]]]) -> list[np.ndarray]:
        """Compute the vocoder's input for each candidate: a mel (100, L), or latents if the settings skip diffusion."""
        if self.settings.diffusion is None:
            return [candidate.hidden for _, best in made for candidate in best]
        mels = []
        for _, group in groupby(made, lambda item: id(item[0].chunk.voice)):
            mels += self._spectrograms(list(group))
        self.backend.release("diffusion")
        return mels

    def _spectrograms(self, made: Sequence[tuple[RenderedChunk, list[Candidate]]]) -> list[np.ndarray]:
        """Turn the latents of every candidate into a mel (100, L) by diffusion.

        All the chunks must have the same voice.
        """
        chunks = [(rendered.chunk, rank) for rendered, best in made for rank in range(len(best))]
        with self.timeline.record("diffuse"):
            mels = spectrograms(
                self.backend,
                [candidate.latents for _, best in made for candidate in best],
                chunks[0][0].voice.diffusion,
                self.settings.diffusion,
                [self.randomness.diffusion(chunk.index, rank) for chunk, rank in chunks],  # type: ignore[attr-defined]
                lambda done, total: self._report("diffuse", done),
                self._prediction,
            )
        self._add("diffuse", len(chunks) * self.settings.diffusion.steps)
        return [mel[0] for mel in mels]

    # Streams: the steps of the work alternate

    def _streamed(self) -> Iterator[RenderedChunk]:
        """Yield every chunk in order.

        You read a chunk's sound from its attribute ``sound`` while this object makes the sound. At first, the decoder
        works only on the first chunk, because every active lane (sequence) slows the other lanes a little. Whenever the
        first sound of a chunk is ready, the decoder begins one more chunk.
        """
        lanes = self.context.lanes or self._own_lanes(self.chunks)
        check_codes(self.settings.sampling.max_codes, lanes.capacity)
        try:
            for index, chunk in enumerate(self.chunks):
                self._decode_ahead(lanes, max(1, index))
                rendered = RenderedChunk(chunk)
                rendered.sound = self._streamed_sound(rendered, index, lanes)
                yield rendered
        finally:
            for decoding in self._decodings:
                decoding.cancel()
            if lanes is not self.context.lanes:
                lanes.close()

    def _decode_ahead(self, lanes: Lanes, most: int) -> None:
        """Submit chunks to the lanes (the decoder's batch) until ``most`` chunks are being decoded."""
        while len(self._decodings) < len(self.chunks) and sum(not decoding.done for decoding in self._decodings) < most:
            self._decodings.append(
                lanes.submit(self._prompt(self.chunks[len(self._decodings)]), self.context.priority, self.context.check)
            )

    def _streamed_sound(self, rendered: RenderedChunk, index: int, lanes: Lanes) -> Iterator[np.ndarray]:
        """Yield the sound of a chunk.

        If there is only one candidate, its sound comes while the decoder samples its codes. If there are several, the
        method first decodes and ranks all candidates.
        """
        chunk: Any = rendered.chunk
        sound, trimmer, used = self._stream_sound(chunk), self._trimmer(), 0
        decoding = self._decodings[index]
        if not self.settings.ranked:
            for rows in self.timeline.record_each(
                "decode", decoding.rows(0, self._report_decoding, lambda: sound.needed)
            ):
                used += len(rows)
                for samples in self._trimmed(sound.feed(rows), trimmer, ended=False):
                    self._decode_ahead(lanes, index + 2)
                    yield samples
        with self.timeline.record("decode"):
            candidates = decoding.all(self._report_decoding)
        [best] = self._ranked(rendered, candidates)
        left = sound.finish((best.latents if self.diffused else best.hidden)[used:])
        first = next(pieces := self._trimmed(left, trimmer), NO_SOUND)
        self._count_trimmed(rendered, trimmer)
        for samples in chain([first], pieces):
            self._decode_ahead(lanes, index + 2)
            yield samples
        self._add("vocode", 1)
        self._report("vocode", 0)
        if self.settings.diffusion is not None:
            self._add("diffuse", self.settings.diffusion.steps)

    def _stream_sound(self, chunk: TokenChunk) -> Any:
        vocoder = self._vocoder(chunk, 0, StreamingWindow(largest=LARGEST_WINDOW))
        if self.settings.diffusion is None:
            return vocoder
        windows = WindowedDiffusion(
            self.backend,
            chunk.voice.diffusion,
            self.settings.diffusion,
            self.randomness.diffusion(chunk.index, 0),
            prediction=self._prediction,
            progress=lambda done, steps: self._report("diffuse", 0, f"{done} of {steps} steps"),
        )
        return DiffusedSound(windows, vocoder, self.timeline)

    # Helpers for whole chunks and for streams

    def _own_lanes(self, chunks: Sequence[TokenChunk]) -> Lanes:
        lanes = min(self.settings.lanes, len(chunks) * self.settings.candidates)
        longest = max(Embeddings.prefix_length(chunk.tokens) for chunk in chunks)
        return make_lanes(
            self.backend,
            self.config,
            lanes,
            self.settings.sampling.max_codes,
            min(lanes, len(chunks)),
            longest,
            self.timer.recorded_heads if self.timer is not None else (),
        )

    def _prompt(self, chunk: TokenChunk) -> Prompt:
        samplers = [
            InverseCdfSampler(self.randomness.candidate(chunk.index, candidate))
            for candidate in range(self.settings.candidates)
        ]
        sampling = replace(self.settings.sampling, max_codes=self._most_codes(chunk))
        return Prompt(chunk.voice.ar, chunk.tokens, samplers, self._tables, self.config, sampling, self.diffused)

    def _most_codes(self, chunk: TokenChunk) -> int:
        """Return how many codes a chunk's candidate may have: ``max_codes``, or fewer if the chunk has few words."""
        most, per_word = self.settings.sampling.max_codes, self.settings.codes_per_word
        return most if per_word is None else min(most, math.ceil(per_word * chunk.words))

    @cached_property
    def _tables(self) -> Embeddings:
        return Embeddings(**self.backend.embeddings())

    def _report_decoding(self) -> None:
        seconds = SECONDS_PER_CODE * sum(item.prompt.codes for item in self._decodings) / self.settings.candidates
        self._report("decode", sum(decoding.finished for decoding in self._decodings), f"{seconds:.1f} s of sound")

    def _ranked(self, rendered: RenderedChunk, candidates: list[Candidate]) -> list[Candidate]:
        """Rank a chunk's candidates with CLVP, and return the best ones, best first.

        A single candidate needs no ranking. The method also reports the chunk's facts and words. The times of the words
        include silence that is trimmed later.
        """
        chunk: Any = rendered.chunk
        best, notes = candidates[: self.settings.best], []
        if self.settings.ranked and max(chunk.tokens) >= self.model.config("clvp").num_text_tokens:
            notes = [UNRANKED]
        elif self.settings.ranked:
            with self.timeline.record("rank"):
                scores = score_candidates(
                    self.backend,
                    chunk.tokens,
                    np.stack([candidate.padded_codes for candidate in candidates]),
                    lambda done: self._report("rank", done),
                )
            self._add("rank", len(candidates))
            best = [candidates[index] for index in best_candidates(scores, self.settings.best)]
        signals = DecodingSignals(best[0].stopped, longest_loop(best[0].codes, self.config), best[0].log_probability)
        words: Sequence[SpokenWord] = ()
        if self.timer is not None:
            with self.timeline.record("words"):
                words = self.timer.words(chunk, chunk.voice.ar, best[0])
        if id(chunk.voice) not in self._noted:
            notes = [*cloning_notes(self.model, chunk.voice), *notes]
            self._noted.add(id(chunk.voice))
        if not best[0].stopped:
            notes.append(UNFINISHED if self._most_codes(chunk) == self.settings.sampling.max_codes else TOO_LONG)
        rendered.report(words, {"codes": sum(len(candidate.codes) for candidate in candidates)}, notes, decoded=signals)
        for candidate in best:  # drop the array that the next step does not need, to free memory
            unused = "latents" if self.settings.diffusion is None else "hidden"
            setattr(candidate, unused, np.empty((0, candidate.hidden.shape[1]), np.float32))
        return best

    def _vocoder(self, chunk: TokenChunk, rank: int, window: StreamingWindow | None = None) -> Any:
        """Create the vocoder for a chunk. It takes a mel, or latents if the settings skip diffusion."""
        rng = self.randomness.vocoder(chunk.index, rank)
        return make_vocoder(self.backend, self.vocoder, self.model.config(self.vocoder), chunk.voice.ar, rng, window)

    def _trimmer(self) -> Trimmer | None:
        return None if self.settings.silence is None else Trimmer(*self.settings.silence)

    def _trimmed(
        self, sound: Iterator[np.ndarray], trimmer: Trimmer | None, ended: bool = True
    ) -> Iterator[np.ndarray]:
        """Trim silence from sound, and yield the arrays that are not empty. ``ended`` means that no sound follows."""
        for samples in self.timeline.record_each("vocode", sound):
            kept = samples if trimmer is None else trimmer.feed(samples)
            if len(kept):
                yield kept
        if ended and trimmer is not None and len(end := trimmer.finish()):
            yield end

    @staticmethod
    def _count_trimmed(rendered: RenderedChunk, trimmer: Trimmer | None) -> None:
        """Move the times of a chunk's words earlier by the silence that was trimmed before its sound."""
        seconds = trimmer.removed / SAMPLE_RATE if trimmer else 0.0
        rendered.words = [replace(word, start=word.start - seconds, end=word.end - seconds) for word in rendered.words]

    @property
    def _prediction(self) -> str:
        return self.model.config("diffusion").prediction

    def _report(self, phase: str, done: int, note: str = "") -> None:
        self.context.progress(phase, self._done[phase] + done, self._totals[phase], note)

    def _add(self, phase: str, done: int) -> None:
        self._done[phase] += done
