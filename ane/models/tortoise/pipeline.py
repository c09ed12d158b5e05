"""From chunks of text to sound: the steps chained, each drawing on the one before it.

Between two steps either the first is finished for some chunks before the next begins, and its networks are let go, so
that few are loaded at a time; or the first runs ahead of the next in a thread. What is said is the same.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ane.audio.trimming import Trimmer, trimmed
from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.tortoise.chunks import Part
from ane.models.tortoise.decoding import Chunk, Lanes, decode
from ane.models.tortoise.diffusion import spectrograms
from ane.models.tortoise.embeddings import Candidate
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.ranking import best, score
from ane.models.tortoise.sampling import Choose, by_inverse_cdf
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.vocoding import hifigan_sound, hifigan_stream, univnet_sound, univnet_stream
from ane.models.tortoise.windows import windowed_mels
from ane.system.iterators import ahead, closing_source
from ane.system.timeline import Timeline
from ane.voices import Voice

WAVE = 16           # chunks that take a step together, at least: memory does not grow with a text, and lanes stay full

# stage, how much of it is done, how much there is, what to say beside it
Progress = Callable[[str, int, int, str], None]


def silent(stage: str, done: int, total: int, note: str) -> None:
    """The progress of nobody watching."""


@dataclass(frozen=True)
class Read:
    """A part that was read: the candidates that are kept, best first, and the codes sampled in all of them."""

    part: Part
    kept: list[Candidate]
    codes: int

    @property
    def told(self) -> "Told":
        return Told(self.part, self.codes, self.kept[0].stopped)


@dataclass(frozen=True)
class Told:
    """What is remembered of a part that was read; ``stopped``: whether its best candidate found an end."""

    part: Part
    codes: int
    stopped: bool


@dataclass(frozen=True)
class Sound:
    """A part that became sound: the audio (S,) float32 of each candidate that was kept, best first."""

    told: Told
    audio: list[np.ndarray]


class Choices(Sequence[Choose]):
    """How the candidates of a part are chosen: a generator each, made when it is asked for."""

    def __init__(self, randomness: Randomness, part: int, count: int):
        self.randomness, self.part, self.count = randomness, part, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, candidate: int) -> Choose:
        return by_inverse_cdf(self.randomness.candidate(self.part, candidate))


class ClosedError(Exception):
    """Nobody waits for the result any more."""


class Route:
    """One request's way through the steps.

    Args:
        parts: how many there will be in all, for the progress.
        side_by_side: steps run ahead of each other in threads, and all networks stay loaded.
    """

    def __init__(self, model: Model, backend: Backend, voice: Voice, settings: Settings, randomness: Randomness,
                 parts: int, timeline: Timeline, progress: Progress = silent, side_by_side: bool = False):
        self.model, self.backend, self.voice, self.settings = model, backend, voice, settings
        self.randomness, self.timeline, self.side_by_side = randomness, timeline, side_by_side
        self._progress = progress
        kept = parts * settings.best
        self._totals = {"decode": parts * settings.candidates, "rank": parts * settings.candidates,
                        "diffuse": kept * (settings.diffusion.steps if settings.diffusion else 0), "vocode": parts}
        self._done = dict.fromkeys(self._totals, 0)
        self._over = threading.Event()

    # All of it

    def sounds(self, parts: Sequence[Part]) -> Iterator[Sound]:
        """Every part's sound, in order. When it ends, or is closed, all networks are let go."""
        try:
            if self.side_by_side:
                read = ahead(self._read(parts), stop=self._over.set)
                yield from self._vocoded(ahead(self._diffused_one_by_one(read), stop=self._over.set))
                return
            wave = max(WAVE, 2 * self.settings.lanes // self.settings.candidates)
            for start in range(0, len(parts), wave):
                yield from self._vocoded(self._diffused(list(self._read(parts[start:start + wave]))))
                self._release("hifigan", "univnet")
        finally:
            self.backend.release()

    def _read(self, parts: Sequence[Part]) -> Iterator[Read]:
        """Codes of every part, ranked as soon as they are there: all candidates of a book would fill the memory."""
        chunks = [self._chunk(part) for part in parts]
        readings = self.timeline.record_each("decode", decode(
            self.backend, chunks, self.model.config("autoregressive"), self.settings.sampling, self.settings.lanes,
            self.settings.diffusion is not None, self._decoding))
        with closing_source(readings):
            for part in parts:
                candidates = next(readings)
                if part is parts[-1]:
                    readings.close()            # lets the decoder's cache go before the next network comes
                    self._release("autoregressive")
                yield self._ranked(part, candidates)
                del candidates
        self._add("decode", len(parts) * self.settings.candidates)
        self._release("clvp", "cvvp")

    def _diffused(self, reads: list[Read]) -> Iterator[tuple[Read, list[np.ndarray]]]:
        """Mels (100, L) of the candidates kept; none on the path without diffusion."""
        if self.settings.diffusion is None:
            return iter([(read, []) for read in reads])
        latents = [candidate.latents for read in reads for candidate in read.kept]
        random = [self.randomness.diffusion(read.part.index, rank) for read in reads for rank in range(len(read.kept))]
        with self.timeline.record("diffuse"):
            mels = iter(spectrograms(self.backend, latents, self.voice.diffusion, self.settings.diffusion, random,
                                     lambda done, total: self._tell("diffuse", done), self._prediction))
        self._add("diffuse", len(latents) * self.settings.diffusion.steps)
        self._release("diffusion")
        return iter([(read, [next(mels)[0] for _ in read.kept]) for read in reads])

    def _diffused_one_by_one(self, reads: Iterator[Read]) -> Iterator[tuple[Read, list[np.ndarray]]]:
        with closing_source(reads):
            for read in reads:
                yield from self._diffused([read])

    def _vocoded(self, diffused: Iterator[tuple[Read, list[np.ndarray]]]) -> Iterator[Sound]:
        with closing_source(diffused):
            for read, mels in diffused:
                with self.timeline.record("vocode"):
                    audio = [self._sound(read.part, rank, candidate, mels)
                             for rank, candidate in enumerate(read.kept)]
                self._add("vocode", 1)
                self._tell("vocode", 0)
                yield Sound(read.told, [trimmed(one, self.settings.silence) for one in audio])

    def _sound(self, part: Part, rank: int, candidate: Candidate, mels: list[np.ndarray]) -> np.ndarray:
        if mels:
            return univnet_sound(self.backend, self.model.config("univnet"), self.randomness.vocoder(part.index, rank),
                                 mels[rank])
        # the stop code's latent included, nothing trimmed (upstream api_fast.py)
        return hifigan_sound(self.backend, self.voice.ar, candidate.hidden)

    # Bit by bit

    def pieces(self, parts: Sequence[Part], read: Callable[[Told], None]) -> Iterator[np.ndarray]:
        """The sound of the best candidates while it is made: (m,) float32 each. ``read`` is told of every part.

        Until the first sound there is, nothing but the first part is decoded; then the second along with it, and one
        more with every part that was given: each lane slows the others a little, and gives time to those after it.
        When it ends, or is closed, all networks are let go.
        """
        try:
            yield from self._pieces(parts, read)
        finally:
            self.backend.release()

    def _pieces(self, parts: Sequence[Part], read: Callable[[Told], None]) -> Iterator[np.ndarray]:
        lanes = Lanes(self.backend, [self._chunk(part) for part in parts], self.model.config("autoregressive"),
                      self.settings.sampling, self.settings.lanes, self.settings.diffusion is not None, self._decoding)
        together, lanes.limit = lanes.limit, min(lanes.limit, self.settings.candidates)
        for index, part in enumerate(parts):
            for piece in self._heard(part, self._arriving(part, lanes, index, read)):
                lanes.limit = min(together, (index + 2) * self.settings.candidates)
                self.timeline.mark_first_sound()
                yield piece
            self._add("vocode", 1)
            self._tell("vocode", 0)
            if self.settings.diffusion is not None:
                self._add("diffuse", self.settings.diffusion.steps)

    def _arriving(self, part: Part, lanes: Lanes, index: int, read: Callable[[Told], None]) -> Iterator[np.ndarray]:
        """What sound is made from, as it comes: (n, D) each."""
        diffused = self.settings.diffusion is not None
        if not self.settings.ranked:
            yield from self.timeline.record_each("decode", lanes.listen(index, diffused))
        with self.timeline.record("decode"):
            candidates = lanes.candidates(index)
        best_first = self._ranked(part, candidates)
        read(best_first.told)
        if self.settings.ranked:
            yield best_first.kept[0].latents if diffused else best_first.kept[0].hidden

    def _heard(self, part: Part, arriving: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        if self.settings.diffusion is None:
            sound = hifigan_stream(self.backend, self.model.config("hifigan"), self.voice.ar, arriving)
        else:
            mels = windowed_mels(self.backend, arriving, self.voice.diffusion, self.settings.diffusion,
                                 self.randomness.diffusion(part.index, 0), prediction=self._prediction,
                                 progress=lambda done, steps: self._tell("diffuse", 0, f"{done} of {steps} steps"))
            sound = univnet_stream(self.backend, self.model.config("univnet"), self.randomness.vocoder(part.index, 0),
                                   self.timeline.record_each("diffuse", mels))
        yield from trimming(self.timeline.record_each("vocode", sound), self.settings.silence)

    # What both share

    @property
    def _prediction(self) -> str:
        return self.model.config("diffusion").prediction

    def _chunk(self, part: Part) -> Chunk:
        return Chunk(self.voice.ar, part.tokens, Choices(self.randomness, part.index, self.settings.candidates))

    def _ranked(self, part: Part, candidates: list[Candidate]) -> Read:
        """The best candidates of a part, best first; a single one needs no opinion."""
        kept = candidates
        if self.settings.ranked:
            with self.timeline.record("rank"):
                mels = np.stack(self.voice.clip_mels) if self.settings.cvvp_amount else None
                scores = score(self.backend, part.tokens, np.stack([one.fixed for one in candidates]),
                               self.settings.cvvp_amount, mels, lambda done: self._tell("rank", done))
            self._add("rank", len(candidates))
            kept = [candidates[index] for index in best(scores, self.settings.best)]
        return Read(part, [thinned(one, self.settings) for one in kept], sum(len(one.codes) for one in candidates))

    def _decoding(self, codes: int, finished: int) -> None:
        self._tell("decode", finished, f"{codes} codes")

    def _tell(self, stage: str, done: int, note: str = "") -> None:
        """Every step of every stage tells; when nobody waits any more, that ends it."""
        if self._over.is_set():
            raise ClosedError
        self._progress(stage, self._done[stage] + done, self._totals[stage], note)

    def _add(self, stage: str, done: int) -> None:
        self._done[stage] += done

    def _release(self, *networks: str) -> None:
        if not self.side_by_side:
            self.backend.release(*networks)


def trimming(pieces: Iterable[np.ndarray], silence: tuple[float, float] | None) -> Iterator[np.ndarray]:
    """``ane.audio.trimming.trimmed`` of sound that comes by and by."""
    with closing_source(pieces):
        if silence is None:
            yield from pieces
            return
        trimmer = Trimmer(*silence)
        for piece in pieces:
            yield from present(trimmer.feed(piece))
        yield from present(trimmer.finish())


def present(audio: np.ndarray) -> list[np.ndarray]:
    """The audio if there is any."""
    return [audio] if len(audio) else []


def thinned(candidate: Candidate, settings: Settings) -> Candidate:
    """A candidate without the array that its route to sound does not read: a book keeps thousands of them."""
    unread = "latents" if settings.diffusion is None else "hidden"
    return replace(candidate, **{unread: np.empty((0, candidate.hidden.shape[1]), np.float32)})
