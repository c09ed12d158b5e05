"""Decode many sequences in one batch, and refill each lane as soon as its sequence ends.

A decoder has a fixed number of lanes, which are the rows of its batch. Sequences of one or several requests share the
lanes. When a sequence ends, its lane takes the next waiting sequence, while the other lanes continue. This method is
called continuous batching (Orca, Yu et al. 2022).

A request submits a prompt, and one or several sequences continue the prompt. The decoder computes the prefix (the keys
and values of the prompt) once, when the first of these sequences starts. The lanes of all these sequences attend to the
prefix.

Any thread may submit a prompt and wait for its rows, which are the vectors that a sequence produces. One of the waiting
threads runs the decoder steps for all threads (``ane.speech.shared_steps``).
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ane.backends.decoding import Decoder
from ane.speech.shared_steps import SharedSteps
from ane.speech.turns import Turns, Urgency
from ane.system.errors import UserError

LOGGER = logging.getLogger("ane.speech")

# decodes columns, (n columns, D), at a position of the lane and the next positions; returns hidden states, (n columns,
# D)
Extend = Callable[[np.ndarray, int], np.ndarray]


class SampledSequence(Protocol):
    """A sequence that a lane is sampling. A model with a decoder implements this protocol.

    A column is the decoder's input at one position, (D,).
    """

    def take(self, hidden: np.ndarray, logits: np.ndarray, scores: np.ndarray | None) -> np.ndarray | None:
        """Sample from the decoder's output for the last column, and return the next column.

        Args:
            hidden: Hidden state of the last column, (D,).
            logits: Logits of the last column, (V symbols,).
            scores: Attention scores of the last column, (heads, positions). ``None`` means that the decoder records no
                scores.

        Returns:
            The next column, (D,), or ``None`` if the sequence has ended.

        Raises:
            UserError: The prompt cannot be continued. The lanes then end all its sequences.
        """

    def certain(self, start: int) -> Sequence[np.ndarray]:
        """Return the rows from index ``start`` that no later decoder step can change. A row has the shape (D,)."""

    def finish(self, extend: Extend) -> Any:
        """Return the result of the sequence. The lanes call this when the sequence has ended.

        The sequence's keys and values are still on the lane, so ``extend`` can decode columns again from any position.
        """


class LanePrompt(Protocol):
    """A prompt, and the number of sequences (``count``) that continue it. A model with a decoder implements this."""

    count: int

    def prefix(self) -> np.ndarray:
        """Return the columns (decoder inputs) of the prompt, (P columns, D) float32.

        Raises UserError if the prompt is invalid.
        """

    def begin(self, index: int) -> SampledSequence:
        """Create the sequence with this index.

        ``Lanes`` calls this method when a lane (row of the batch) is free for the sequence.
        """


class Decoding:
    """A prompt that a thread submitted to the lanes. The thread reads the results of the prompt's sequences from it.

    Attributes:
        prompt: The prompt.
        priority: Function that returns a sort key. A free lane goes to the waiting prompt with the smallest key.
        finished: Number of sequences that have ended.
        cancelled: Whether the lanes must drop the sequences that have not ended.
        waiting: Indices of the sequences that have no lane yet.
        sampled: Sequences that have a lane, by index.
        results: Results of the sequences that have ended, by index.
        prefix_index: Index of the prompt's prefix in the decoder. ``None`` before the first sequence starts, and again
            when all sequences have ended.
        first: Hidden state, logits and attention scores of the prefix's last position. Every sequence samples its first
            column from them.
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

    def rows(
        self, index: int = 0, report: Callable[[], None] = lambda: None, needed: Callable[[], int] = lambda: 0
    ) -> Iterator[np.ndarray]:
        """Yield the rows of a sequence, (n rows, D), as soon as no later step can change them, until the sequence ends.

        The rows of the last steps may be missing. The sequence's result has all rows.

        Args:
            index: Index of the sequence.
            report: Function to call after every decoder step that this thread runs.
            needed: Function that returns how many rows, counted from the first one, the caller needs before it can do
                more work. The thread sleeps until then.

        Raises:
            UserError: The model cannot decode the prompt, or somebody cancelled it.
            RuntimeError: The decoder has failed.
        """
        known, sent = list[np.ndarray](), 0

        def more() -> bool:
            nonlocal known
            ended = index in self.results
            known = [] if ended or index not in self.sampled else list(self.sampled[index].certain(sent))
            return bool(ended or (known and sent + len(known) >= least) or self._check())

        while True:
            least = needed()
            self._lanes.until(more, self.priority, report)
            if not known:
                return
            sent += len(known)
            yield np.stack(known)

    def all(self, report: Callable[[], None] = lambda: None) -> list[Any]:
        """Wait for all sequences, and return their results in order. Raises the same errors as ``rows``.

        The method also removes these results from ``results``.
        """
        self._lanes.until(lambda: self.done or self._check(), self.priority, report)
        return [self.results.pop(index) for index in range(self.prompt.count)]

    def cancel(self) -> None:
        """Drop the sequences that have not ended. If a step is running, their lanes become free when the step ends.

        Any thread may call this.
        """
        self._lanes.cancel(self)

    def fail(self, error: UserError) -> None:
        """Store the error that ends all sequences, for the thread that waits for them."""
        self._error = error  # type: ignore[assignment]

    def _check(self) -> bool:
        """Raise the error that ended the prompt. Return False if no error did."""
        self._check_request()
        if self._error is not None:
            raise self._error
        if self.cancelled:
            raise UserError("this speech was cancelled")
        if isinstance(ended := self._lanes.ended, UserError):
            raise ended
        if ended is not None:
            raise RuntimeError("a decoder step failed, which this speech shared with other speeches") from ended
        return False


