"""From chunks of text to sound: decode, rank, diffuse, vocode.

Whole speech is made in groups of chunks: each step is finished for a group, and its networks are released, before the
next step begins, so that few networks are loaded at a time. A stream alternates between the steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ane.audio.trimming import Trimmer
from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.tortoise.candidate import Candidate, Prompt
from ane.models.tortoise.chunks import TokenChunk
from ane.models.tortoise.codes import longest_loop
from ane.models.tortoise.decoding import LaneScheduler, all_candidates
from ane.models.tortoise.diffusion import spectrograms
from ane.models.tortoise.lane_pool import LanePool
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.ranking import best_candidates, score_candidates
from ane.models.tortoise.sampling import InverseCdfSampler
from ane.models.tortoise.settings import SAMPLE_RATE
from ane.models.tortoise.vocoding import hifigan, univnet
from ane.models.tortoise.voice_resolution import cloning_notes
from ane.models.tortoise.windows import windowed_mels
from ane.models.tortoise.word_times import WordTimer
from ane.models.vocoders.streaming import VocodingWindow
from ane.speech.request import Piece, Run, SpeechRequest
from ane.speech.words import SpokenWord
from ane.system.iterators import closing_source

MIN_GROUP = 16      # chunks of a group, at least: enough to fill the lanes, few enough to bound memory for long texts
UNFINISHED = ("chunk {chunks} did not end with a stop code: the speech may be cut off or ramble; try another seed, "
              "more candidates or shorter sentences")


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


@dataclass(frozen=True)
class DecodedChunk:
    """A chunk with its best candidates, best first.

    Attributes:
        codes: sampled in all of its candidates.
        words: those of the best one, in the time of its sound before trimming; none unless asked for.
    """

    chunk: TokenChunk
    kept: list[Candidate]
    codes: int
    signals: DecodingSignals
    words: Sequence[SpokenWord] = ()


class Rendering:
    """The steps of one request, from chunks to their sound.

    Args:
        request: with a ``Voice`` for its voice.
        pool: lanes that are shared with other requests; None: lanes of its own.
        timer: what times words; None: nothing does.
    """

    def __init__(self, model: Model, backend: Backend, chunks: Sequence[TokenChunk], request: SpeechRequest, run: Run,
                 pool: LanePool | None = None, timer: WordTimer | None = None):
        self.model, self.backend, self.chunks, self.run, self.timer = model, backend, chunks, run, timer
        self.voice, self.settings, self.timeline = request.voice, request.settings, run.timeline
        self.randomness, self.pool = Randomness(request.seed), pool
        settings, count = self.settings, len(chunks)
        steps = settings.diffusion.steps if settings.diffusion else 0
        self._totals = {"decode": count * settings.candidates, "rank": count * settings.candidates,
                        "diffuse": count * settings.best * steps, "vocode": count}
        self._done = dict.fromkeys(self._totals, 0)
        self._notes = cloning_notes(model, self.voice)      # stated with the first chunk

    def pieces(self) -> Iterator[Piece]:
        """The sound of every chunk, in order."""
        if not self.run.whole:
            yield from self._streamed()
            return
        group = max(MIN_GROUP, 2 * self.settings.lanes // self.settings.candidates)
        for start in range(0, len(self.chunks), group):
            yield from self._group(self.chunks[start:start + group])
            self.backend.release("hifigan", "univnet")

    # Whole chunks, step by step

    def _group(self, chunks: Sequence[TokenChunk]) -> Iterator[Piece]:
        decoded = list(self._decoded(chunks))
        columns = iter(self._diffused(decoded))
        for each in decoded:
            with self.timeline.record("vocode"):
                trimmers = [self._trimmer() for _ in each.kept]
                sounds = [np.concatenate(list(trimmed(self._vocoded(each.chunk, rank, [next(columns)]), trimmer)))
                          for rank, trimmer in enumerate(trimmers)]
            self._add("vocode", 1)
            self._report("vocode", 0)
            yield self._piece(each, sounds[0], removed_by(trimmers[0]), last=True, alternatives=sounds[1:])

    def _decoded(self, chunks: Sequence[TokenChunk]) -> Iterator[DecodedChunk]:
        """Every chunk, ranked as soon as its candidates end, so that only the best are kept in memory."""
        decoded = self.timeline.record_each("decode", all_candidates(self._scheduler(chunks)))
        with closing_source(decoded):
            for chunk in chunks:
                candidates = next(decoded)
                if chunk is chunks[-1]:
                    decoded.close()             # frees the decoder's cache before the next network is loaded
                    if self.timer is None:
                        self.backend.release("autoregressive")
                yield self._ranked(chunk, candidates)
                del candidates
        self._add("decode", len(chunks) * self.settings.candidates)
        self.backend.release("autoregressive", "clvp", "cvvp")

    def _diffused(self, decoded: Sequence[DecodedChunk]) -> list[np.ndarray]:
        """What the vocoder takes for every kept candidate: its mel (100, L), or without diffusion its latents."""
        kept = [candidate for each in decoded for candidate in each.kept]
        if self.settings.diffusion is None:
            return [candidate.hidden for candidate in kept]
        rngs = [self.randomness.diffusion(each.chunk.index, rank) for each in decoded for rank in range(len(each.kept))]
        with self.timeline.record("diffuse"):
            mels = spectrograms(self.backend, [candidate.latents for candidate in kept], self.voice.diffusion,
                                self.settings.diffusion, rngs, lambda done, total: self._report("diffuse", done),
                                self._prediction)
        self._add("diffuse", len(kept) * self.settings.diffusion.steps)
        self.backend.release("diffusion")
        return [mel[0] for mel in mels]

    # Chunk after chunk, all steps at once

    def _streamed(self) -> Iterator[Piece]:
        """Until the first sound is ready only the first chunk is decoded; then one more chunk for every chunk that has
        started to sound: each active lane slows the others a little."""
        scheduler = self._scheduler(self.chunks)
        try:
            limit, candidates = scheduler.active_limit, self.settings.candidates
            scheduler.active_limit = min(limit, candidates)
            for index, chunk in enumerate(self.chunks):
                decoded: list[DecodedChunk] = []
                trimmer = self._trimmer()
                columns: Iterator[np.ndarray] = self._streamed_latents(chunk, scheduler, index, decoded)
                if self.settings.diffusion is not None:
                    columns = self.timeline.record_each("diffuse", self._windowed(chunk, columns))
                sound = self._vocoded(chunk, 0, columns, VocodingWindow())
                for samples in trimmed(self.timeline.record_each("vocode", sound), trimmer):
                    scheduler.active_limit = min(limit, (index + 2) * candidates)
                    known = decoded and self._piece(decoded.pop(), samples, removed_by(trimmer))
                    yield known or Piece(samples, chunk)
                end = np.zeros(0, np.float32)
                self._add("vocode", 1)
                self._report("vocode", 0)
                if self.settings.diffusion is not None:
                    self._add("diffuse", self.settings.diffusion.steps)
                known = decoded and self._piece(decoded.pop(), end, removed_by(trimmer), last=True)
                yield known or Piece(end, chunk, last=True)
        finally:
            scheduler.close()

    def _streamed_latents(self, chunk: TokenChunk, scheduler: LaneScheduler, index: int,
                          decoded: list[DecodedChunk]) -> Iterator[np.ndarray]:
        """Yield the latents for diffusion or HiFi-GAN as they are decoded, or after ranking at once: (n, D) each.

        The chunk is appended to ``decoded`` when it is.
        """
        diffused = self.settings.diffusion is not None
        if not self.settings.ranked:
            yield from self.timeline.record_each("decode", scheduler.stream(index, diffused))
        with self.timeline.record("decode"):
            candidates = scheduler.candidates(index)
        found = self._ranked(chunk, candidates)
        decoded.append(found)
        if self.settings.ranked:
            yield found.kept[0].latents if diffused else found.kept[0].hidden

    def _windowed(self, chunk: TokenChunk, latents: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        return windowed_mels(self.backend, latents, self.voice.diffusion, self.settings.diffusion,
                             self.randomness.diffusion(chunk.index, 0), prediction=self._prediction,
                             progress=lambda done, steps: self._report("diffuse", 0, f"{done} of {steps} steps"))

    # Shared

    def _scheduler(self, chunks: Sequence[TokenChunk]) -> LaneScheduler:
        def prompt(chunk: TokenChunk) -> Prompt:
            return Prompt(self.voice.ar, chunk.tokens, [
                InverseCdfSampler(self.randomness.candidate(chunk.index, candidate))
                for candidate in range(self.settings.candidates)])

        heads = self.timer.recorded_heads if self.timer is not None else ()
        return LaneScheduler(
            self.backend, [prompt(chunk) for chunk in chunks], self.model.config("autoregressive"),
            self.settings.sampling, self.settings.lanes, self.settings.diffusion is not None,
            lambda codes, finished: self._report("decode", finished, f"{codes} codes"),
            None if self.run.whole else self.pool, heads)

    def _ranked(self, chunk: TokenChunk, candidates: list[Candidate]) -> DecodedChunk:
        """A chunk with its best candidates, best first; a single one is not scored. Its words are timed if asked."""
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
        words: Sequence[SpokenWord] = ()
        if self.timer is not None:
            with self.timeline.record("words"):
                words = self.timer.words(chunk, self.voice.ar, kept[0])
        unused = "latents" if self.settings.diffusion is None else "hidden"     # freed, to save memory
        freed = {unused: np.empty((0, kept[0].hidden.shape[1]), np.float32)}
        return DecodedChunk(chunk, [replace(candidate, **freed) for candidate in kept],
                            sum(len(candidate.codes) for candidate in candidates), signals, words)

    def _vocoded(self, chunk: TokenChunk, rank: int, columns: Iterable[np.ndarray],
                 window: VocodingWindow | None = None) -> Iterator[np.ndarray]:
        """The sound of mels (100, n), or without diffusion of latents (n, D), those of all codes and of the stop code
        as in upstream's api_fast.py."""
        if self.settings.diffusion is None:
            return hifigan(self.backend, self.model.config("hifigan"), self.voice.ar, columns, window)
        return univnet(self.backend, self.model.config("univnet"), self.randomness.vocoder(chunk.index, rank), columns,
                       window)

    def _trimmer(self) -> Trimmer | None:
        return None if self.settings.silence is None else Trimmer(*self.settings.silence)

    def _piece(self, decoded: DecodedChunk, samples: np.ndarray, removed: int, last: bool = False,
               alternatives: Sequence[np.ndarray] = ()) -> Piece:
        """A piece with what is known of its chunk; ``removed``: samples of silence removed before its sound."""
        seconds, notes = removed / SAMPLE_RATE, self._notes
        words = [replace(word, start=word.start - seconds, end=word.end - seconds) for word in decoded.words]
        self._notes = []
        return Piece(samples, decoded.chunk, last, words, {"codes": decoded.codes},
                     notes if decoded.signals.stopped else [*notes, UNFINISHED], {"decoded": decoded.signals},
                     alternatives)

    @property
    def _prediction(self) -> str:
        return self.model.config("diffusion").prediction

    def _report(self, phase: str, done: int, note: str = "") -> None:
        self.run.progress(phase, self._done[phase] + done, self._totals[phase], note)

    def _add(self, phase: str, done: int) -> None:
        self._done[phase] += done


def trimmed(pieces: Iterable[np.ndarray], trimmer: Trimmer | None) -> Iterator[np.ndarray]:
    """``ane.audio.trimming.trimmed`` for sound that arrives incrementally; None leaves it unchanged."""
    with closing_source(pieces):
        if trimmer is None:
            yield from pieces
            return
        for piece in pieces:
            if len(kept := trimmer.feed(piece)):
                yield kept
        yield trimmer.finish()


def removed_by(trimmer: Trimmer | None) -> int:
    """Samples of silence that were removed before the sound."""
    return trimmer.removed if trimmer else 0
