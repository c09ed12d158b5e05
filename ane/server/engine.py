"""The engine: a thread for each job, of which a few compute at a time, the most urgent first (``ane.speech.turns``).

A job gives its turn up where it has a piece of sound, waits for text or for a step of a decoder that it shares with
others, or has handed over more than its client has taken. A job whose client has gone or whose time is over ends there,
and within its computations after every step.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from ane.server.errors import BusyError, DeadlineError, StoppingError
from ane.server.jobs import Job, Work
from ane.server.settings import Limits
from ane.speech.turns import Turns
from ane.system.errors import UserError

LOGGER = logging.getLogger("ane.server")
IDLE_SECONDS = 0.5  # between looks at deadlines
PERIOD = 5.0  # seconds between looks at unused models


class Engine:
    """Runs jobs. Any thread may call its methods; ``submit`` is for those of an event loop.

    Args:
        calls: jobs that compute at a time.
        cpu_threads: of all of them together (None: torch's own choice).

    Attributes:
        ending: whether the jobs were ended, because the server stops.
    """

    def __init__(self, limits: Limits, calls: int = 1, cpu_threads: int | None = None):
        self.limits, self.turns = limits, Turns(calls, cpu_threads or torch.get_num_threads())
        self.ending = False
        self._periodic: Callable[[], None] = lambda: None
        self._jobs: set[Job] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(limits.requests, "job")
        self._running: set[Future[None]] = set()  # jobs on their threads, also those that were ended meanwhile
        self._seconds = 1.0  # that a job takes, a moving average
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._watch_jobs, name="engine", daemon=True)

    @property
    def count(self) -> int:
        """Number of jobs that have not ended."""
        return len(self._jobs)

    @property
    def alive(self) -> bool:
        """Whether jobs can run, or some still do."""
        return self._watch.is_alive() or bool(self._running)

    def start(self, periodic: Callable[[], None] = lambda: None) -> None:
        """Take jobs, and call ``periodic`` every few seconds."""
        self._periodic = periodic
        self._watch.start()

    def submit(self, work: Work, seconds: float | None = None, speaks: bool = True) -> Job:
        """Begin a job for the client whose event loop calls this; ``seconds``: that it may take; ``speaks``: whether
        somebody waits for its sound.

        Raises:
            BusyError: there are as many as there may be.
        """
        with self._lock:
            if len(self._jobs) >= self.limits.requests:
                raise BusyError(self._seconds)
            job = Job(self.turns, work, seconds or self.limits.seconds, self.limits.sound_ahead, speaks, self._forget)
            self._jobs.add(job)
            running = self._pool.submit(job.run)
            self._running.add(running)
        running.add_done_callback(self._running.discard)
        return job

    def end_jobs(self) -> None:
        """End all jobs with StoppingError."""
        self.ending = True
        for job in list(self._jobs):
            job.stop(StoppingError())

    def stop(self, seconds: float | None = None) -> bool:
        """End all jobs and their threads. Return whether they have ended; wait for it for ``seconds`` (None: until
        then).
        """
        self.end_jobs()
        self._stopping.set()
        wait(list(self._running), seconds)
        self._watch.join(seconds)
        self._pool.shutdown(wait=False)
        self.turns.close()
        return not self.alive

    def _watch_jobs(self) -> None:
        """End the jobs whose time is over."""
        look = 0.0
        while True:
            now = time.monotonic()
            for job in [job for job in list(self._jobs) if now > job.deadline]:
                job.stop(DeadlineError(job.deadline - job.began))
            if now > look:
                look = now + PERIOD
                try:
                    self._periodic()
                except Exception:  # the thread must go on
                    LOGGER.exception("releasing unused models failed")
            if self._stopping.wait(IDLE_SECONDS):
                return

    def _forget(self, job: Job) -> None:
        with self._lock:
            self._jobs.discard(job)
        self._seconds += 0.1 * (time.monotonic() - job.began - self._seconds)


def calls_at_a_time(wanted: int | None, cpu_threads: int) -> int:
    """How many jobs compute at a time on the CPU; None: two, where there are threads for them.

    Raises:
        UserError: more than there are CPU threads.
    """
    if wanted is not None and wanted > cpu_threads:
        raise UserError(f"calls must be at most the number of CPU threads, {cpu_threads}, got {wanted}", "calls")
    return wanted or min(2, cpu_threads)
