"""Limit how many threads compute at the same time, and decide which waiting thread goes first.

A server has one thread per request. Such a thread holds a turn while it computes, and gives up the turn while it waits.

For each thread that calls torch, torch stores how many CPU threads the operators use. A convolution rounds differently
if the number of CPU threads changes. So a thread that holds a turn keeps its number of CPU threads, no matter which
other threads run.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from operator import methodcaller
from typing import Any, TypeVar

Result = TypeVar("Result")
# returns (class, order within the class). The smallest pair goes first. A later call may return another pair
Urgency = Callable[[], tuple[int, float]]


@dataclass(eq=False)
class WaitingThread:
    """A thread that waits for a turn.

    Attributes:
        urgency: Function that returns how urgent the thread is.
        granted: Event that is set when the thread gets the turn.
    """

    urgency: Urgency
    granted: threading.Event = field(default_factory=threading.Event)


class Turns:
    """Turns that let ``calls`` threads compute at once. Equally urgent threads go in the order in which they came.

    Args:
        calls: Number of threads that may compute at once.
        threads: Number of CPU threads that these threads divide among them. ``None`` leaves torch's number unchanged.
    """

    def __init__(self, calls: int = 1, threads: int | None = None):
        self.calls, self.threads = calls, threads
        self._free, self._members = calls, 0
        self._lock = threading.Lock()
        self._waiting: list[WaitingThread] = []  # The thread that came first is the first
        self._passed_on = False  # True if a waiting thread got a turn during this step (see ``offer``)
        self._all_threads = threading.Lock()

    @property
    def idle(self) -> bool:
        """Whether no thread computes (holds a turn), or waits for a turn."""
        return self._free == self.calls and not self._waiting

    @contextmanager
    def turn(self, urgency: Urgency = lambda: (0, 0.0)) -> Iterator[None]:
        """Wait for a turn (the right to compute), and hold it within the block."""
        with self._lock:
            self._members += 1
        self._take(urgency)
        try:
            with self._all_threads:  # waits for a call of ``wide`` that has all CPU threads, because it began alone
                self.set_threads()
            yield
        finally:
            self._give()
            with self._lock:
                self._members -= 1

    def offer(self, urgency: Urgency, after_step: bool = False) -> None:
        """Let a waiting thread compute first if it is at least as urgent as this thread, and then wait for a turn.

        Args:
            urgency: Urgency of the calling thread.
            after_step: Whether the calling thread has run a step for several threads. If a waiting thread got another
                turn during the step, the calling thread then goes on with the next step unless a thread of a more
                urgent class waits. So the steps and the other threads use all turns. Otherwise, a waiting thread of the
                same class goes first.
        """
        with self._lock:
            limit = urgency()
            if after_step:
                limit = limit[0], -inf if self._passed_on else inf
                self._passed_on = False
            first = self._most_urgent()
            if first is None or first.urgency() > limit:
                return
            own = self._wait_later(urgency)
            self._pass_to(first)
        own.granted.wait()
        if after_step:
            self._passed_on = False

    @contextmanager
    def rest(self, urgency: Urgency) -> Iterator[None]:
        """Give up the turn (the right to compute) within the ``with`` block, and wait for a turn again at its end."""
        self._give()
        try:
            yield
        finally:
            self._take(urgency)

    def wide(self, call: Callable[[], Result]) -> Result:
        """Run a function on as many CPU threads as are free, and return its result.

        If no other thread holds a turn or waits for one, the function gets all CPU threads. The function's rounding
        must not depend on the number of CPU threads.
        """
        if self.threads is None or self.calls == 1:
            return call()
        with self._lock:
            alone = self._members == 1 and self._all_threads.acquire(blocking=False)
        if not alone:
            return call()
        try:
            self._use(self.threads)
            return call()
        finally:
            self.set_threads()
            self._all_threads.release()

    def set_threads(self) -> None:
        """Give the calling thread its share of the CPU threads. MKL stores one number for the whole process."""
        self._use(self.threads and self.threads // self.calls)

    def _use(self, threads: int | None) -> None:
        if threads is not None:
            from ane.backends.torch.threads import choose_threads  # imported here, because it imports torch

            choose_threads(threads)

    def run(self, call: Callable[[], Any]) -> Any:
        """Wait for a turn (the right to compute), run a call, and return its result."""
        with self.turn():
            return call()

    def _take(self, urgency: Urgency) -> None:
        with self._lock:
            if self._free:  # no other thread waits while a turn is free
                self._free -= 1
                return
            own = self._wait_later(urgency)
        own.granted.wait()

    def _give(self) -> None:
        with self._lock:
            if (first := self._most_urgent()) is None:
                self._free += 1
            else:
                self._pass_to(first)

    def _pass_to(self, thread: WaitingThread) -> None:
        self._passed_on = True
        self._waiting.remove(thread)
        thread.granted.set()

    def _most_urgent(self) -> WaitingThread | None:
        """Return the most urgent thread, or ``None``. If several are equally urgent, return the one that came first."""
        return min(self._waiting, key=methodcaller("urgency"), default=None)

    def _wait_later(self, urgency: Urgency) -> WaitingThread:
        own = WaitingThread(urgency)
        self._waiting.append(own)
        return own
