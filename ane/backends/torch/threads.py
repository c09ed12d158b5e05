"""Choose how many threads torch uses on a machine that also runs other programs.

Torch splits a product of a small network between threads that meet at a barrier, so all of them wait for the slowest.
If two other programs keep two cores busy, two threads are many times slower than one. ``ThreadGovernor`` therefore
measures how long the threads of this process wait for a core, and uses fewer threads while they wait.

Codes and hidden states do not depend on the number of threads. The sound of vocoders does, by rounding, so a program
can fix the number for them.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import torch

WINDOW = 0.03  # seconds of calls that are judged together
MOST_WAITING = 0.35  # seconds that threads may wait for a core, per second
SHORT_WAIT = 0.02  # seconds of waiting that are ignored, because another program may need no more
IDLE = 0.75  # number of idle cores that lets another thread in
PATIENCE = 0.5, 8.0  # seconds before more threads are tried again: at first, and after many failures

Method = TypeVar("Method", bound=Callable[..., Any])
TASKS = Path("/proc/self/task")
STATISTICS = Path("/proc/stat")


def seconds_waiting() -> float:
    """Return how many seconds the threads of this process have waited for a core. Raises OSError if Linux does not say.

    This is the second number of /proc/PID/task/TID/schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst).
    """
    waiting = 0
    for task in os.scandir(TASKS):
        try:
            with open(f"{task.path}/schedstat", "rb") as file:
                waiting += int(file.read().split()[1])
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
    return waiting / 1e9


def seconds_idle() -> float:
    """Return how many seconds the machine's cores have been idle (proc(5): fourth and fifth number of "cpu")."""
    with STATISTICS.open("rb") as file:
        idle = file.readline().split()[4:6]
    return sum(map(int, idle)) / os.sysconf("SC_CLK_TCK")


class ThreadNumbers:
    """Lowers torch's number of threads for the duration of a call.

    Torch has one such number per thread, and a new thread gets the number that was set last on any thread. This class
    lowers it only while a call runs, so a number that the program sets between two calls holds.
    """

    def __init__(self) -> None:
        self._thread, self._lock = threading.local(), threading.Lock()
        self._lowered = 0  # calls that run with a lowered number
        self._last = self._before = 0  # the number set last for such a call, and the number it replaced

    def lower(self, limit: int | None) -> int:
        """Use at most ``limit`` threads for a call on this thread. ``None`` means no limit.

        Returns:
            The number to pass to ``restore``.
        """
        with self._lock:
            most = now = torch.get_num_threads()  # the first call in a thread sets its number
            if not hasattr(self._thread, "met") and self._lowered and now == self._last:
                most = self._before
            self._thread.met = True
            count = min(most, limit or most)
            if count != now:
                torch.set_num_threads(count)
            if count < most:
                self._lowered += 1
                self._last, self._before = count, most
        return most

    def restore(self, most: int) -> None:
        """Set the number of threads that ``lower`` returned."""
        if torch.get_num_threads() != most:
            with self._lock:
                torch.set_num_threads(most)
                self._lowered -= 1

    def choose(self, count: int) -> None:
        """Set the number of threads for this thread, and for the threads that torch meets from now on."""
        with self._lock:
            torch.get_num_threads()  # otherwise the first call in a thread would replace the number
            torch.set_num_threads(count)
            self._thread.met, self._last, self._before = True, count, count


numbers = ThreadNumbers()  # one per process, as torch's setting is
choose_threads = numbers.choose


class ThreadGovernor:
    """Lowers torch's number of threads while they wait for cores, and raises it again when cores are idle.

    It never uses more threads than torch is set to use on the calling thread. Only Linux tells how long threads wait,
    so on other systems nothing changes.

    Args:
        waiting: Returns the seconds that threads have waited.
        idle: Returns the seconds that cores have been idle.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        waiting: Callable[[], float] = seconds_waiting,
        idle: Callable[[], float] = seconds_idle,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._waiting, self._idle, self._clock = waiting, idle, clock
        self._lock = threading.Lock()
        self.limit: int | None = None  # largest number of threads to use, or None for torch's number
        self._patience, self._raised = PATIENCE[0], -math.inf  # seconds; time at which the limit was last raised
        try:
            self._begin_window(clock())
            self._watch_idle(clock())
            self.active = True
        except (OSError, IndexError, ValueError):
            self.active = False

    def _begin_window(self, now: float) -> None:
        self._began, self._calls, self._waited = now, 0.0, self._waiting()

    def _watch_idle(self, now: float) -> None:
        self._watched, self._idled = now, self._idle()

    def begin(self, fixed_thread_count: bool = False) -> tuple[float, int]:
        """Set the number of threads for a call on this thread. Returns the argument of ``end``."""
        most = numbers.lower(None if fixed_thread_count else self.limit)
        return self._clock(), most

    def end(self, call: tuple[float, int]) -> None:
        """Restore this thread's number, and judge how long the threads of the call waited."""
        now, (began, most) = self._clock(), call
        numbers.restore(most)
        with self._lock:
            self._calls += now - began
            if self._calls >= WINDOW:
                self._judge(now, most)

    def _judge(self, now: float, most: int) -> None:
        seconds = self._waiting() - self._waited
        waited = seconds / (now - self._began)
        count = min(most, self.limit or most)
        if waited > MOST_WAITING and count > 1:
            if seconds < SHORT_WAIT:
                return
            in_vain = now - self._raised < self._patience
            self._patience = min(2 * self._patience, PATIENCE[1]) if in_vain else PATIENCE[0]
            self.limit = max(1, count - max(1, round(waited)))
            self._watch_idle(now)
        elif self.limit is not None and now - self._watched >= self._patience:
            idle = (self._idle() - self._idled) / (now - self._watched)
            if idle > IDLE:
                count += int(idle + 1 - IDLE)
                self.limit, self._raised = (count if count < most else None), now
            self._watch_idle(now)
        self._begin_window(now)


def governed(method: Method) -> Method:
    """Let the object's ``governor``, if it has one, choose the threads of a method, unless ``fixed_thread_count``."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        governor = self.governor
        if governor is None or not governor.active:
            return method(self, *args, **kwargs)
        call_here = governor.begin(self.fixed_thread_count)
        try:
            return method(self, *args, **kwargs)
        finally:
            governor.end(call_here)

    return call  # type: ignore[return-value]
