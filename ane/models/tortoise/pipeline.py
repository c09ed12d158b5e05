"""From chunks of text to sound: decode, rank, diffuse, vocode.

Each of these steps is finished for a group of chunks, and its networks are released, before the next step begins, so
that few networks are loaded at a time. Streaming alternates between the steps.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from ane.audio.trimming import Trimmer, removed_before, trimmed
from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.delivery import delivered, delivered_whole
from ane.models.spoken_words import SpokenWord, delivered_words
from ane.models.tortoise.candidate import Candidate, Prompt
from ane.models.tortoise.chunks import Chunk
from ane.models.tortoise.codes import longest_loop
from ane.models.tortoise.decoding import LaneScheduler, decode
from ane.models.tortoise.diffusion import spectrograms
from ane.models.tortoise.lane_pool import LanePool
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.ranking import best_candidates, score_candidates
from ane.models.tortoise.result import SAMPLE_RATE, DecodingSignals
from ane.models.tortoise.sampling import InverseCdfSampler, Sampler
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.vocoding import hifigan_sound, hifigan_stream, univnet_sound, univnet_stream
from ane.models.tortoise.windows import windowed_mels
from ane.models.tortoise.word_times import WordTimer
from ane.system.iterators import closing_source
from ane.system.timeline import Timeline
from ane.voices import Voice

MIN_GROUP = 16      # chunks of a group, at least: enough to fill the lanes, few enough to bound memory for long texts

# called with (phase, done, total, note): phase is "decode", "rank", "diffuse" or "vocode"
Progress = Callable[[str, int, int, str], None]


def no_progress(phase: str, done: int, total: int, note: str) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class RankedChunk:
    """A chunk with its best candidates, best first, and the number of codes sampled in all its candidates.

    ``words``: those of the best candidate, in the time of its sound before trimming; none unless asked for.
    """

    chunk: Chunk
    kept: list[Candidate]
    codes: int
    signals: DecodingSignals
    words: Sequence[SpokenWord] = ()

    @property
    def info(self) -> "ChunkInfo":
        return ChunkInfo(self.chunk, self.codes, self.signals)


@dataclass(frozen=True)
class ChunkInfo:
    """A chunk with what the result reports of it.

    Attributes:
        codes: number of codes sampled in all candidates.
        signals: of the best candidate.
    """

    chunk: Chunk
    codes: int
    signals: DecodingSignals


@dataclass(frozen=True)
class VocodedChunk:
    """The audio (S,) float32 of each kept candidate of a chunk, best first.

    ``words``: as in ``RankedChunk``. removed: samples of silence removed before the best candidate's sound.
    """

    info: ChunkInfo
    audio: list[np.ndarray]
    words: Sequence[SpokenWord] = ()
    removed: int = 0


# called with a chunk that has been decoded and its words in the time of the whole speech (none: they were not timed)
OnChunk = Callable[[ChunkInfo, Sequence[SpokenWord]], None]


class CandidateSamplers(Sequence[Sampler]):
    """The samplers of a chunk's candidates, each with a random generator of its own, created when it is accessed."""

    def __init__(self, randomness: Randomness, chunk: int, count: int):
        self.randomness, self.chunk, self.count = randomness, chunk, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, candidate: int) -> Sampler:
        return InverseCdfSampler(self.randomness.candidate(self.chunk, candidate))


