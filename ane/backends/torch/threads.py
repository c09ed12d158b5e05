"""Choose how many threads torch uses on a machine that also runs other programs.

Torch divides a matrix product among threads, and all threads wait for the slowest thread. If other programs keep two
cores busy, two threads are many times slower than one thread. ``ThreadGovernor`` therefore measures how long the
threads of this process wait for a core, and uses fewer threads while they have to wait.

Mel codes and hidden states do not depend on the number of threads. The sound of a vocoder depends on it by rounding, so
a program can fix the number of threads for vocoders.
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

WINDOW = 0.03  # the governor judges calls together once they have taken this many seconds
COST = 0.02  # the governor may spend this many seconds per second on reading how long the threads have waited
MOST_WAITING = 0.35  # threads may wait for a core this many seconds per second, summed over all threads
SHORT_WAIT = 0.02  # the governor ignores waits of fewer seconds, because the other program may soon be done
IDLE = 0.75  # the governor adds a thread if at least this many cores are idle
PATIENCE = 0.5, 8.0  # seconds before the governor tries more threads again: at first, and at most after failures

Method = TypeVar("Method", bound=Callable[..., Any])
TASKS = Path("/proc/self/task")
STATISTICS = Path("/proc/stat")


def seconds_waiting() -> float:
    """Return how many seconds the threads of this process have waited for a core, summed over all threads.

    Linux counts the nanoseconds of each thread as the second number in /proc/PID/task/TID/schedstat
    (Documentation/scheduler/sched-stats.rst).

    Raises:
        OSError: The system does not have this file.
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
    """Return how many seconds the machine's cores have been idle, summed over all cores.

    Linux reports this as the fourth and fifth number of "cpu" in /proc/stat (proc(5)).
    """
    with STATISTICS.open("rb") as file:
        idle = file.readline().split()[4:6]
    return sum(map(int, idle)) / os.sysconf("SC_CLK_TCK")


class ThreadNumbers:
    """Lowers torch's number of threads for the duration of a call.

    Torch has a separate number for every calling thread. A new thread gets the number that any thread set last. This
    class lowers the number only while a call runs, so it keeps any number that the program sets between two calls.
    """

    def __init__(self) -> None:
        self._thread, self._lock = threading.local(), threading.Lock()
        self._lowered = 0  # number of running calls with a lowered number of threads
        self._last = self._before = 0  # number of threads that the last such call set, and the number before it

    def lower(self, limit: int | None) -> int:
        """Use at most ``limit`` threads for a call on this thread. ``None`` means no limit.

        Returns:
            The number to pass to ``restore``.
        """
        with self._lock:
            most = now = torch.get_num_threads()  # torch sets the number of a thread at its first call
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
        """Set the number of threads to the number that ``lower`` returned."""
        if torch.get_num_threads() != most:
            with self._lock:
                torch.set_num_threads(most)
                self._lowered -= 1

    def choose(self, count: int) -> None:
        """Set the number of threads for calls from this thread, and from threads that have not called torch yet."""
        with self._lock:
            torch.get_num_threads()  # torch sets a thread's number at its first call, which must be this one
            torch.set_num_threads(count)
            self._thread.met, self._last, self._before = True, count, count


numbers = ThreadNumbers()  # the only instance, because torch's setting belongs to the process
choose_threads = numbers.choose


class ThreadGovernor:
    """Lowers torch's number of threads while threads wait for cores, and raises it again when cores are idle.

    It never exceeds the number that the program has set. Only Linux reports how long threads wait. On other systems,
    the governor changes nothing.

    Args:
        waiting: Function that returns how many seconds threads have waited.
        idle: Function that returns how many seconds cores have been idle.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        waiting: Callable[[], float] = seconds_waiting,
        idle: Callable[[], float] = seconds_idle,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._waiting, self._idle, self._clock = waiting, idle, clock
        self._lock = threading.Lock()
        self.limit: int | None = None  # largest number of threads to use, or ``None`` for no limit
        self._patience, self._raised = PATIENCE[0], -math.inf  # seconds until the next raise, and time of the last
        self._window = WINDOW  # seconds of calls to judge together
        try:
            self._begin_window(clock(), waiting())
            self._watch_idle(clock())
            self.active = True
        except (OSError, IndexError, ValueError):
            self.active = False

    def _begin_window(self, now: float, waited: float) -> None:
        self._began, self._calls, self._waited = now, 0.0, waited

    def _watch_idle(self, now: float) -> None:
        self._watched, self._idled = now, self._idle()

    def begin(self, fixed_thread_count: bool = False) -> tuple[float, int]:
        """Lower the number of threads for a call on this thread. Pass the returned value to ``end``."""
        most = numbers.lower(None if fixed_thread_count else self.limit)
        return self._clock(), most

    def end(self, call: tuple[float, int]) -> None:
        """Restore the number of threads after a call, and record how long the call's threads have waited for a core."""
        now, (began, most) = self._clock(), call
        numbers.restore(most)
        with self._lock:
            self._calls += now - began
            if self._calls >= self._window:
                self._judge(now, most)

    def _judge(self, now: float, most: int) -> None:
        reading = self._waiting()
        self._window = max(WINDOW, (self._clock() - now) / COST)
        seconds = reading - self._waited
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
        self._begin_window(now, reading)


def governed(method: Method) -> Method:
    """Decorate a method so that ``self.governor`` chooses its number of threads, unless the object has no governor.

    If ``self.fixed_thread_count`` is true, the number does not change.
    """

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
