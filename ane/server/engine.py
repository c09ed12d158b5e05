"""The engine: one thread that owns the models and runs the jobs of all clients in turns.

A job runs until it has a piece of sound, needs a step of a decoder that it shares with others, waits for text, or has
handed over more than its client has taken. Then the most urgent of the others runs (``Job.priority``). Before every
turn and every step, jobs whose clients have gone or whose time is over are ended.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from greenlet import GreenletExit, getcurrent

from ane.models.lane_sharing import SharedLanes
from ane.server.jobs import ClientGoneError, DeadlineError, Job
from ane.server.parallel_calls import CallThreads
from ane.server.settings import Limits
from ane.system.errors import UserError

LOGGER = logging.getLogger("ane.server")
IDLE_SECONDS = 0.5      # between looks at deadlines and unused models when there is nothing to do
STEP_SECONDS = 0.05     # that a step waits for jobs that are as urgent, at most


class BusyError(UserError):
    """No more requests are taken now.

    Attributes:
        retry_after: seconds after which there is probably room.
    """

    def __init__(self, retry_after: int):
        super().__init__("too many requests: try again later")
        self.retry_after = retry_after


class Engine:
    """Runs jobs on a thread of its own; it is also the ``StepScheduler`` of the streams in them.

    Only ``start``, ``submit``, ``wake`` and ``stop`` may be called on other threads.

    Args:
        calls: network calls that run at a time, on threads of their own; 1: on this thread.
        cpu_threads: of all calls together, and of a step of shared lanes (None: torch's own choice).
    """

    def __init__(self, limits: Limits, calls: int = 1, cpu_threads: int | None = None):
        self.limits, self._cpu_threads = limits, cpu_threads or torch.get_num_threads()
        self._calls = CallThreads(calls, self._cpu_threads // calls, self.wake) if calls > 1 else None
        self._chore: Callable[[], None] = lambda: None
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._jobs: list[Job] = []
        self._running: Job | None = None
        self._count, self._count_lock = 0, threading.Lock()
        self._seconds = 1.0             # that a job takes, a moving average
        self._stopping = False
        self._next_chore = self._last_step = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # Of any thread

    @property
    def count(self) -> int:
        """Number of jobs that have not ended."""
        return self._count

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self, chore: Callable[[], None] = lambda: None) -> None:
        """Start the thread, on which ``chore`` is called now and then."""
        self._chore = chore
        self._thread.start()

    def submit(self, work: Callable[[Job], None], seconds: float | None = None, speaks: bool = True) -> Job:
        """Begin a job for the client whose event loop calls this; ``seconds``: that it may take; ``speaks``: whether
        somebody waits for its sound.

        Raises:
            BusyError: there are as many as there may be.
        """
        with self._count_lock:
            if self._count >= self.limits.requests:
                raise BusyError(max(1, round(self._seconds)))
            self._count += 1
        job = Job(self, work, seconds or self.limits.seconds, self.limits.sound_ahead, speaks)
        self._inbox.put(job)
        return job

    def wake(self) -> None:
        """Let the thread look at its jobs again."""
        self._inbox.put(None)

    def stop(self) -> None:
        """End all jobs and the thread."""
        self._stopping = True
        self.wake()
        self._thread.join()

    # Within a job: the steps of its stream

    def wait_for_step(self, lanes: SharedLanes) -> None:
        self.current.pause(lanes)

    def priority(self) -> Callable[[], Any]:
        job = self.current
        return lambda: job.priority

    def run_call(self, call: Callable[[], Any], if_abandoned: Callable[[], None] = lambda: None) -> Any:
        """The result of a network call, during which other jobs go on. Raises its error.

        ``if_abandoned`` is called on the call's thread, after it, if the job has ended meanwhile.
        """
        if self._calls is None or self._running is None or threading.current_thread() is not self._thread:
            return call()
        job, calls = self._running, self._calls
        if not calls.has_room():
            job.pause(calls.has_room)       # the most urgent job gets the next thread
        future = calls.submit(call)
        try:
            job.pause(future.done)
        except GreenletExit:
            future.add_done_callback(lambda _: if_abandoned())
            raise
        return future.result()

    @property
    def current(self) -> Job:
        """The job that runs now."""
        if self._running is None:
            raise RuntimeError("no job runs")
        return self._running

    def switch(self) -> None:
        """Pause the job that runs: go on with the thread's loop."""
        self._hub.switch()

    # Of the thread

    def _run(self) -> None:
        self._hub = getcurrent()
        torch.set_num_threads(self._cpu_threads)        # torch has one number for each thread
        while not self._stopping:
            self._receive()
            self._end_jobs()
            if (action := self._next_action()) is not None:
                action()
            elif self._inbox.empty():
                self._receive(IDLE_SECONDS)
        self._receive()
        for job in list(self._jobs):
            self._stop_job(job, ClientGoneError("the server stops"))
        if self._calls is not None:
            self._calls.close()

    def _receive(self, seconds: float = 0.0) -> None:
        """Take new jobs; wait for the first message if ``seconds`` are given."""
        try:
            while True:
                job = self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait()
                seconds = 0.0
                if job is not None:
                    self._jobs.append(job)
        except queue.Empty:
            pass

    def _end_jobs(self) -> None:
        """End the jobs whose client has gone or whose time is over."""
        now = time.monotonic()
        for job in [job for job in self._jobs if job.gone or now > job.deadline]:
            self._stop_job(job, ClientGoneError("the client has gone") if job.gone else
                           DeadlineError(f"the request took more than {job.deadline - job.began:g} s"))
        if now > self._next_chore:
            self._do_chore()

    def _do_chore(self) -> None:
        self._next_chore = time.monotonic() + 10 * IDLE_SECONDS
        try:
            self._chore()
        except Exception:           # the thread must go on for the others
            LOGGER.exception("releasing unused models failed")

    def _next_action(self) -> Callable[[], None] | None:
        """What to do next: resume a job, or take a step of lanes for those that wait for it. None: nothing."""
        ready = min((job for job in self._jobs if job.ready), key=priority_of, default=None)
        waiting = min((job for job in self._jobs if job.lanes is not None), key=priority_of, default=None)
        if waiting is None or waiting.lanes is None:
            return None if ready is None else partial(self._resume, ready)
        if ready is not None and time.monotonic() < self._last_step + STEP_SECONDS and (
                ready.priority[0] <= waiting.priority[0]):
            return partial(self._resume, ready)     # it may need a step too, which one step then does for both
        return partial(self._step, waiting.lanes)

    def _resume(self, job: Job) -> None:
        self._running = job
        try:
            job.resume()
        finally:
            self._running = None
        if job.finished:
            self._forget(job)

    def _step(self, lanes: SharedLanes) -> None:
        """One step for all jobs on these lanes; if it fails, for none of them."""
        self._last_step = time.monotonic()
        waiting = [job for job in self._jobs if job.waits_for is lanes]
        if self._calls is not None:         # a decoder's bits depend on no number of threads
            torch.set_num_threads(self._cpu_threads if len(self._jobs) == 1 else self._calls.cpu_threads)
        try:
            lanes.advance()
        except BaseException as error:      # as of a job
            LOGGER.exception("a step of the decoder failed")
            for job in waiting:
                self._stop_job(job, error)
            return
        for job in waiting:
            job.waits_for = None

    def _stop_job(self, job: Job, error: BaseException) -> None:
        self._running = job
        try:
            job.stop(error)
        finally:
            self._running = None
        self._forget(job)

    def _forget(self, job: Job) -> None:
        self._jobs.remove(job)
        with self._count_lock:
            self._count -= 1
        self._seconds += 0.1 * (time.monotonic() - job.began - self._seconds)
        job.announce_end()


def priority_of(job: Job) -> tuple[int, float]:
    return job.priority
