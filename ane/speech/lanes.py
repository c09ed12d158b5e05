"""Decode many sequences in one batch, and refill each lane as soon as its sequence ends.

A decoder has a fixed number of lanes (rows of its batch). Sequences from one request, or from several, share them. When
a sequence ends, its lane takes the next waiting sequence, while the other lanes carry on. This is continuous batching
(Orca, Yu et al. 2022).

Sequences that continue the same prompt also share its prefix. The prefix is computed once, when the first of them
starts, and all their lanes attend to it.

Any thread may submit a prompt and wait for its rows. One waiting thread takes the steps for all threads, and hands this
work to another one when its wait is over. The lock guards state only: no thread holds it while a network runs.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ane.backends.decoding import Decoder
from ane.speech.turns import Turns, Urgency
from ane.system.errors import UserError

LOGGER = logging.getLogger("ane.speech")

# (columns (n, D), the lane's position at which they begin) → hidden states (n, D)
Extend = Callable[[np.ndarray, int], np.ndarray]


class SampledSequence(Protocol):
    """A sequence that is being sampled on a lane (a row of the decoder's batch). Models implement this protocol."""

    def take(self, hidden: np.ndarray, logits: np.ndarray, scores: np.ndarray | None) -> np.ndarray | None:
        """Sample from the decoder's output for the last column, and return the next column.

        Args:
            hidden: Hidden state, (D,).
            logits: Logits, (V,).
            scores: Attention scores of the column, (heads, positions). ``None`` if the decoder records none.

        Returns:
            The next column, (D,), or ``None`` if the sequence has ended.

        Raises:
            UserError: The prompt cannot go on. All its sequences end.
        """

    def certain(self, start: int) -> Sequence[np.ndarray]:
        """Return the rows (D,) from index ``start`` that no later step can change."""

    def finish(self, extend: Extend) -> Any:
        """Return the result of a sequence that has ended.

        The sequence's positions are still on the lane, so ``extend`` can decode columns again from any position.
        """


class LanePrompt(Protocol):
    """A prompt, and the number of sequences (``count``) that continue it. Models implement this protocol."""

    count: int

    def prefix(self) -> np.ndarray:
        """Return the columns of the prompt, (P, D) float32. Raises UserError if the prompt cannot be decoded."""

    def begin(self, index: int) -> SampledSequence:
        """Create the sequence with this index, which is about to start."""


class Decoding:
    """A prompt that was submitted to the lanes. The thread that submitted it reads the results here.

    Attributes:
        prompt: The prompt.
        priority: Function that returns the sort key. A free lane goes to the waiting prompt with the smallest key.
        finished: Number of sequences that have ended.
        cancelled: Whether to drop the sequences that have not ended.
        waiting: Indices of the sequences that have no lane yet.
        sampled: The sequences that have a lane, by index.
        results: Results of the sequences that have ended, by index.
        prefix_index: Index of the decoder's prefix. ``None`` before the first sequence starts, and when the prompt is
            done.
        first: Hidden state, logits and attention scores of the prefix's last position. Every sequence starts from them.
    """

    def __init__(self, lanes: "Lanes", prompt: Any, priority: Urgency, check: Callable[[], None]):
        self.prompt, self.priority, self.finished, self.cancelled = prompt, priority, 0, False
        self._lanes, self._check_request, self._error = lanes, check, None
        self.waiting, self.sampled, self.results = deque(range(prompt.count)), dict[int, Any](), dict[int, Any]()
        self.prefix_index: int | None = None
        self.first: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None = None

    @property
    def done(self) -> bool:
        """Whether all sequences have ended."""
        return self.finished == self.prompt.count

    def rows(self, index: int = 0, report: Callable[[], None] = lambda: None) -> Iterator[np.ndarray]:
        """Yield the rows (n, D) of a sequence as they become certain, until it ends. Its result has all rows.

        Args:
            index: Index of the sequence.
            report: Function to call after every step that this thread takes.

        Raises:
            UserError: The prompt cannot be decoded, or was cancelled.
            RuntimeError: The decoder has failed.
        """
        known, sent = list[np.ndarray](), 0

        def more() -> bool:
            nonlocal known
            ended = index in self.results
            known = [] if ended or index not in self.sampled else list(self.sampled[index].certain(sent))
            return bool(ended or known or self._check())

        while True:
            self._lanes.until(more, self, report)
            if not known:
                return
            sent += len(known)
            yield np.stack(known)

    def all(self, report: Callable[[], None] = lambda: None) -> list[Any]:
        """Return the results of all sequences, in order, and forget them. Raises the same errors as ``rows``."""
        self._lanes.until(lambda: self.done or self._check(), self, report)
        return [self.results.pop(index) for index in range(self.prompt.count)]

    def cancel(self) -> None:
        """Give up the sequences that have not ended. Any thread may call this. A running step frees them at its end."""
        self._lanes.cancel(self)

    def fail(self, error: UserError) -> None:
        """End all sequences with an error."""
        self._error = error  # type: ignore[assignment]

    def _check(self) -> bool:
        """Raise the error that ended the prompt. Return False if there was none."""
        self._check_request()
        if self._error is not None:
            raise self._error
        if self.cancelled:
            raise UserError("this speech was cancelled")
        if isinstance(ended := self._lanes.ended, UserError):
            raise ended
        if ended is not None:
            raise RuntimeError("a decoder step that this speech shared with other speech failed") from ended
        return False


@dataclass(eq=False)
class BusyLane:
    """A sequence on its lane.

    Attributes:
        decoding: The prompt that the sequence continues.
        index: Index of the sequence among the prompt's sequences.
        sequence: The sequence.
        column: The next column to decode.
        length: Number of positions that the lane has after the prefix.
    """

    decoding: Decoding
    index: int
    sequence: SampledSequence
    column: np.ndarray
    length: int = 0


@dataclass(eq=False)
class Waiter:
    """A thread that waits until ``ready`` returns True, or raises the error that ended its prompt."""

    ready: Callable[[], bool]
    decoding: Decoding
    woken: threading.Condition

    @property
    def settled(self) -> bool:
        try:
            return self.ready()
        except Exception:
            return True


class Lanes:
    """The lanes of one decoder, and the prompts on them.

    Call ``submit`` for each prompt, and read the results from the ``Decoding`` that it returns. Any thread may do so.

    Args:
        decoder: The decoder whose lanes these are.
        recorded_heads: Attention heads whose scores each sequence receives, as (layer, head) pairs. They are ignored if
            the decoder cannot record scores.
        turns: Turns of the threads that use the lanes. A thread gives up its turn while it waits for a step. ``None``
            means that threads need no turns.

    Attributes:
        ended: The error that ended all prompts, if there was one.
    """

    def __init__(self, decoder: Decoder, recorded_heads: Sequence[tuple[int, int]] = (), turns: Turns | None = None):
        self.decoder, self.capacity, self.turns = decoder, decoder.capacity, turns
        self.recorder = decoder if recorded_heads and decoder.record(recorded_heads) else None
        self.free_prefixes = list(reversed(range(decoder.prefixes)))
        self.prompts: list[Decoding] = []
        self.active: dict[int, BusyLane] = {}
        self.ended: BaseException | None = None
        self._lock = threading.Lock()
        self._waiting: list[Waiter] = []
        self._leader: Waiter | None = None  # the thread that takes the steps
        self._stepping = False

    def submit(
        self, prompt: LanePrompt, priority: Urgency = lambda: (0, 0.0), check: Callable[[], None] = lambda: None
    ) -> Decoding:
        """Add a prompt, whose sequences then wait for lanes. Returns immediately.

        Args:
            prompt: The prompt.
            priority: Function that returns the sort key (see ``Decoding``).
            check: Function that raises an error when nobody wants the sequences any more. Any thread may call it,
                between steps.
        """
        decoding = Decoding(self, prompt, priority, check)
        with self._lock:
            self.prompts.append(decoding)
        return decoding

    def cancel(self, decoding: Decoding) -> None:
        """Give up a prompt (see ``Decoding.cancel``)."""
        with self._lock:
            decoding.cancelled = True
            if not self._stepping:
                self._remove(decoding)
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """End all prompts and free the decoder, even if other objects still refer to these lanes.

        Args:
            error: The error that every prompt raises. ``None`` means that the lanes were closed.
        """
        with self._lock:
            self._end(error or UserError("the lanes are closed"))
            if not self._stepping:
                self.decoder = self.recorder = None

    def until(self, ready: Callable[[], bool], decoding: Decoding, report: Callable[[], None]) -> None:
        """Wait until ``ready`` is true, and take the steps unless another thread does. Raises its error."""
        waiter = Waiter(ready, decoding, threading.Condition(self._lock))
        with self._lock:
            self._waiting.append(waiter)
            try:
                while not ready():
                    if self._leader not in (None, waiter):
                        self._rest(waiter)
                        continue
                    self._leader = waiter
                    self._step()
                    self._wake()
                    with self._unlocked():
                        report()
                        if self.turns:
                            self.turns.offer(self._urgency, to_class=True)  # its prompt may share the next step
            finally:
                self._waiting.remove(waiter)
                if self._leader in (None, waiter):  # ``None`` if this thread was woken to lead, and need not lead
                    self._leader = None
                    self._wake()

    def _rest(self, waiter: Waiter) -> None:
        """Wait until the waiter is settled or must lead."""
        turns = self.turns.rest(waiter.decoding.priority) if self.turns else nullcontext()
        with self._unlocked(), turns, self._lock:
            while self._leader is not None and not waiter.settled:
                waiter.woken.wait()

    def _wake(self) -> None:
        """Wake the waiters that are settled, and the most urgent one to lead if no thread leads."""
        for waiter in self._waiting:
            if waiter is not self._leader and waiter.settled:
                waiter.woken.notify()
        if self._leader is None and self._waiting:
            min(self._waiting, key=lambda waiter: waiter.decoding.priority()).woken.notify()

    def _urgency(self) -> tuple[int, float]:
        """Return the urgency of the steps, which is the highest urgency among the threads that wait for them."""
        return min(waiter.decoding.priority() for waiter in list(self._waiting))

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    # Only the leading thread calls the methods below. It holds the lock, except in ``_call``

    def _call(self, network: Callable[..., Any], *arrays: Any) -> Any:
        call = partial(network, *arrays)
        with self._unlocked():
            return self.turns.wide(call) if self.turns else call()

    def _step(self) -> None:
        """Fill the free lanes, and decode one column on each lane.

        An error of a prompt ends only the sequences of that prompt. Any other error ends all prompts.
        """
        self._stepping = True
        try:
            for lane in range(self.decoder.lanes):
                while lane not in self.active and (decoding := self._next_prompt()) is not None:
                    with self._ending_its_own(decoding):
                        self._start(lane, decoding)
            if self.active:
                self._decode()
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self._stepping = False
            for decoding in [decoding for decoding in self.prompts if decoding.cancelled]:
                self._remove(decoding)
            if self.ended is not None:
                self.decoder = self.recorder = None

    def _next_prompt(self) -> Decoding | None:
        if self.ended is not None:
            return None
        ready = [
            prompt
            for prompt in self.prompts
            if prompt.waiting and not prompt.cancelled and (prompt.first is not None or self.free_prefixes)
        ]
        return min(ready, key=lambda prompt: prompt.priority(), default=None)

    @contextmanager
    def _ending_its_own(self, decoding: Decoding) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            decoding.fail(error)
            self._remove(decoding)

    def _start(self, lane: int, decoding: Decoding) -> None:
        """Start the next sequence of a prompt on a lane. It may end immediately."""
        if decoding.first is None:
            decoding.prefix_index = self.free_prefixes.pop()
            hidden, logits = self._call(self.decoder.prefill, decoding.prompt.prefix(), decoding.prefix_index)
            decoding.first = hidden, logits, self.recorder and self.recorder.recorded[0]  # type: ignore[assignment]
        index = decoding.waiting.popleft()
        sequence = decoding.sampled[index] = decoding.prompt.begin(index)
        column = sequence.take(*decoding.first)
        self.active[lane] = BusyLane(decoding, index, sequence, column)
        if column is None:
            self._retire(lane)

    def _decode(self) -> None:
        """Decode one column on every active lane. Idle lanes between active ones are computed too."""
        low, high = min(self.active), max(self.active) + 1
        columns = np.zeros((high - low, 1, len(self.active[low].column)), np.float32)
        lengths = np.zeros(high - low, np.int64)
        prefixes = np.full(high - low, self.active[low].decoding.prefix_index)
        for lane, busy in self.active.items():
            columns[lane - low, 0], lengths[lane - low] = busy.column, busy.length
            prefixes[lane - low] = busy.decoding.prefix_index
        hidden, logits = self._call(self.decoder.step, columns, lengths, low, prefixes)
        scores = self.recorder and self.recorder.recorded
        for lane, busy in list(self.active.items()):
            if lane not in self.active or busy.decoding.cancelled:
                continue
            row = lane - low
            busy.length += 1
            with self._ending_its_own(busy.decoding):
                busy.column = busy.sequence.take(hidden[row, -1], logits[row], None if scores is None else scores[row])
        for lane in [lane for lane, busy in self.active.items() if busy.column is None]:
            if lane in self.active:
                with self._ending_its_own(self.active[lane].decoding):
                    self._retire(lane)

    def _retire(self, lane: int) -> None:
        """Free the lane of a sequence that has ended, and after the prompt's last sequence its prefix too."""
        busy = self.active[lane]
        decoding = busy.decoding
        result = busy.sequence.finish(partial(self._extend, lane, decoding.prefix_index))
        del self.active[lane], decoding.sampled[busy.index]
        decoding.results[busy.index] = result
        decoding.finished += 1
        if decoding.done:
            self._remove(decoding)

    def _extend(self, lane: int, prefix: int, columns: np.ndarray, length: int) -> np.ndarray:
        hidden, _ = self._call(self.decoder.step, columns[None], np.array([length]), lane, np.array([prefix]))
        return hidden[0]

    def _remove(self, decoding: Decoding) -> None:
        """Remove a prompt, and free its lanes and its prefix."""
        self.active = {lane: busy for lane, busy in self.active.items() if busy.decoding is not decoding}
        if decoding.prefix_index is not None:
            self.free_prefixes.append(decoding.prefix_index)
        decoding.prefix_index = decoding.first = None
        if decoding in self.prompts:
            self.prompts.remove(decoding)

    def _end(self, error: BaseException) -> None:
        """End all prompts, because the contents of the caches are unknown."""
        self.ended = self.ended or error
        if isinstance(error, Exception) and not isinstance(error, UserError):
            LOGGER.error("a step of the decoder failed", exc_info=error)
        self._wake()
