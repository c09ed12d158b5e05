"""Sampling candidates on the lanes of one decoder: continuous batching (Yu et al. 2022, Orca).

When a candidate ends, its lane takes the next waiting candidate, of the same chunk or of another, while the others
continue. The prefix of a chunk (voice and text) is computed once, when its first candidate starts, and the lanes of all
its candidates attend to it. Each candidate has its own random generator, so its codes do not depend on the number of
lanes or on the other candidates, except through rounding: no difference was observed in float32, an occasional code
differs in lower precision.

Upstream computes latents in a second pass over the codes. Here the steps return them: the hidden state that predicts
code i is latent i of that pass, because the network is causal. Upstream also overwrites the codes after the stop code
before that pass; only the few latents that this changes need another call, with the lane's cache.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ane.backends.base import Backend
from ane.models.tortoise.codes import pad_codes, trimmed_length
from ane.models.tortoise.embeddings import Embeddings
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.sampling import Sampler, Sampling, distribution
from ane.system.errors import UserError

LEAST_PROBABILITY = 1e-9     # that counts for a code, also of a sampler that ignores the distribution
FAKE_TOKEN = 1      # upstream's placeholder id for every position of the prefix; the repetition penalty applies to it

DecodingProgress = Callable[[int, int], None]       # codes sampled, candidates finished


@dataclass(frozen=True)
class Prompt:
    """What the decoder continues for one chunk; each of ``samplers`` samples one candidate.

    Attributes:
        conditioning: the voice's conditioning latent (1, D) float32.
        tokens: the result of ``ane.models.tortoise.chunks.text_tokens``.
    """

    conditioning: np.ndarray
    tokens: Sequence[int]
    samplers: Sequence[Sampler]


@dataclass
class Candidate:
    """One code sequence sampled for a chunk.

    Attributes:
        codes: the sampled codes, without the stop code.
        stopped: whether the stop code was sampled within ``max_codes`` codes.
        hidden: (len(codes) + stopped, D) float32: latents of the codes and of the stop code.
        padded_codes: (max_codes,) int64: the codes as upstream ranks them (``pad_codes``).
        latents: (t, D) float32: the input of diffusion: those of ``padded_codes``, trimmed (``trimmed_length``).
        log_probability: mean of the codes' and the stop code's, in nats, among those that could be sampled.
    """

    codes: list[int]
    stopped: bool
    hidden: np.ndarray
    padded_codes: np.ndarray
    latents: np.ndarray
    log_probability: float = 0.0


class ActiveCandidate:
    """A candidate that is being sampled."""

    def __init__(self, chunk: int, index: int, sampler: Sampler, max_codes: int):
        self.chunk, self.index, self.sampler, self.max_codes = chunk, index, sampler, max_codes
        self.codes: list[int] = []
        self.hidden: list[np.ndarray] = []
        self.stopped = False
        self.log_probability = 0.0          # of all codes

    @property
    def ended(self) -> bool:
        return self.stopped or len(self.codes) == self.max_codes


@dataclass
class ActivePrefix:
    """The prefix of a chunk that is being sampled.

    Attributes:
        index: the decoder's index of the prefix.
        first: hidden state (D,) and logits (V,) at its last position, from which every candidate starts.
        unfinished: number of the chunk's candidates that have not ended.
    """

    index: int
    first: tuple[np.ndarray, np.ndarray]
    unfinished: int


def decode(backend: Backend, prompts: Sequence[Prompt], config: UnifiedVoiceConfig, sampling: Sampling,
           lanes: int = 16, rewrite_tail: bool = True,
           progress: DecodingProgress = lambda codes, finished: None) -> Iterator[list[Candidate]]:
    """Yield the candidates of each chunk in order, as soon as they and those of earlier chunks have ended.

    Work is done only while the caller waits for a result. Arguments and errors: ``LaneScheduler``.
    """
    scheduler = LaneScheduler(backend, prompts, config, sampling, lanes, rewrite_tail, progress)
    for chunk in range(len(prompts)):
        yield scheduler.candidates(chunk)


class LaneScheduler:
    """Assigns candidates to the lanes of a decoder and samples them.

    Args:
        lanes: candidates sampled at a time, at most.
        rewrite_tail: compute the latents of the codes that upstream writes after the stop code, which takes another
            call per candidate; otherwise ``Candidate.latents`` ends before them.
        progress: called after every step.

    Attributes:
        active_limit: how many of the lanes may be in use; it may be changed between steps.

    Raises:
        UserError: ``max_codes`` exceeds the decoder's positions, or the network returns NaN (in any method).
    """

    def __init__(self, backend: Backend, prompts: Sequence[Prompt], config: UnifiedVoiceConfig, sampling: Sampling,
                 lanes: int, rewrite_tail: bool = True,
                 progress: DecodingProgress = lambda codes, finished: None):
        limit = config.max_mel_tokens - 1
        if not 1 <= sampling.max_codes <= limit:
            raise UserError(f"max_codes must be from 1 to {limit}, the positions of this decoder, "
                            f"got {sampling.max_codes}")
        self.config, self.sampling, self.rewrite_tail, self.progress = config, sampling, rewrite_tail, progress
        self.tables = Embeddings(**backend.embeddings())
        self.prompts = prompts
        self.waiting = deque((chunk, index) for chunk, prompt in enumerate(prompts)
                             for index in range(len(prompt.samplers)))
        self.active_limit = min(lanes, len(self.waiting))
        longest = max(Embeddings.prefix_length(prompt.tokens) for prompt in prompts)
        self.decoder = backend.decoder(self.active_limit, sampling.max_codes, min(self.active_limit, len(prompts)),
                                       longest)
        self.free_prefixes = list(reversed(range(self.decoder.prefixes)))
        self.prefixes: dict[int, ActivePrefix] = {}         # by chunk
        self.active: dict[int, ActiveCandidate] = {}        # by lane
        self.finished: list[dict[int, Candidate]] = [{} for _ in prompts]
        self.code_count = self.finished_count = 0

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
            candidate = next((active for active in self.active.values() if active.chunk == chunk), None)
            if candidate is not None:
                known = trimmed_length(candidate.codes, self.config) if latents else len(candidate.hidden)
                if known > yielded:
                    yield np.stack(candidate.hidden[yielded:known])
                    yielded = known
            self.advance()
        finished = self.finished[chunk][0]
        rest = (finished.latents if latents else finished.hidden)[yielded:]
        if len(rest):
            yield rest

    def advance(self) -> None:
        """Fill the free lanes, then take one step."""
        for lane in range(self.active_limit):
            while lane not in self.active and (candidate := self._start_next()) is not None:
                self.active[lane] = candidate
                self._finish_if_ended(lane)
        if self.active:
            self._step()
            for lane in list(self.active):
                self._finish_if_ended(lane)
        self.progress(self.code_count, self.finished_count)

    def _start_next(self) -> ActiveCandidate | None:
        """The next waiting candidate, its first code sampled; None: there is none, or no free prefix for it."""
        if not self.waiting or (self.waiting[0][0] not in self.prefixes and not self.free_prefixes):
            return None
        chunk, index = self.waiting.popleft()
        if chunk not in self.prefixes:
            free = self.free_prefixes.pop()
            first = check_finite(*self.decoder.prefill(self._prefix(chunk), free))
            self.prefixes[chunk] = ActivePrefix(free, first, len(self.prompts[chunk].samplers))
        candidate = ActiveCandidate(chunk, index, self.prompts[chunk].samplers[index], self.sampling.max_codes)
        self._sample(candidate, *self.prefixes[chunk].first)
        return candidate

    def _prefix(self, chunk: int) -> np.ndarray:
        return self.tables.prefix(self.prompts[chunk].conditioning, self.prompts[chunk].tokens, self.config)

    def _sample(self, candidate: ActiveCandidate, hidden: np.ndarray, logits: np.ndarray) -> None:
        scores = logits.copy()
        scores[self.config.start_mel_token] = -np.inf       # CLVP has no embedding for it: upstream would crash
        history = np.array([FAKE_TOKEN, self.config.start_mel_token, *candidate.codes])
        ids, probabilities = distribution(scores, history, self.sampling)
        code = candidate.sampler(ids, probabilities)
        candidate.log_probability += float(np.log(max(probabilities[ids == code].sum(), LEAST_PROBABILITY)))
        candidate.hidden.append(hidden)
        if code == self.config.stop_mel_token:
            candidate.stopped = True
        else:
            candidate.codes.append(code)
            self.code_count += 1

    def _step(self) -> None:
        """Feed every active lane its last code and sample the next; idle lanes between active ones are computed too."""
        low, high = min(self.active), max(self.active) + 1
        columns = np.zeros((high - low, 1, self.tables.code.shape[1]), dtype=np.float32)
        lengths = np.zeros(high - low, dtype=np.int64)
        prefix_indices = np.full(high - low, self._prefix_index(self.active[low]))
        for lane, candidate in self.active.items():
            position = len(candidate.codes)                 # code i is at mel position i + 1, position i of its lane
            columns[lane - low, 0] = self.tables.codes(candidate.codes[-1], position)
            lengths[lane - low], prefix_indices[lane - low] = position - 1, self._prefix_index(candidate)
        hidden, logits = check_finite(*self.decoder.step(columns, lengths, low, prefix_indices))
        for lane, candidate in self.active.items():
            self._sample(candidate, hidden[lane - low, -1], logits[lane - low])

    def _prefix_index(self, candidate: ActiveCandidate) -> int:
        return self.prefixes[candidate.chunk].index

    def _finish_if_ended(self, lane: int) -> None:
        """Store a candidate that has ended and free its lane; free the prefix after the chunk's last candidate."""
        candidate = self.active[lane]
        if not candidate.ended:
            return
        self.finished[candidate.chunk][candidate.index] = self._finished_candidate(lane, candidate)
        del self.active[lane]
        self.finished_count += 1
        prefix = self.prefixes[candidate.chunk]
        prefix.unfinished -= 1
        if not prefix.unfinished:
            self.free_prefixes.append(prefix.index)
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
            columns = self.tables.codes(codes[rewritten], rewritten + 1)
            tail, _ = self.decoder.step(columns[None], np.array([known]), lane,
                                        np.array([self._prefix_index(candidate)]))
            latents = np.concatenate((hidden, tail[0]))
        return Candidate(candidate.codes, candidate.stopped, hidden, codes, latents,
                         candidate.log_probability / len(hidden))


def check_finite(hidden: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the decoder's outputs. Raises UserError when the logits are not finite."""
    if not np.isfinite(logits).all():
        raise UserError("the decoder returned NaN or infinite logits: the weights are damaged, or the precision is too "
                        "low for them (use precision=fp32)")
    return hidden, logits