@dataclass(eq=False)
class BusyLane:
    """A sequence on its lane.

    Attributes:
        decoding: The prompt that the sequence continues.
        index: Index of the sequence among the prompt's sequences.
        sequence: The sequence.
        column: The next column to decode, (D,).
        length: Number of positions after the prefix that the lane has already decoded.
    """

    decoding: Decoding
    index: int
    sequence: SampledSequence
    column: np.ndarray
    length: int = 0


class Lanes(SharedSteps):
    """The lanes of one decoder (rows of its batch), and the prompts that use or await a lane.

    Call ``submit`` for each prompt, and read the results from the ``Decoding`` that it returns. Any thread may do both.

    Args:
        decoder: Decoder that has the lanes.
        recorded_heads: Attention heads, as (layer, head) pairs. Each sequence receives the scores of these heads if the
            decoder can record scores.
        turns: Turns that limit how many threads compute at once. A thread gives up its turn while another thread runs
            the steps. ``None`` means that threads need no turns.

    Attributes:
        ended: The error that ended all prompts, or ``None``.
    """

    def __init__(self, decoder: Decoder, recorded_heads: Sequence[tuple[int, int]] = (), turns: Turns | None = None):
        super().__init__(turns)
        self.decoder, self.capacity = decoder, decoder.capacity
        self.recorder = decoder if recorded_heads and decoder.record(recorded_heads) else None
        self.free_prefixes = list(reversed(range(decoder.prefixes)))
        self.prompts: list[Decoding] = []
        self.active: dict[int, BusyLane] = {}
        self.ended: BaseException | None = None
        self._stepping = False

    def submit(
        self, prompt: LanePrompt, priority: Urgency = lambda: (0, 0.0), check: Callable[[], None] = lambda: None
    ) -> Decoding:
        """Add a prompt to the lanes, and return immediately. The sequences of the prompt then wait for lanes.

        Args:
            prompt: The prompt.
            priority: Function that returns the prompt's sort key (see ``Decoding``).
            check: Function that raises an error when nobody wants the sequences any more. Any thread may call it
                between two decoder steps.
        """
        decoding = Decoding(self, prompt, priority, check)
        with self._lock:
            self.prompts.append(decoding)
        return decoding

    def cancel(self, decoding: Decoding) -> None:
        """Drop the sequences of a prompt (see ``Decoding.cancel``)."""
        with self._lock:
            decoding.cancelled = True
            if not self._stepping:
                self._remove(decoding)
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """End all prompts, and release the decoder even if other objects still refer to these lanes.

        Args:
            error: Error that every prompt raises. ``None`` means an error with the message that the lanes are closed.
        """
        with self._lock:
            self._end(error or UserError("the lanes are closed"))
            if not self._stepping:
                self.decoder = self.recorder = None

    # only the thread that runs the steps calls the methods below. The thread holds the lock except within ``_call``

    def _step(self) -> None:
        """Fill the free lanes (rows of the batch), and decode one column (input) on each lane.

        If a prompt raises UserError, only the sequences of that prompt end. Any other error ends all prompts.
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
        """Start the next sequence of a prompt on a lane. The sequence may end immediately."""
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
        """Decode one column (input) on every active lane (row of the batch).

        The decoder also computes the idle lanes between active lanes.
        """
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
        """Free the lane of a sequence that has ended.

        If it was the prompt's last sequence, also free the prompt's prefix.
        """
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
        """Remove a prompt, so that its lanes and its prefix become free."""
        self.active = {lane: busy for lane, busy in self.active.items() if busy.decoding is not decoding}
        if decoding.prefix_index is not None:
            self.free_prefixes.append(decoding.prefix_index)
        decoding.prefix_index = decoding.first = None
        if decoding in self.prompts:
            self.prompts.remove(decoding)

    def _end(self, error: BaseException) -> None:
        """End all prompts with an error, because after an error the contents of the decoder's caches are unknown."""
        self.ended = self.ended or error
        if isinstance(error, Exception) and not isinstance(error, UserError):
            LOGGER.error("a step of the decoder failed", exc_info=error)
        self._wake()
