"""Limit how many threads compute at once, and decide which waiting thread goes first.

A server has one thread per request. A thread holds a turn while it computes, and rests while it waits. torch keeps a
number of CPU threads for each thread that calls it, and a convolution rounds differently on another number of threads.
So a thread with a turn keeps the number that it got at its start, whatever else runs.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any, TypeVar

Result = TypeVar("Result")
# (class, order within the class). Both may change, and the smallest goes first
Urgency = Callable[[], tuple[int, float]]


@dataclass(eq=False)
class WaitingThread:
    """A thread that waits for a turn: its urgency, its number in order of arrival, and the event that ends the wait."""

    urgency: Urgency
    number: int
    granted: threading.Event = field(default_factory=threading.Event)


class Turns:
    """Turns that let ``calls`` threads compute at once. Equally urgent threads go in the order in which they came.

    Args:
        calls: Number of threads that may compute at once.
        threads: Number of CPU threads that they divide among them. ``None`` keeps torch's number.
    """

    def __init__(self, calls: int = 1, threads: int | None = None):
        self.calls, self.threads = calls, threads
        self._free, self._members = calls, 0
        self._lock, self._numbers = threading.Lock(), count()
        self._waiting: list[WaitingThread] = []
        self._wide: ThreadPoolExecutor | None = None
        self._all_threads = threading.Lock()

    @property
    def idle(self) -> bool:
        """Whether no thread holds a turn or waits for one."""
        return self._free == self.calls and not self._waiting

    @contextmanager
    def turn(self, urgency: Urgency = lambda: (0, 0.0)) -> Iterator[None]:
        """Wait for a turn, and hold it within the block."""
        with self._lock:
            self._members += 1
        self._take(urgency)
        try:
            with self._all_threads:  # waits for a wide call that has all threads because it began alone
                self.set_threads()
            yield
        finally:
            self._give()
            with self._lock:
                self._members -= 1

    def offer(self, urgency: Urgency, to_class: bool = False) -> None:
        """Let a waiting thread go first if it is at least as urgent, or with ``to_class`` if its class is."""
        with self._lock:
            limit = urgency()
            limit = (limit[0], inf) if to_class else limit
            must_wait = any(thread.urgency() <= limit for thread in self._waiting)
        if must_wait:
            with self.rest(urgency):
                pass

    @contextmanager
    def rest(self, urgency: Urgency) -> Iterator[None]:
        """Give up the turn within the block, and take one again after it."""
        self._give()
        try:
            yield
        finally:
            self._take(urgency)

    def wide(self, call: Callable[[], Result]) -> Result:
        """Run a call that rounds the same on any number of CPU threads, and return its result.

        The call gets all CPU threads if no other thread has work. It runs on a separate thread, so that the calling
        thread keeps its number.
        """
        if self.threads is None or self.calls == 1:
            return call()
        if self._wide is None:
            self._wide = ThreadPoolExecutor(1, "wide")
        with self._lock:
            alone = self._members == 1 and self._all_threads.acquire(blocking=False)
        try:
            return self._wide.submit(self._with_threads, call, self.threads if alone else self._share).result()
        finally:
            if alone:
                self.set_threads()
                self._all_threads.release()

    def _with_threads(self, call: Callable[[], Result], threads: int) -> Result:
        from ane.backends.torch.threads import choose_threads  # it imports torch

        choose_threads(threads)
        return call()

    def close(self) -> None:
        """End the thread that runs wide calls."""
        if self._wide is not None:
            self._wide.shutdown(wait=False)

    @property
    def _share(self) -> int:
        return (self.threads or 0) // self.calls

    def set_threads(self) -> None:
        """Give the calling thread its share of the CPU threads. MKL has only one number, for the whole process."""
        if self.threads is not None:
            from ane.backends.torch.threads import choose_threads

            choose_threads(self._share)

    def run(self, call: Callable[[], Any]) -> Any:
        """Run a call in a turn, and return its result."""
        with self.turn():
            return call()

    def _take(self, urgency: Urgency) -> None:
        with self._lock:
            if self._free:  # then no thread is waiting
                self._free -= 1
                return
            thread = WaitingThread(urgency, next(self._numbers))
            self._waiting.append(thread)
        thread.granted.wait()

    def _give(self) -> None:
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            thread = min(self._waiting, key=lambda waiting: (waiting.urgency(), waiting.number))
            self._waiting.remove(thread)
        thread.granted.set()
