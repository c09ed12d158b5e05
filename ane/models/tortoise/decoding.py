"""Readings sampled on the lanes of one decoder, whatever texts they are of: continuous batching (Yu et al. 2022, Orca).

A lane whose reading has ended takes the next one that waits, of the same chunk or of another, while the others go on.
The prefix of a chunk is computed once, when its first reading starts, and seen by all its lanes. A reading draws from a
generator of its own: it depends neither on the number of lanes nor on their filling nor on what else is read, but for
what that rounds otherwise: nothing that was seen in float32, a code now and then where weights have fewer bits.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ane.backends.base import Backend
from ane.models.tortoise.codes import fixed, trimmed_length
from ane.models.tortoise.embeddings import Candidate, Embeddings
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.sampling import Choose, Sampling, distribution
from ane.system.errors import UserError

FAKE_TOKEN = 1      # upstream's stand-in id for every position of the prefix, seen by the repetition penalty

Progress = Callable[[int, int], None]       # codes sampled, readings finished


@dataclass(frozen=True)
class Chunk:
    """Text to be read in one go, once for each of ``choices``.

    Attributes:
        conditioning: the voice's conditioning latent (1, D) float32.
        tokens: of ``ane.models.tortoise.embeddings.text_tokens``.
    """

    conditioning: np.ndarray
    tokens: Sequence[int]
    choices: Sequence[Choose]


class Reading:
    """A candidate in the making."""

    def __init__(self, chunk: int, index: int, choose: Choose, limit: int):
        self.chunk, self.index, self.choose, self.limit = chunk, index, choose, limit
        self.codes: list[int] = []
        self.hidden: list[np.ndarray] = []
        self.stopped = False

    @property
    def ended(self) -> bool:
        return self.stopped or len(self.codes) == self.limit


@dataclass
class Opened:
    """A chunk of which there are readings: the place of its prefix, what that predicts, and readings yet to end."""

    place: int
    first: tuple[np.ndarray, np.ndarray]
    left: int


def decode(backend: Backend, chunks: Sequence[Chunk], config: UnifiedVoiceConfig, sampling: Sampling, lanes: int = 16,
           rewritten: bool = True, progress: Progress = lambda codes, finished: None) -> Iterator[list[Candidate]]:
    """The candidates of each chunk, in the order of ``chunks``, each as soon as it and those before it are there.

    Work is done while a result is waited for, and stops within a step of the iterator's being closed. Arguments and
    errors: ``Lanes``.
    """
    packed = Lanes(backend, chunks, config, sampling, lanes, rewritten, progress)
    for chunk in range(len(chunks)):
        yield packed.candidates(chunk)


class Lanes:
    """The lanes of a decoder, and the readings on them and yet to come.

    Args:
        lanes: readings sampled at a time, at most.
        rewritten: whether candidates get the latents that upstream's rewriting of codes adds (see ``Candidate``),
            which costs another call; without them, ``latents`` are cut short where they would begin.
        progress: called after every step.

    Attributes:
        limit: how many of the lanes are filled; it may be changed between steps.

    Raises:
        UserError: the codes asked for do not fit the decoder's positions, or the network gives NaN (in any method).
    """

    def __init__(self, backend: Backend, chunks: Sequence[Chunk], config: UnifiedVoiceConfig, sampling: Sampling,
                 lanes: int, rewritten: bool = True, progress: Progress = lambda codes, finished: None):
        room = config.max_mel_tokens - 1
        if not 1 <= sampling.max_codes <= room:
            raise UserError(f"--max-codes {sampling.max_codes}: this decoder has positions for 1 to {room} codes")
        self.config, self.sampling, self.rewritten, self.progress = config, sampling, rewritten, progress
        self.tables = Embeddings(**backend.embeddings())
        self.chunks = chunks
        self.waiting = deque((chunk, index) for chunk, one in enumerate(chunks) for index in range(len(one.choices)))
        self.limit = min(lanes, len(self.waiting))
        longest = max(Embeddings.prefix_length(one.tokens) for one in chunks)
        self.decoder = backend.decoder(self.limit, sampling.max_codes, min(self.limit, len(chunks)), longest)
        self.free = list(reversed(range(self.decoder.prefixes)))
        self.opened: dict[int, Opened] = {}
        self.active: dict[int, Reading] = {}                # by lane
        self.done: list[dict[int, Candidate]] = [{} for _ in chunks]
        self.codes = self.finished = 0

    def candidates(self, chunk: int) -> list[Candidate]:
        """All candidates of a chunk, which are then forgotten here; reads on until they have ended."""
        count = len(self.chunks[chunk].choices)
        while len(self.done[chunk]) < count:
            self.advance()
        done, self.done[chunk] = self.done[chunk], {}
        return [done[index] for index in range(count)]

    def listen(self, chunk: int, latents: bool) -> Iterator[np.ndarray]:
        """A chunk of one candidate while it is read: its ``hidden``, or its ``latents``, as they come, (n, D) each."""
        given = 0
        while 0 not in self.done[chunk]:
            reading = next((one for one in self.active.values() if one.chunk == chunk), None)
            if reading is not None:
                known = trimmed_length(reading.codes, self.config) if latents else len(reading.hidden)
                if known > given:
                    yield np.stack(reading.hidden[given:known])
                    given = known
            self.advance()
        candidate = self.done[chunk][0]
        rest = (candidate.latents if latents else candidate.hidden)[given:]
        if len(rest):
            yield rest

    def advance(self) -> None:
        """Fill the lanes, and take one step."""
        for lane in range(self.limit):
            while lane not in self.active and (reading := self._next()) is not None:
                self.active[lane] = reading
                self._settle(lane)
        if self.active:
            self._step()
            for lane in list(self.active):
                self._settle(lane)
        self.progress(self.codes, self.finished)

    def _next(self) -> Reading | None:
        """The reading that waits longest, its first code sampled; None: there is none, or no place for its prefix."""
        if not self.waiting or (self.waiting[0][0] not in self.opened and not self.free):
            return None
        chunk, index = self.waiting.popleft()
        if chunk not in self.opened:
            place = self.free.pop()
            first = finite(*self.decoder.prefill(self._prefix(chunk), place))
            self.opened[chunk] = Opened(place, first, len(self.chunks[chunk].choices))
        reading = Reading(chunk, index, self.chunks[chunk].choices[index], self.sampling.max_codes)
        self._sample(reading, *self.opened[chunk].first)
        return reading

    def _prefix(self, chunk: int) -> np.ndarray:
        return self.tables.prefix(self.chunks[chunk].conditioning, self.chunks[chunk].tokens, self.config)

    def _sample(self, reading: Reading, hidden: np.ndarray, logits: np.ndarray) -> None:
        scores = logits.copy()
        scores[self.config.start_mel_token] = -np.inf       # upstream would crash on it in CLVP
        history = np.array([FAKE_TOKEN, self.config.start_mel_token, *reading.codes])
        code = reading.choose(*distribution(scores, history, self.sampling))
        reading.hidden.append(hidden)
        if code == self.config.stop_mel_token:
            reading.stopped = True
        else:
            reading.codes.append(code)
            self.codes += 1

    def _step(self) -> None:
        """Feed every active lane its newest code, and sample what follows; idle lanes between them run along."""
        low, high = min(self.active), max(self.active) + 1
        columns = np.zeros((high - low, 1, self.tables.code.shape[1]), dtype=np.float32)
        length = np.zeros(high - low, dtype=np.int64)
        place = np.full(high - low, self._place(self.active[low]))
        for lane, reading in self.active.items():
            position = len(reading.codes)                   # code i stands at mel position i + 1, own position i
            columns[lane - low, 0] = self.tables.codes(reading.codes[-1], position)
            length[lane - low], place[lane - low] = position - 1, self._place(reading)
        hidden, logits = finite(*self.decoder.step(columns, length, low, place))
        for lane, reading in self.active.items():
            self._sample(reading, hidden[lane - low, -1], logits[lane - low])

    def _place(self, reading: Reading) -> int:
        return self.opened[reading.chunk].place

    def _settle(self, lane: int) -> None:
        """Put a reading that has ended aside, and its prefix away when it was the chunk's last."""
        reading = self.active[lane]
        if not reading.ended:
            return
        self.done[reading.chunk][reading.index] = self._candidate(lane, reading)
        del self.active[lane]
        self.finished += 1
        opened = self.opened[reading.chunk]
        opened.left -= 1
        if not opened.left:
            self.free.append(opened.place)
            del self.opened[reading.chunk]

    def _candidate(self, lane: int, reading: Reading) -> Candidate:
        """The candidate, with the latents that upstream's rewriting of the codes after the stop adds."""
        hidden = np.stack(reading.hidden)
        codes = fixed(reading.codes, self.sampling.max_codes, self.config)
        length = trimmed_length(codes, self.config)
        latents = hidden[:length]
        if length > len(hidden) and self.rewritten:
            known = len(hidden) - 1                         # the codes before the stop are in the cache
            rewritten = np.arange(known, length - 1)
            columns = self.tables.codes(codes[rewritten], rewritten + 1)
            tail, _ = self.decoder.step(columns[None], np.array([known]), lane, np.array([self._place(reading)]))
            latents = np.concatenate((hidden, tail[0]))
        return Candidate(reading.codes, reading.stopped, hidden, codes, latents)


def finite(hidden: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the decoder gave. Raises UserError when it is not finite."""
    if not np.isfinite(logits).all():
        raise UserError("the decoder gave NaN or infinite logits: the weights are damaged, or --precision is too "
                        "narrow for them (try fp32)")
    return hidden, logits