class Pipeline:
    """The steps of one request.

    Args:
        chunk_count: total number of chunks, for ``progress``.
        pool: lanes that ``pieces`` shares with other requests; None: lanes of its own.
        timer: what times words; None: nothing does.
    """

    def __init__(self, model: Model, backend: Backend, voice: Voice, settings: Settings, randomness: Randomness,
                 chunk_count: int, timeline: Timeline, progress: Progress = no_progress,
                 pool: LanePool | None = None, timer: WordTimer | None = None):
        self.model, self.backend, self.voice, self.settings = model, backend, voice, settings
        self.randomness, self.timeline = randomness, timeline
        self._progress, self.pool = progress, pool
        kept = chunk_count * settings.best
        self._totals = {"decode": chunk_count * settings.candidates, "rank": chunk_count * settings.candidates,
                        "diffuse": kept * (settings.diffusion.steps if settings.diffusion else 0),
                        "vocode": chunk_count}
        self._done = dict.fromkeys(self._totals, 0)
        self.timer = timer

    # Whole chunks

    def sounds(self, chunks: Sequence[Chunk]) -> Iterator[VocodedChunk]:
        """Yield the sound of every chunk, in order. When it ends or is closed, all networks are released."""
        try:
            group = max(MIN_GROUP, 2 * self.settings.lanes // self.settings.candidates)
            for start in range(0, len(chunks), group):
                yield from self._vocode(self._diffuse(list(self._decode(chunks[start:start + group]))))
                self.backend.release("hifigan", "univnet")
        finally:
            self.backend.release()

    def _decode(self, chunks: Sequence[Chunk]) -> Iterator[RankedChunk]:
        """Yield every chunk, ranked as soon as its candidates end, so that only the best are kept in memory."""
        prompts = [self._prompt(chunk) for chunk in chunks]
        decoded = self.timeline.record_each("decode", decode(
            self.backend, prompts, self.model.config("autoregressive"), self.settings.sampling, self.settings.lanes,
            self.settings.diffusion is not None, self._report_decoding, self._recorded_heads))
        with closing_source(decoded):
            for chunk in chunks:
                candidates = next(decoded)
                if chunk is chunks[-1]:
                    decoded.close()             # frees the decoder's cache before the next network is loaded
                    if self.timer is None:
                        self.backend.release("autoregressive")
                yield self._timed(self._rank(chunk, candidates))
                del candidates
        self._add("decode", len(chunks) * self.settings.candidates)
        self.backend.release("autoregressive", "clvp", "cvvp")

    @property
    def _recorded_heads(self) -> Sequence[tuple[int, int]]:
        return self.timer.recorded_heads if self.timer is not None else ()

    def _timed(self, ranked: RankedChunk) -> RankedChunk:
        """The chunk with the times of its words, if these were asked for."""
        if self.timer is None:
            return ranked
        with self.timeline.record("words"):
            return replace(ranked, words=self.timer.words(ranked.chunk, self.voice.ar, ranked.kept[0]))

    def _diffuse(self, ranked: list[RankedChunk]) -> Iterator[tuple[RankedChunk, list[np.ndarray]]]:
        """Every chunk with the mels (100, L) of its best candidates; without diffusion with an empty list."""
        if self.settings.diffusion is None:
            return iter([(chunk, []) for chunk in ranked])
        latents = [candidate.latents for chunk in ranked for candidate in chunk.kept]
        rngs = [self.randomness.diffusion(ranked_chunk.chunk.index, rank)
                for ranked_chunk in ranked for rank in range(len(ranked_chunk.kept))]
        with self.timeline.record("diffuse"):
            mels = iter(spectrograms(self.backend, latents, self.voice.diffusion, self.settings.diffusion, rngs,
                                     lambda done, total: self._report("diffuse", done), self._prediction))
        self._add("diffuse", len(latents) * self.settings.diffusion.steps)
        self.backend.release("diffusion")
        return iter([(chunk, [next(mels)[0] for _ in chunk.kept]) for chunk in ranked])

    def _vocode(self, diffused: Iterator[tuple[RankedChunk, list[np.ndarray]]]) -> Iterator[VocodedChunk]:
        for ranked, mels in diffused:
            with self.timeline.record("vocode"):
                audio = [self._sound(ranked.chunk, rank, candidate, mels)
                         for rank, candidate in enumerate(ranked.kept)]
            self._add("vocode", 1)
            self._report("vocode", 0)
            removed = removed_before(audio[0], self.settings.silence) if ranked.words else 0
            yield VocodedChunk(ranked.info, [
                delivered_whole(trimmed(samples, self.settings.silence), ranked.chunk.delivery, SAMPLE_RATE)
                for samples in audio], ranked.words, removed)

    def _sound(self, chunk: Chunk, rank: int, candidate: Candidate, mels: list[np.ndarray]) -> np.ndarray:
        if mels:
            return univnet_sound(self.backend, self.model.config("univnet"),
                                 self.randomness.vocoder(chunk.index, rank), mels[rank])
        # the latents of all codes and of the stop code, as in upstream's api_fast.py
        return hifigan_sound(self.backend, self.voice.ar, candidate.hidden, self.model.config("hifigan"))

    # Streaming

    def pieces(self, chunks: Sequence[Chunk], on_chunk: OnChunk) -> Generator[np.ndarray, None, None]:
        """Yield the sound of the best candidates while it is computed: (m,) float32 each.

        ``on_chunk`` is called before the first piece after a chunk has been decoded. Until the first audio is ready
        only the first chunk is decoded; then one more chunk for every chunk that has started to sound: each active lane
        slows the others a little. When the iterator ends or is closed, all networks are released.
        """
        try:
            yield from self._pieces(chunks, on_chunk)
        finally:
            self.backend.release()

    def _pieces(self, chunks: Sequence[Chunk], on_chunk: OnChunk) -> Iterator[np.ndarray]:
        scheduler = LaneScheduler(self.backend, [self._prompt(chunk) for chunk in chunks],
                                  self.model.config("autoregressive"), self.settings.sampling, self.settings.lanes,
                                  self.settings.diffusion is not None, self._report_decoding, self.pool,
                                  self._recorded_heads)
        with closing(scheduler):
            yield from self._scheduled_pieces(scheduler, chunks, on_chunk)

    def _scheduled_pieces(self, scheduler: LaneScheduler, chunks: Sequence[Chunk],
                          on_chunk: OnChunk) -> Iterator[np.ndarray]:
        limit, scheduler.active_limit = scheduler.active_limit, min(scheduler.active_limit, self.settings.candidates)
        samples = 0
        for index, chunk in enumerate(chunks):
            decoded: list[RankedChunk] = []
            trimmer = None if self.settings.silence is None else Trimmer(*self.settings.silence)
            report = partial(report_decoded, decoded, trimmer, samples / SAMPLE_RATE, on_chunk)
            for piece in self._stream_sound(chunk, self._stream_latents(chunk, scheduler, index, decoded), trimmer):
                scheduler.active_limit = min(limit, (index + 2) * self.settings.candidates)
                self.timeline.mark_first_audio()
                report()
                samples += len(piece)
                yield piece
            report()
            self._add("vocode", 1)
            self._report("vocode", 0)
            if self.settings.diffusion is not None:
                self._add("diffuse", self.settings.diffusion.steps)

    def _stream_latents(self, chunk: Chunk, scheduler: LaneScheduler, index: int,
                        decoded: list[RankedChunk]) -> Iterator[np.ndarray]:
        """Yield the latents for diffusion or HiFi-GAN as they are decoded, or after ranking at once: (n, D) each.

        The chunk is appended to ``decoded`` when it is.
        """
        diffused = self.settings.diffusion is not None
        if not self.settings.ranked:
            yield from self.timeline.record_each("decode", scheduler.stream(index, diffused))
        with self.timeline.record("decode"):
            candidates = scheduler.candidates(index)
        ranked = self._timed(self._rank(chunk, candidates))
        decoded.append(ranked)
        if self.settings.ranked:
            yield ranked.kept[0].latents if diffused else ranked.kept[0].hidden

    def _stream_sound(self, chunk: Chunk, latents: Iterator[np.ndarray],
                      trimmer: Trimmer | None) -> Iterator[np.ndarray]:
        if self.settings.diffusion is None:
            sound = hifigan_stream(self.backend, self.model.config("hifigan"), self.voice.ar, latents)
        else:
            mels = windowed_mels(self.backend, latents, self.voice.diffusion, self.settings.diffusion,
                                 self.randomness.diffusion(chunk.index, 0), prediction=self._prediction,
                                 progress=lambda done, steps: self._report("diffuse", 0, f"{done} of {steps} steps"))
            sound = univnet_stream(self.backend, self.model.config("univnet"),
                                   self.randomness.vocoder(chunk.index, 0), self.timeline.record_each("diffuse", mels))
        trimmed_sound = trim_stream(self.timeline.record_each("vocode", sound), trimmer)
        yield from delivered(trimmed_sound, chunk.delivery, SAMPLE_RATE)

    # Shared

    @property
    def _prediction(self) -> str:
        return self.model.config("diffusion").prediction

    def _prompt(self, chunk: Chunk) -> Prompt:
        samplers = CandidateSamplers(self.randomness, chunk.index, self.settings.candidates)
        return Prompt(self.voice.ar, chunk.tokens, samplers)

    def _rank(self, chunk: Chunk, candidates: list[Candidate]) -> RankedChunk:
        """The best candidates of a chunk, best first; a single candidate is not scored."""
        kept = candidates
        if self.settings.ranked:
            with self.timeline.record("rank"):
                mels = np.stack(self.voice.clip_mels) if self.settings.cvvp_amount else None
                scores = score_candidates(self.backend, chunk.tokens,
                                          np.stack([candidate.padded_codes for candidate in candidates]),
                                          self.settings.cvvp_amount, mels, lambda done: self._report("rank", done))
            self._add("rank", len(candidates))
            kept = [candidates[index] for index in best_candidates(scores, self.settings.best)]
        signals = DecodingSignals(kept[0].stopped, longest_loop(kept[0].codes, self.model.config("autoregressive")),
                                  kept[0].log_probability)
        return RankedChunk(chunk, [without_unused_array(candidate, self.settings) for candidate in kept],
                           sum(len(candidate.codes) for candidate in candidates), signals)

    def _report_decoding(self, codes: int, finished: int) -> None:
        self._report("decode", finished, f"{codes} codes")

    def _report(self, phase: str, done: int, note: str = "") -> None:
        self._progress(phase, self._done[phase] + done, self._totals[phase], note)

    def _add(self, phase: str, done: int) -> None:
        self._done[phase] += done


def report_decoded(decoded: list[RankedChunk], trimmer: Trimmer | None, begins: float, on_chunk: OnChunk) -> None:
    """Report the chunks of the list, and empty it. ``begins``: seconds at which their sound begins."""
    for ranked in decoded:
        removed = trimmer.removed / SAMPLE_RATE if trimmer else 0.0
        on_chunk(ranked.info, delivered_words(ranked.words, ranked.chunk.delivery, removed, inf, begins))
    decoded.clear()


def trim_stream(pieces: Iterable[np.ndarray], trimmer: Trimmer | None) -> Iterator[np.ndarray]:
    """``ane.audio.trimming.trimmed`` for sound that arrives incrementally; None leaves it unchanged."""
    with closing_source(pieces):
        if trimmer is None:
            yield from pieces
            return
        for piece in pieces:
            if len(kept := trimmer.feed(piece)):
                yield kept
        if len(kept := trimmer.finish()):
            yield kept


def without_unused_array(candidate: Candidate, settings: Settings) -> Candidate:
    """The candidate without the array (``latents`` or ``hidden``) that is not needed any more, to save memory."""
    unused = "latents" if settings.diffusion is None else "hidden"
    return replace(candidate, **{unused: np.empty((0, candidate.hidden.shape[1]), np.float32)})
