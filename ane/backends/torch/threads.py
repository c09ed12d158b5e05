"""How many threads torch computes with on a machine that has other work.

A product of a small network is split between threads that meet at a barrier, and each waits for the one that is not
running: beside two busy programs on two cores, two threads are many times slower than one. So the time that threads of
this process wait for a core is watched, and while they wait, fewer of them are used. No bit of a code or of a hidden
state depends on their number; the sound of vocoders does by rounding, so that a program can keep theirs.
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
MOST_WAITING = 0.35  # seconds that threads may wait for a core, in a second
SHORT_WAIT = 0.02  # seconds of waiting that are not judged yet: another program may need no more
IDLE = 0.75  # cores without work that let another thread in
PATIENCE = 0.5, 8.0  # seconds before more threads are tried again: at first, and after many failures

Method = TypeVar("Method", bound=Callable[..., Any])
TASKS = Path("/proc/self/task")
STATISTICS = Path("/proc/stat")


def seconds_waiting() -> float:
    """Seconds that all threads of this process have waited for a core. OSError where the system does not tell.

    Linux: the second number of /proc/PID/task/TID/schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst).
    """
    waiting = 0
    for task in os.scandir(TASKS):
        try:
            with open(f"{task.path}/schedstat", "rb") as file:
                waiting += int(file.read().split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it has ended before the file was opened, or since
            continue
    return waiting / 1e9


def seconds_idle() -> float:
    """Seconds that all cores of the machine have been idle (proc(5): the fourth and fifth number of "cpu")."""
    with STATISTICS.open("rb") as file:
        idle = file.readline().split()[4:6]
    return sum(map(int, idle)) / os.sysconf("SC_CLK_TCK")


class ThreadNumbers:
    """Lowers the number of threads that torch has, for one call at a time: one record, as torch is one.

    torch keeps a number for each thread, and gives a new thread the number that was set last on any thread. A number
    is lowered only while a call runs, so whatever a program sets between two calls holds.
    """

    def __init__(self) -> None:
        self._thread, self._lock = threading.local(), threading.Lock()
        self._lowered = 0  # calls that run with a lowered number
        self._last = self._before = 0  # set last for such a call; the number in its place without it

    def lower(self, limit: int | None) -> int:
        """Set at most ``limit`` for a call on this thread (``None``: no limit). Returns the number to ``restore``."""
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
        """Set the number that ``lower`` returned."""
        if torch.get_num_threads() != most:
            with self._lock:
                torch.set_num_threads(most)
                self._lowered -= 1

    def choose(self, count: int) -> None:
        """Choose the number for this thread, and for threads that torch meets from now on."""
        with self._lock:
            torch.get_num_threads()  # without it, the first call in a thread would replace the number
            torch.set_num_threads(count)
            self._thread.met, self._last, self._before = True, count, count


numbers = ThreadNumbers()  # one for the process, as torch has one
choose_threads = numbers.choose


class ThreadGovernor:
    """Lowers torch's number of threads while they wait for cores, and raises it again when cores are idle.

    Whoever sets torch's number on a thread sets the most that is used there. Systems other than Linux do not tell how
    long threads wait: there nothing is changed.

    Args:
        waiting, idle, clock: where the seconds come from.
    """

    def __init__(
        self,
        waiting: Callable[[], float] = seconds_waiting,
        idle: Callable[[], float] = seconds_idle,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._waiting, self._idle, self._clock = waiting, idle, clock
        self._lock = threading.Lock()
        self.limit: int | None = None  # threads that are used at most; None: as many as torch was told
        self._patience, self._raised = PATIENCE[0], -math.inf  # seconds; when the limit was last raised
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

    def begin(self, keeps_threads: bool = False) -> tuple[float, int]:
        """Set the number of threads for a call on this thread. Returns the arguments of ``end``."""
        most = numbers.lower(None if keeps_threads else self.limit)
        return self._clock(), most

    def end(self, call: tuple[float, int]) -> None:
        """Give this thread its number back, and judge the call."""
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
    """Let the ``governor`` of the object choose the threads of a method, if it has one, unless it ``keeps_threads``."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        governor = self.governor
        if governor is None or not governor.active:
            return method(self, *args, **kwargs)
        call_here = governor.begin(self.keeps_threads)
        try:
            return method(self, *args, **kwargs)
        finally:
            governor.end(call_here)

    return call  # type: ignore[return-value]
