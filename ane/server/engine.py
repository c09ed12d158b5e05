"""The engine: one thread that runs the jobs of all clients in turns, and takes the steps of the lanes they share.

A job runs until it has a piece of sound, needs a step of a decoder that it shares with others, waits for text, or has
handed over more than its client has taken. Then the most urgent of the others runs (``Job.priority``). Before every
turn and every step, jobs whose clients have gone or whose time is over are ended.

Models on the CPU run on threads beside the engine's, several jobs at a time. Each such thread has a fixed number of CPU
threads, whatever else runs, because a convolution on another number of threads rounds otherwise. Steps of lanes stay on
the engine's thread: they serve all requests, and a decoder's bits depend on no number of threads.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

from ane.backends.torch.threads import choose_threads
from ane.server.errors import BusyError, ClientGoneError, DeadlineError
from ane.server.jobs import Job, Work
from ane.server.settings import Limits
from ane.speech.lanes import Lanes
from ane.system.errors import UserError

LOGGER = logging.getLogger("ane.server")
IDLE_SECONDS = 0.5      # between looks at deadlines and unused models when there is nothing to do
STEP_SECONDS = 0.05     # that a step waits for jobs that are as urgent, at most
TURN_SECONDS = 0.005    # that a step waits for a job on another thread, which may need it too


class Engine:
    """Runs jobs. Only ``start``, ``submit``, ``wake`` and ``stop`` may be called on other threads than its own.

    Args:
        calls: jobs on the CPU that run at a time, on threads of their own; 1: on the engine's thread.
        cpu_threads: of all of them together, and of a step of shared lanes (None: torch's own choice).
    """

    def __init__(self, limits: Limits, calls: int = 1, cpu_threads: int | None = None):
        self.limits, self.calls, self._cpu_threads = limits, calls, cpu_threads or torch.get_num_threads()
        self._beside = ThreadPoolExecutor(calls, "job") if calls > 1 else None
        self._periodic: Callable[[], None] = lambda: None
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._jobs: list[Job] = []
        self._running: set[Job] = set()     # on threads beside this one, also of those that were ended meanwhile
        self._count, self._count_lock = 0, threading.Lock()
        self._seconds = 1.0             # that a job takes, a moving average
        self._stopping = False
        self._next_periodic = self._last_step = 0.0
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

    def start(self, periodic: Callable[[], None] = lambda: None) -> None:
        """Start the thread, on which ``periodic`` is called every few seconds."""
        self._periodic = periodic
        self._thread.start()

    def submit(self, work: Work, seconds: float | None = None, speaks: bool = True) -> Job:
        """Begin a job for the client whose event loop calls this; ``seconds``: that it may take; ``speaks``: whether
        somebody waits for its sound.

        Raises:
            BusyError: there are as many as there may be.
        """
        with self._count_lock:
            if self._count >= self.limits.requests:
                raise BusyError(self._seconds)
            self._count += 1
        job = Job(self, work, seconds or self.limits.seconds, self.limits.sound_ahead, speaks)
        self._inbox.put(job)
        return job

    def wake(self) -> None:
        """Let the thread look at its jobs again."""
        self._inbox.put(None)

    def stop(self, seconds: float | None = None) -> bool:
        """End all jobs and the thread. Return whether they have ended; wait for it for ``seconds`` (None: until then).
        """
        self._stopping = True
        self.wake()
        self._thread.join(seconds)
        return not self.alive

    # Of the thread

    def _run(self) -> None:
        choose_threads(self._cpu_threads)        # torch has one number for each thread
        while not self._stopping:
            self._receive()
            self._end_jobs()
            seconds = self._act()
            if seconds and self._inbox.empty():
                self._receive(seconds)
        self._receive()
        for job in list(self._jobs):
            self._stop_job(job, ClientGoneError("the server stops"))
        if self._beside is not None:
            self._beside.shutdown()
            self._receive()

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
        for job in [job for job in self._running if not job.running]:       # they have come to a rest
            self._running.remove(job)
            if job not in self._jobs:           # it was ended meanwhile
                job.clean_up()
            elif job.finished:
                self._forget(job)

    def _end_jobs(self) -> None:
        """End the jobs whose client has gone or whose time is over."""
        now = time.monotonic()
        for job in [job for job in self._jobs if job.gone or now > job.deadline]:
            self._stop_job(job, ClientGoneError("the client has gone") if job.gone else
                           DeadlineError(job.deadline - job.began))
        if now > self._next_periodic:
            self._next_periodic = time.monotonic() + 10 * IDLE_SECONDS
            try:
                self._periodic()
            except Exception:           # the thread must go on for the others
                LOGGER.exception("releasing unused models failed")

    def _act(self) -> float:
        """Resume a job, or take a step of lanes for those that wait for it. Returns seconds to wait before the next."""
        ready = most_urgent(job for job in self._jobs if job.ready)
        if ready is not None and self._beside is not None and not ready.serial:
            if len(self._running) < self.calls:
                self._resume_beside(ready)
                return 0.0
            ready = most_urgent(job for job in self._jobs if job.ready and job.serial)
        waiting = most_urgent(job for job in self._jobs if job.lanes is not None)
        if waiting is None:
            if ready is None:
                return IDLE_SECONDS
            self._resume(ready)
            return 0.0
        now = time.monotonic()
        if ready is not None and now < self._last_step + STEP_SECONDS and ready.priority[0] <= waiting.priority[0]:
            self._resume(ready)         # it may need a step too, which one step then does for both
            return 0.0
        left = max((job.last_run + TURN_SECONDS - now for job in self._running), default=0.0)
        if left > 0:                    # the same of a job that has just begun to run
            return left
        self._step(waiting.lanes)
        return 0.0

    def _resume(self, job: Job) -> None:
        job.resume()
        if job.finished:
            self._forget(job)

    def _resume_beside(self, job: Job) -> None:
        def resume() -> None:
            choose_threads(self._cpu_threads // self.calls)
            job.resume()
            job.running = False
            self.wake()

        job.running, job.last_run = True, time.monotonic()
        self._running.add(job)
        self._beside.submit(resume)

    def _step(self, lanes: Lanes) -> None:
        """One step for all jobs on these lanes; if it fails, for none of them."""
        self._last_step = time.monotonic()
        waiting = [job for job in self._jobs if job.lanes is lanes]
        if self.calls > 1:
            choose_threads(self._cpu_threads if len(self._jobs) == 1 else self._cpu_threads // self.calls)
        try:
            lanes.step()
        except BaseException as error:      # as of a job
            LOGGER.exception("a step of the decoder failed")
            for job in waiting:
                self._stop_job(job, error)
            return
        for job in waiting:
            job.waits_for = None

    def _stop_job(self, job: Job, error: BaseException) -> None:
        job.stop(error)
        self._forget(job)

    def _forget(self, job: Job) -> None:
        self._jobs.remove(job)
        with self._count_lock:
            self._count -= 1
        self._seconds += 0.1 * (time.monotonic() - job.began - self._seconds)
        job.announce_end()


def most_urgent(jobs: Iterable[Job]) -> Job | None:
    return min(jobs, key=lambda job: job.priority, default=None)


def calls_at_a_time(wanted: int | None, cpu_threads: int) -> int:
    """How many jobs run at a time on the CPU; None: two, where there are threads for them.

    Raises:
        UserError: more than there are CPU threads.
    """
    if wanted is not None and wanted > cpu_threads:
        raise UserError(f"calls must be at most the number of CPU threads, {cpu_threads}, got {wanted}", "calls")
    return wanted or min(2, cpu_threads)
