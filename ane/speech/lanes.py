"""The lanes of one decoder, which the sequences of one request share, or of several (continuous batching, Yu et al.
2022, Orca).

When a sequence ends, its lane takes the next waiting one, of the same prompt or of another, while the others continue.
The prefix of a prompt is computed once, when its first sequence starts; the lanes of all its sequences attend to it.

Any thread may submit a prompt and wait for its rows. One of the threads that wait takes the steps for all of them, and
passes this work on when it has what it waits for. The lock guards state only: no thread holds it while a network runs.
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

    def certain(self, start: int) -> Sequence[np.ndarray]:
        """The rows (D,) from ``start`` on that no later step changes."""

    def finish(self, extend: Extend) -> Any:
        """The result of a sequence that has ended; its positions are still on its lane."""


class LanePrompt(Protocol):
    """What ``count`` sequences continue."""

    count: int

    def prefix(self) -> np.ndarray:
        """Columns (P, D) float32. Raises UserError for a prompt that cannot be decoded."""

    def begin(self, index: int) -> SampledSequence:
        """A sequence that is about to start."""


class Decoding:
    """A prompt on the lanes, for the thread that submitted it.

    Attributes:
        priority: Key for sorting; of the prompts that wait, the least gets a free lane.
        finished: Number of sequences that have ended.
    """

    def __init__(self, lanes: "Lanes", prompt: Any, priority: Urgency, check: Callable[[], None]):
        self.prompt, self.priority, self.finished, self.cancelled = prompt, priority, 0, False
        self._lanes, self._check_request, self._error = lanes, check, None
        # for ``Lanes``: what waits for a lane, what is on one, what has ended, and what every sequence starts from
        self.waiting, self.sampled, self.results = deque(range(prompt.count)), dict[int, Any](), dict[int, Any]()
        self.prefix_index: int | None = None
        self.first: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None = None

    @property
    def done(self) -> bool:
        """Whether all sequences have ended."""
        return self.finished == self.prompt.count

    def rows(self, index: int = 0, report: Callable[[], None] = lambda: None) -> Iterator[np.ndarray]:
        """Yield the rows (n, D) of a sequence as they become certain, until it ends; its result has all of them.

        Args:
            report: Called after every step that this thread takes.

        Raises:
            UserError: The prompt cannot be decoded, it was cancelled, or the decoder has failed.
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
        """Return the results of all sequences, in order, which are not kept. Arguments and errors: ``rows``."""
        self._lanes.until(lambda: self.done or self._check(), self, report)
        return [self.results.pop(index) for index in range(self.prompt.count)]

    def cancel(self) -> None:
        """Give up the sequences that have not ended. Any thread may call it; a running step frees them at its end."""
        self._lanes.cancel(self)

    def fail(self, error: UserError) -> None:
        """End all sequences with this error."""
        self._error = error  # type: ignore[assignment]

    def _check(self) -> bool:
        """Raise what ended the prompt; False: nothing did."""
        self._check_request()
        if self._error is not None:
            raise self._error
        if self.cancelled:
            raise UserError("this speech was cancelled")
        if isinstance(ended := self._lanes.ended, UserError):
            raise ended
        if ended is not None:
            raise RuntimeError("a step of the decoder failed, with other speech in it") from ended
        return False


@dataclass(eq=False)
class BusyLane:
    """A sequence on its lane: the next column to decode, and the lane's own positions before it."""

    decoding: Decoding
    index: int
    sequence: SampledSequence
    column: np.ndarray
    length: int = 0


