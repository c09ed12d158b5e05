"""Let one of several waiting threads run the steps of a computation that all of them need.

The thread that runs the steps is the leader. When its own wait is over, another waiting thread becomes the leader. The
lock protects only data: no thread holds the lock while a network runs.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from ane.speech.turns import Turns, Urgency


@dataclass(eq=False)
class Waiter:
    """A thread that waits until ``ready`` returns True or raises an error.

    Attributes:
        ready: Function that says whether the wait is over.
        priority: Function that returns the sort key of the thread. The smallest key is the most urgent.
        woken: Condition with which another thread wakes this one.
    """

    ready: Callable[[], bool]
    priority: Urgency
    woken: threading.Condition

    @property
    def settled(self) -> bool:
        try:
            return self.ready()
        except Exception:
            return True


class SharedSteps(ABC):
    """Steps that several threads share. Any thread may wait with ``until``.

    Args:
        turns: Turns that limit how many threads compute at once. A thread gives up its turn while another thread runs
            the steps. ``None`` means that threads need no turns.
    """

    def __init__(self, turns: Turns | None = None):
        self.turns = turns
        self._lock = threading.Lock()
        self._waiting: list[Waiter] = []
        self._leader: Waiter | None = None  # the thread that runs the steps

    @abstractmethod
    def _step(self) -> None:
        """Run one step. The leader calls this method. It holds the lock, except within ``_call``."""

    def until(self, ready: Callable[[], bool], priority: Urgency, report: Callable[[], None]) -> None:
        """Run steps, or wait while another thread runs them, until ``ready`` returns True.

        Args:
            ready: Function that says whether the wait is over. An error that it raises ends the wait.
            priority: Function that returns the sort key of this thread. The smallest key is the most urgent.
            report: Function to call after every step that this thread runs.
        """
        waiter = Waiter(ready, priority, threading.Condition(self._lock))
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
                            # the thread that takes the turn may submit a prompt that shares the next step
                            self.turns.offer(self._urgency, after_step=True)
            finally:
                self._waiting.remove(waiter)
                if self._leader in (None, waiter):  # ``None`` if this thread was woken to lead, but its wait is over
                    self._leader = None
                    self._wake()

    def _rest(self, waiter: Waiter) -> None:
        """Let other threads compute, until ``waiter`` has its result or an error, or until it has to run the steps."""
        turns = self.turns.rest(waiter.priority) if self.turns else nullcontext()
        with self._unlocked(), turns, self._lock:
            while self._leader is not None and not waiter.settled:
                waiter.woken.wait()

    def _wake(self) -> None:
        """Wake the waiting threads that have their result or an error.

        If no thread runs the steps, also wake the most urgent one to run them.
        """
        for waiter in self._waiting:
            if waiter is not self._leader and waiter.settled:
                waiter.woken.notify()
        if self._leader is None and self._waiting:
            min(self._waiting, key=lambda waiter: waiter.priority()).woken.notify()

    def _urgency(self) -> tuple[int, float]:
        """Return the urgency of the next step: the highest urgency among the threads that wait for the step."""
        return min(waiter.priority() for waiter in list(self._waiting))

    def _call(self, network: Callable[..., Any], *arrays: Any) -> Any:
        """Run a network without holding the lock, with all threads of the machine if turns share them."""
        call = partial(network, *arrays)
        with self._unlocked():
            return self.turns.wide(call) if self.turns else call()

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
