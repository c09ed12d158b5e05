"""Turns: how many threads may compute at a time, and which of those that wait goes first.

The threads of a server, one for each request, hold a turn while they compute and rest while they wait. torch has a
number of CPU threads for each thread that calls it, and a convolution on another number of threads rounds otherwise:
whatever else runs, a thread with a turn keeps the number that it got at its start.
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
# a class and an order within it, which may change; the least goes first
Urgency = Callable[[], tuple[int, float]]


@dataclass(eq=False)
class WaitingThread:
    urgency: Urgency
    number: int
    granted: threading.Event = field(default_factory=threading.Event)


class Turns:
    """Turns for ``calls`` threads at a time. Threads that are equally urgent go in the order in which they came.

    Args:
        threads: CPU threads of all of them together. With None, torch keeps its own number.
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
        """Hold a turn within the block, as soon as one is free."""
        with self._lock:
            self._members += 1
        self._take(urgency)
        try:
            with self._all_threads:  # of a call that is wide because it began alone
                self.set_threads()
            yield
        finally:
            self._give()
            with self._lock:
                self._members -= 1

    def offer(self, urgency: Urgency, to_class: bool = False) -> None:
        """Let another thread go first if one is as urgent; with ``to_class``, if one is of the same class."""
        with self._lock:
            own = urgency()
            own = (own[0], inf) if to_class else own
            others = any(each.urgency() <= own for each in self._waiting)
        if others:
            with self.rest(urgency):
                pass

    @contextmanager
    def rest(self, urgency: Urgency) -> Iterator[None]:
        """Give the turn up within the block."""
        self._give()
        try:
            yield
        finally:
            self._take(urgency)

    def wide(self, call: Callable[[], Result]) -> Result:
        """Return what ``call`` does, for what rounds alike on any number of CPU threads: it has all of them if nobody
        else has work. It runs on a thread of its own, so that the number of the calling thread stays as it is.
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
        """End the thread of wide calls."""
        if self._wide is not None:
            self._wide.shutdown(wait=False)

    @property
    def _share(self) -> int:
        return (self.threads or 0) // self.calls

    def set_threads(self) -> None:
        """Give the calling thread its share of the CPU threads. MKL has one number for the whole process."""
        if self.threads is not None:
            from ane.backends.torch.threads import choose_threads

            choose_threads(self._share)

    def run(self, call: Callable[[], Any]) -> Any:
        """Return what ``call`` does in a turn."""
        with self.turn():
            return call()

    def _take(self, urgency: Urgency) -> None:
        with self._lock:
            if self._free:  # then nobody waits
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
            thread = min(self._waiting, key=lambda each: (each.urgency(), each.number))
            self._waiting.remove(thread)
        thread.granted.set()
