"""The lanes of one decoder, which the sequences of one request share, or of several (continuous batching, Yu et al.
2022, Orca).

When a sequence ends, its lane takes the next waiting one, of the same prompt or of another, while the others continue.
The prefix of a prompt is computed once, when its first sequence starts; the lanes of all its sequences attend to it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from ane.backends.decoding import Decoder
from ane.system.errors import UserError

# columns (n, D) from an own position of a lane on → hidden (n, D)
Extend = Callable[[np.ndarray, int], np.ndarray]


class SampledSequence(Protocol):
    """What is sampled on a lane."""

    def take(self, hidden: np.ndarray, logits: np.ndarray, scores: np.ndarray | None) -> np.ndarray | None:
        """Sample from the decoder's output (D,), (V,) for the last column.

        Returns the next column (D,); None: it has ended.
        ``scores``: what the decoder recorded of the column, (heads, positions), if it did. Raises UserError to end all
        sequences of the prompt.
        """

    def finish(self, extend: Extend) -> Any:
        """The result of a sequence that has ended; its positions are still on its lane."""


class LanePrompt(Protocol):
    """What ``count`` sequences continue."""

    count: int

    def prefix(self) -> np.ndarray:
        """Columns (P, D) float32. Raises UserError for a prompt that cannot be decoded."""

    def begin(self, index: int) -> SampledSequence:
        """A sequence that is about to start."""


@dataclass(eq=False)
class QueuedPrompt:
    """A prompt on the lanes."""

    prompt: LanePrompt
    priority: Callable[[], Any]         # key for sorting; of the prompts that wait, the least gets a free lane
    waiting: deque[int]
    sampled: dict[int, SampledSequence] = field(default_factory=dict)       # its sequences that have a lane
    results: dict[int, Any] = field(default_factory=dict)                   # of those that have ended, by index
    finished: int = 0                   # their number
    error: UserError | None = None      # why all of them ended
    cancelled: bool = False             # set it to give up the sequences that have not ended
    prefix_index: int | None = None
    first: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None = None      # what every sequence starts from

    @property
    def done(self) -> bool:
        """Whether all sequences have ended. Raises UserError when they failed."""
        if self.error is not None:
            raise self.error
        return self.finished == self.prompt.count


@dataclass(eq=False)
class BusyLane:
    """A sequence on its lane: the next column to decode, and the lane's own positions before it."""

    queued: QueuedPrompt
    index: int
    sequence: SampledSequence
    column: np.ndarray
    length: int = 0


class Lanes:
    """The lanes of a decoder. Other threads than the one of ``step`` may use ``add`` and ``QueuedPrompt.cancelled``.

    Args:
        recorded_heads: (layer, head) each, of the scores that sequences get, if the decoder can record them.
    """

    def __init__(self, decoder: Decoder, recorded_heads: Sequence[tuple[int, int]] = ()):
        self.decoder, self.capacity = decoder, decoder.capacity
        self.recorder = decoder if recorded_heads and decoder.record(recorded_heads) else None
        self.free_prefixes = list(reversed(range(decoder.prefixes)))
        self.prompts: list[QueuedPrompt] = []
        self.active: dict[int, BusyLane] = {}

    def add(self, prompt: LanePrompt, priority: Callable[[], Any] = lambda: 0) -> QueuedPrompt:
        """Let the sequences of a prompt wait for lanes."""
        queued = QueuedPrompt(prompt, priority, deque(range(prompt.count)))
        self.prompts.append(queued)
        return queued

    def close(self) -> None:
        """Free the decoder, although others may still refer to its lanes."""
        self.decoder = self.recorder = None     # type: ignore[assignment]

    def step(self) -> None:
        """Fill the free lanes, and decode one column of each. An error of a prompt ends its own sequences only."""
        for queued in [queued for queued in self.prompts if queued.cancelled]:
            self._remove(queued)
        for lane in range(self.decoder.lanes):
            while lane not in self.active and (queued := self._next_prompt()) is not None:
                self._start(lane, queued)
        if self.active:
            self._decode()

    def _next_prompt(self) -> QueuedPrompt | None:
        ready = [each for each in self.prompts if each.waiting and (each.first is not None or self.free_prefixes)]
        return min(ready, key=lambda each: each.priority(), default=None)

    def _start(self, lane: int, queued: QueuedPrompt) -> None:
        """Start the next sequence of a prompt, which may end at once."""
        try:
            if queued.first is None:
                prefix = queued.prompt.prefix()
                hidden, logits = self.decoder.prefill(prefix, self.free_prefixes[-1])
                queued.prefix_index = self.free_prefixes.pop()
                queued.first = hidden, logits, self.recorder and self.recorder.recorded[0]
            index = queued.waiting.popleft()
            sequence = queued.sampled[index] = queued.prompt.begin(index)
            column = sequence.take(*queued.first)
        except UserError as error:
            self._fail(queued, error)
            return
        self.active[lane] = BusyLane(queued, index, sequence, column)
        if column is None:
            self._retire(lane)

    def _decode(self) -> None:
        """Decode the column of every active lane; idle lanes between them are computed too."""
        low, high = min(self.active), max(self.active) + 1
        columns = np.zeros((high - low, 1, len(self.active[low].column)), np.float32)
        lengths = np.zeros(high - low, np.int64)
        prefixes = np.full(high - low, self.active[low].queued.prefix_index)
        for lane, busy in self.active.items():
            columns[lane - low, 0], lengths[lane - low] = busy.column, busy.length
            prefixes[lane - low] = busy.queued.prefix_index
        hidden, logits = self.decoder.step(columns, lengths, low, prefixes)
        scores = self.recorder and self.recorder.recorded
        ended = []
        for lane, busy in list(self.active.items()):
            row = lane - low
            busy.length += 1
            try:
                busy.column = busy.sequence.take(hidden[row, -1], logits[row], None if scores is None else scores[row])
            except UserError as error:
                self._fail(busy.queued, error)
            if busy.column is None:
                ended.append(lane)
        for lane in ended:
            if lane in self.active:
                self._retire(lane)

    def _retire(self, lane: int) -> None:
        """Free the lane of a sequence that has ended, and the prefix after the last one."""
        busy = self.active[lane]
        queued = busy.queued
        result = busy.sequence.finish(partial(self._extend, lane, queued.prefix_index))
        del self.active[lane], queued.sampled[busy.index]
        queued.results[busy.index] = result
        queued.finished += 1
        if queued.finished == queued.prompt.count:
            self._remove(queued)

    def _extend(self, lane: int, prefix: int, columns: np.ndarray, length: int) -> np.ndarray:
        hidden, _ = self.decoder.step(columns[None], np.array([length]), lane, np.array([prefix]))
        return hidden[0]

    def _fail(self, queued: QueuedPrompt, error: UserError) -> None:
        queued.error = error
        self._remove(queued)

    def _remove(self, queued: QueuedPrompt) -> None:
        """Free all that a prompt holds."""
        self.active = {lane: busy for lane, busy in self.active.items() if busy.queued is not queued}
        if queued.prefix_index is not None:
            self.free_prefixes.append(queued.prefix_index)
        queued.prefix_index = queued.first = None
        self.prompts.remove(queued)