@dataclass(eq=False)
class Waiter:
    """A thread that waits until ``ready``, which raises what ended its prompt."""

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
    """The lanes of a decoder.

    Args:
        recorded_heads: (layer, head) each, of the scores that sequences get, if the decoder can record them.
        turns: The turns of the threads that use the lanes, if they need any: who waits for a step gives its turn up.

    Attributes:
        ended: What ended all prompts, if something did.
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
        self._leader: Waiter | None = None  # who takes the steps
        self._stepping = False

    def submit(
        self, prompt: LanePrompt, priority: Urgency = lambda: (0, 0.0), check: Callable[[], None] = lambda: None
    ) -> Decoding:
        """Let the sequences of a prompt wait for lanes, at once.

        Args:
            priority: See ``Decoding``.
            check: Raises an error when nobody wants the sequences any more. It is called between steps, by any thread.
        """
        decoding = Decoding(self, prompt, priority, check)
        with self._lock:
            self.prompts.append(decoding)
        return decoding

    def cancel(self, decoding: Decoding) -> None:
        """Give a prompt up (``Decoding.cancel``)."""
        with self._lock:
            decoding.cancelled = True
            if not self._stepping:
                self._remove(decoding)
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """End all prompts and free the decoder, although others may still refer to its lanes."""
        with self._lock:
            self._end(error or UserError("the lanes are closed"))
            if not self._stepping:
                self.decoder = self.recorder = None

    def until(self, ready: Callable[[], bool], decoding: Decoding, report: Callable[[], None]) -> None:
        """Return when ``ready``; take the steps meanwhile, unless another thread does. Raises what ``ready`` raises."""
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
                if self._leader in (None, waiter):  # None: it was woken to lead, and need not
                    self._leader = None
                    self._wake()

    def _rest(self, waiter: Waiter) -> None:
        """Wait until this waiter is settled or must lead."""
        turns = self.turns.rest(waiter.decoding.priority) if self.turns else nullcontext()
        with self._unlocked(), turns, self._lock:
            while self._leader is not None and not waiter.settled:
                waiter.woken.wait()

    def _wake(self) -> None:
        """Wake the waiters that are settled; and who is to lead, if nobody does."""
        for waiter in self._waiting:
            if waiter is not self._leader and waiter.settled:
                waiter.woken.notify()
        if self._leader is None and self._waiting:
            min(self._waiting, key=lambda waiter: waiter.decoding.priority()).woken.notify()

    def _urgency(self) -> tuple[int, float]:
        """That of the steps: of whoever is most urgent among those who wait for them."""
        return min(waiter.decoding.priority() for waiter in list(self._waiting))

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    # The rest is for the thread that leads, which holds the lock but in ``_call``

    def _call(self, network: Callable[..., Any], *arrays: Any) -> Any:
        call = partial(network, *arrays)
        with self._unlocked():
            return self.turns.wide(call) if self.turns else call()

    def _step(self) -> None:
        """Fill the free lanes, and decode one column of each. An error of a prompt ends its own sequences only; any
        other ends all.
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
            each
            for each in self.prompts
            if each.waiting and not each.cancelled and (each.first is not None or self.free_prefixes)
        ]
        return min(ready, key=lambda each: each.priority(), default=None)

    @contextmanager
    def _ending_its_own(self, decoding: Decoding) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            decoding.fail(error)
            self._remove(decoding)

    def _start(self, lane: int, decoding: Decoding) -> None:
        """Start the next sequence of a prompt, which may end at once."""
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
        """Decode the column of every active lane; idle lanes between them are computed too."""
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
        """Free the lane of a sequence that has ended, and the prefix after the last one."""
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
        """Free all that a prompt holds."""
        self.active = {lane: busy for lane, busy in self.active.items() if busy.decoding is not decoding}
        if decoding.prefix_index is not None:
            self.free_prefixes.append(decoding.prefix_index)
        decoding.prefix_index = decoding.first = None
        if decoding in self.prompts:
            self.prompts.remove(decoding)

    def _end(self, error: BaseException) -> None:
        """End all prompts: what the caches hold is unknown."""
        self.ended = self.ended or error
        if isinstance(error, Exception) and not isinstance(error, UserError):
            LOGGER.error("a step of the decoder failed", exc_info=error)
        self._wake()
