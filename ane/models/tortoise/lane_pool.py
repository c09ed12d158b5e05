"""The lanes of one decoder, which the candidates of one request share, or of several that come and go."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import Backend
from ane.models.tortoise.embeddings import Embeddings
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.sampling import Sampler
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.models.tortoise.decoding import LaneScheduler

FAKE_TOKEN = 1      # upstream's placeholder id for every position of the prefix; the repetition penalty applies to it


class ActiveCandidate:
    """A candidate that is being sampled."""

    def __init__(self, scheduler: "LaneScheduler", chunk: int, index: int, sampler: Sampler):
        self.scheduler, self.chunk, self.index, self.sampler = scheduler, chunk, index, sampler
        self.max_codes = scheduler.sampling.max_codes
        self.codes: list[int] = []
        self._history = np.full(self.max_codes + 2, FAKE_TOKEN)
        self._history[1] = scheduler.config.start_mel_token
        self.hidden: list[np.ndarray] = []
        self.prefix_scores: list[np.ndarray] = []       # (heads, positions) for each row of ``hidden``, if recorded
        self.stopped = False
        self.log_probability = 0.0          # of all codes

    @property
    def ended(self) -> bool:
        return self.stopped or len(self.codes) == self.max_codes

    @property
    def history(self) -> np.ndarray:
        """The ids that the repetition penalty applies to: those of the prefix, and all codes."""
        return self._history[:len(self.codes) + 2]

    def add(self, code: int) -> None:
        self._history[len(self.codes) + 2] = code
        self.codes.append(code)

    @property
    def prefix_index(self) -> int:
        """The decoder's index of the prefix that it continues."""
        return self.scheduler.prefixes[self.chunk].index


class LanePool:
    """The lanes of one decoder, for the candidates of one request, or of several that come and go.

    Attributes:
        lanes: candidates sampled at a time, at most. capacity: codes of a candidate, at most.
        schedulers: of the requests that share the lanes. Of those with a waiting candidate, that with
            the least key gets a free lane.
        active: the candidates that are being sampled, by lane.
    """

    def __init__(self, backend: Backend, config: UnifiedVoiceConfig, lanes: int, capacity: int, prefixes: int,
                 longest: int | None, recorded_heads: Sequence[tuple[int, int]] = ()):
        """``capacity``, ``prefixes``, ``longest``: of ``Backend.decoder``; None: any prefix that the network takes.

        ``recorded_heads``: (layer, head) each, of ``Candidate.prefix_scores``, if the decoder can record them.
        """
        self.config, self.lanes, self.capacity = config, lanes, capacity
        self.tables = Embeddings(**backend.embeddings())
        longest = len(self.tables.text_position) + Embeddings.prefix_length(()) if longest is None else longest
        self.decoder = backend.decoder(lanes, capacity, prefixes, longest)
        self.recorder = self.decoder if recorded_heads and self.decoder.record(recorded_heads) else None
        self.free_prefixes = list(reversed(range(self.decoder.prefixes)))
        self.schedulers: list[LaneScheduler] = []
        self.active: dict[int, ActiveCandidate] = {}

    def wait_for_step(self) -> None:
        """Called by a request that waits for codes; one step at least has been taken when it returns."""
        self.advance()

    def advance(self) -> None:
        """Fill the free lanes, then take one step."""
        for lane in range(self.lanes):
            while lane not in self.active and (candidate := self._start_next()) is not None:
                self.active[lane] = candidate
                self._finish_if_ended(lane)
        if self.active:
            self._step()
            for lane in list(self.active):
                self._finish_if_ended(lane)
        for scheduler in self.schedulers:
            scheduler.report()

    def priority(self) -> Callable[[], Any]:
        """For a request that joins: returns its key for sorting, the least being the most urgent."""
        return lambda: 0

    def row_ends(self, done: int, known: int) -> Iterable[int]:
        """Where a stream of rows is divided, of which ``done`` have been yielded and ``known`` can be."""
        return [known] if known > done else []

    def remove(self, scheduler: "LaneScheduler") -> None:
        """Free all that a request holds."""
        self.active = {lane: active for lane, active in self.active.items() if active.scheduler is not scheduler}
        self.free_prefixes += [prefix.index for prefix in scheduler.prefixes.values()]
        scheduler.prefixes.clear()
        self.schedulers = [other for other in self.schedulers if other is not scheduler]

    def _start_next(self) -> ActiveCandidate | None:
        """The next waiting candidate, its first code sampled; None: there is none, or no free prefix for it."""
        while ready := [scheduler for scheduler in self.schedulers if scheduler.can_start]:
            scheduler = min(ready, key=lambda scheduler: scheduler.priority())
            try:
                return scheduler.start_next()
            except UserError as error:
                scheduler.fail(error)
        return None

    def _step(self) -> None:
        """Feed every active lane its last code and sample the next; idle lanes between active ones are computed too."""
        low, high = min(self.active), max(self.active) + 1
        columns = np.zeros((high - low, 1, self.tables.code.shape[1]), dtype=np.float32)
        lengths = np.zeros(high - low, dtype=np.int64)
        prefix_indices = np.full(high - low, self.active[low].prefix_index)
        for lane, candidate in self.active.items():
            position = len(candidate.codes)                 # code i is at mel position i + 1, position i of its lane
            columns[lane - low, 0] = self.tables.codes(candidate.codes[-1], position)
            lengths[lane - low], prefix_indices[lane - low] = position - 1, candidate.prefix_index
        hidden, logits = self.decoder.step(columns, lengths, low, prefix_indices)
        scores = self.recorder and self.recorder.recorded
        for lane, candidate in list(self.active.items()):
            row = lane - low
            try:
                candidate.scheduler.sample(candidate, *check_finite(hidden[row, -1], logits[row]))
                if scores is not None:
                    candidate.prefix_scores.append(scores[row])
            except UserError as error:
                candidate.scheduler.fail(error)

    def _finish_if_ended(self, lane: int) -> None:
        """Free the lane of a candidate that has ended."""
        candidate = self.active[lane]
        if candidate.ended:
            del self.active[lane]
            candidate.scheduler.finish(lane, candidate)


def check_finite(hidden: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the decoder's outputs. Raises UserError when the logits are not finite."""
    if not np.isfinite(logits).all():
        raise UserError("the decoder returned NaN or infinite logits: the weights are damaged, or the precision is too "
                        "low for them (use precision=fp32)")
    return hidden, logits
