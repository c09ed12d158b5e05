"""Sampling candidates on the lanes of one decoder: continuous batching (Yu et al. 2022, Orca).

When a candidate ends, its lane takes the next waiting candidate, of the same chunk or of another, while the others
continue. The prefix of a chunk (voice and text) is computed once, when its first candidate starts, and the lanes of all
its candidates attend to it. Each candidate has its own random generator, so its codes do not depend on the number of
lanes or on the other candidates. On torch on the CPU neither does any bit of its hidden states, in every precision;
other backends compute them up to rounding, which can turn a tie between two codes.

Upstream computes latents in a second pass over the codes. Here the steps return them: the hidden state that predicts
code i is latent i of that pass, because the network is causal. Upstream also overwrites the codes after the stop code
before that pass; only the few latents that this changes need another call, with the lane's cache.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ane.backends.base import Backend
from ane.models.tortoise.candidate import Candidate, Prompt
from ane.models.tortoise.codes import pad_codes, trimmed_length
from ane.models.tortoise.embeddings import Embeddings
from ane.models.tortoise.lane_pool import ActiveCandidate, LanePool, check_finite
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.sampling import Sampling, distribution
from ane.system.errors import UserError

LEAST_PROBABILITY = 1e-9     # that counts for a code, also of a sampler that ignores the distribution

DecodingProgress = Callable[[int, int], None]       # codes sampled, candidates finished


@dataclass
class ActivePrefix:
    """The prefix of a chunk that is being sampled.

    Attributes:
        index: the decoder's index of the prefix.
        first: hidden state (D,) and logits (V,) at its last position, from which every candidate starts.
        first_scores: what was recorded there, (1, heads, positions); None: nothing was.
        unfinished: number of the chunk's candidates that have not ended.
    """

    index: int
    first: tuple[np.ndarray, np.ndarray]
    first_scores: np.ndarray | None
    unfinished: int


def decode(backend: Backend, prompts: Sequence[Prompt], config: UnifiedVoiceConfig, sampling: Sampling,
           lanes: int = 16, rewrite_tail: bool = True,
           progress: DecodingProgress = lambda codes, finished: None,
           recorded_heads: Sequence[tuple[int, int]] = ()) -> Iterator[list[Candidate]]:
    """``all_candidates`` of a ``LaneScheduler``, whose arguments these are."""
    yield from all_candidates(LaneScheduler(backend, prompts, config, sampling, lanes, rewrite_tail, progress,
                                            recorded_heads=recorded_heads))


def all_candidates(scheduler: "LaneScheduler") -> Iterator[list[Candidate]]:
    """Yield the candidates of each chunk in order, as soon as they and those of earlier chunks have ended.

    Work is done only while the caller waits for a result.
    """
    with closing(scheduler):        # a circle of references would else keep the decoder's caches for a while
        for chunk in range(len(scheduler.prompts)):
            yield scheduler.candidates(chunk)


class LaneScheduler:
    """Samples the candidates of one request on the lanes of a decoder.

    Args:
        lanes: candidates sampled at a time, at most.
        rewrite_tail: compute the latents of the codes that upstream writes after the stop code, which takes another
            call per candidate; otherwise ``Candidate.latents`` ends before them.
        progress: called after every step.
        pool: lanes that are shared with other requests until ``close``; None: lanes of its own.
        recorded_heads: of ``LanePool``, if the lanes are its own.

    Attributes:
        active_limit: how many lanes may be in use; it may be changed between steps.

    Raises:
        UserError: ``max_codes`` exceeds the decoder's positions, or the network returns NaN (in any method).
    """

    def __init__(self, backend: Backend, prompts: Sequence[Prompt], config: UnifiedVoiceConfig, sampling: Sampling,
                 lanes: int, rewrite_tail: bool = True,
                 progress: DecodingProgress = lambda codes, finished: None, pool: LanePool | None = None,
                 recorded_heads: Sequence[tuple[int, int]] = ()):
        limit = config.max_mel_tokens - 1 if pool is None else pool.capacity
        if not 1 <= sampling.max_codes <= limit:
            raise UserError(f"max_codes must be from 1 to {limit}, the positions of this decoder, "
                            f"got {sampling.max_codes}")
        self.config, self.sampling, self.rewrite_tail, self.progress = config, sampling, rewrite_tail, progress
        self.prompts = prompts
        self.waiting = deque((chunk, index) for chunk, prompt in enumerate(prompts)
                             for index in range(len(prompt.samplers)))
        self.active_limit = min(lanes, len(self.waiting))
        if pool is None:
            longest = max(Embeddings.prefix_length(prompt.tokens) for prompt in prompts)
            pool = LanePool(backend, config, self.active_limit, sampling.max_codes,
                            min(self.active_limit, len(prompts)), longest, recorded_heads)
        self.pool, self.priority = pool, pool.priority()
        self.prefixes: dict[int, ActivePrefix] = {}         # by chunk
        self.failure: UserError | None = None
        self.finished: list[dict[int, Candidate]] = [{} for _ in prompts]
        self.code_count = self.finished_count = 0
        pool.schedulers.append(self)

    def close(self) -> None:
        """Give up the candidates that have not ended, and leave the pool."""
        self.pool.remove(self)

    def candidates(self, chunk: int) -> list[Candidate]:
        """All candidates of a chunk; takes steps until they have ended. The scheduler does not keep them."""
        count = len(self.prompts[chunk].samplers)
        while len(self.finished[chunk]) < count:
            self.advance()
        finished, self.finished[chunk] = self.finished[chunk], {}
        return [finished[index] for index in range(count)]

    def stream(self, chunk: int, latents: bool) -> Iterator[np.ndarray]:
        """Yield ``hidden`` or ``latents`` of a chunk with a single candidate during sampling, (n, D) each."""
        yielded = 0
        while 0 not in self.finished[chunk]:
            candidate = next((active for active in self.active if active.chunk == chunk), None)
            if candidate is not None:
                known = trimmed_length(candidate.codes, self.config) if latents else len(candidate.hidden)
                for end in self.pool.row_ends(yielded, known):
                    yield np.stack(candidate.hidden[yielded:end])
                    yielded = end
            self.advance()
        finished = self.finished[chunk][0]
        rows = finished.latents if latents else finished.hidden
        for end in chain(self.pool.row_ends(yielded, len(rows)), [len(rows)]):
            if end > yielded:
                yield rows[yielded:end]
                yielded = end

    def advance(self) -> None:
        """Wait until a step has been taken. Raises UserError when this request failed in it, which ends no other's."""
        if self.failure is None:
            self.pool.wait_for_step()
        if self.failure is not None:
            raise self.failure

    def fail(self, error: UserError) -> None:
        """Leave the pool; whoever waits for a result gets this error."""
        self.failure = error
        self.close()

    def report(self) -> None:
        self.progress(self.code_count, self.finished_count)

    @property
    def active(self) -> list[ActiveCandidate]:
        """Its candidates that are being sampled."""
        return [candidate for candidate in self.pool.active.values() if candidate.scheduler is self]

    @property
    def can_start(self) -> bool:
        """Whether a candidate waits that may have a lane now, and a prefix."""
        return bool(self.waiting and (self.waiting[0][0] in self.prefixes or self.pool.free_prefixes)
                    and len(self.active) < self.active_limit)

    def start_next(self) -> ActiveCandidate:
        """The next waiting candidate, its first code sampled."""
        chunk, index = self.waiting.popleft()
        if chunk not in self.prefixes:
            free = self.pool.free_prefixes[-1]
            first = check_finite(*self.pool.decoder.prefill(self._prefix(chunk), free))
            self.pool.free_prefixes.pop()
            scores = self.pool.recorder and self.pool.recorder.recorded
            self.prefixes[chunk] = ActivePrefix(free, first, scores, len(self.prompts[chunk].samplers))
        candidate = ActiveCandidate(self, chunk, index, self.prompts[chunk].samplers[index])
        prefix = self.prefixes[chunk]
        self.sample(candidate, *prefix.first)
        if prefix.first_scores is not None:
            candidate.prefix_scores.append(prefix.first_scores[0])
        return candidate

    def _prefix(self, chunk: int) -> np.ndarray:
        prefix = self.pool.tables.prefix(self.prompts[chunk].conditioning, self.prompts[chunk].tokens, self.config)
        if not np.isfinite(prefix).all():       # it would stay in the cache, where others' masked products read it
            raise UserError("the voice's latents hold NaN or infinite numbers: make the voice again")
        return prefix

    def sample(self, candidate: ActiveCandidate, hidden: np.ndarray, logits: np.ndarray) -> None:
        """Sample a candidate's next code from the decoder's output (D,), (V,) for its last column."""
        scores = logits.copy()
        scores[self.config.start_mel_token] = -np.inf       # CLVP has no embedding for it: upstream would crash
        ids, probabilities = distribution(scores, candidate.history, self.sampling)
        code = candidate.sampler(ids, probabilities)
        probability = probabilities[ids == code].sum()
        candidate.log_probability += float(np.log(max(probability, LEAST_PROBABILITY)))
        candidate.hidden.append(hidden)
        if code == self.config.stop_mel_token:
            candidate.stopped = True
        else:
            candidate.add(code)
            self.code_count += 1

    def finish(self, lane: int, candidate: ActiveCandidate) -> None:
        """Store a candidate that has ended; free the prefix after the chunk's last candidate."""
        self.finished[candidate.chunk][candidate.index] = self._finished_candidate(lane, candidate)
        self.finished_count += 1
        prefix = self.prefixes[candidate.chunk]
        prefix.unfinished -= 1
        if not prefix.unfinished:
            self.pool.free_prefixes.append(prefix.index)
            del self.prefixes[candidate.chunk]

    def _finished_candidate(self, lane: int, candidate: ActiveCandidate) -> Candidate:
        """The candidate's result, including the latents of the codes that upstream writes after the stop code."""
        hidden = np.stack(candidate.hidden)
        codes = pad_codes(candidate.codes, self.sampling.max_codes, self.config)
        length = trimmed_length(codes, self.config)
        latents = hidden[:length]
        if length > len(hidden) and self.rewrite_tail:
            known = len(hidden) - 1                         # the codes before the stop code are in the cache
            rewritten = np.arange(known, length - 1)
            columns = self.pool.tables.codes(codes[rewritten], rewritten + 1)
            tail, _ = self.pool.decoder.step(columns[None], np.array([known]), lane,
                                             np.array([candidate.prefix_index]))
            latents = np.concatenate((hidden, tail[0]))
        before = Embeddings.prefix_length(self.prompts[candidate.chunk].tokens) - 1
        scores = [rows[:, :before] for rows in candidate.prefix_scores]
        return Candidate(candidate.codes, candidate.stopped, hidden, codes, latents,
                         candidate.log_probability / len(hidden), np.stack(scores, axis=1) if scores else None)
