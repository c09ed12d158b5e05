"""Run each client's job on a separate thread, but let only a few jobs compute in parallel, the most urgent jobs first.

A job computes while it has a turn (``ane.speech.turns``). It gives up its turn when it has sound to send, when it waits
for text or for a decoder step that it shares with other jobs, and when its client has not taken enough sound. A job
ends if its client has left or its time is over. It checks for these two conditions when it gives up its turn, and after
every step of a computation.
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
IDLE_SECONDS = 0.5  # seconds between two checks for jobs whose time is over
PERIOD = 5.0  # seconds between two calls of ``periodic``, which releases unused models


class Engine:
    """A runner of jobs.

    Any thread may call its methods, except for ``submit``, which needs the thread of an event loop.

    Args:
        limits: Limits of the server.
        calls: Number of jobs that compute at once.
        cpu_threads: Number of CPU threads that the computing jobs share. ``None`` lets torch choose.

    Attributes:
        ending: Whether the engine has ended the jobs because the server stops.
    """

    def __init__(self, limits: Limits, calls: int = 1, cpu_threads: int | None = None):
        self.limits, self.turns = limits, Turns(calls, cpu_threads or torch.get_num_threads())
        self.ending = False
        self._periodic: Callable[[], None] = lambda: None
        self._jobs: set[Job] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(limits.requests, "job")
        self._running: set[Future[None]] = set()  # jobs whose threads run, even if the job was told to end
        self._seconds = 1.0  # moving average of the seconds that a job takes
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._watch_jobs, name="engine", daemon=True)

    @property
    def count(self) -> int:
        """Number of jobs that have not ended."""
        return len(self._jobs)

    @property
    def alive(self) -> bool:
        """Whether jobs (of clients) can run, or a job still runs."""
        return self._watch.is_alive() or bool(self._running)

    def start(self, periodic: Callable[[], None] = lambda: None) -> None:
        """Begin to take jobs, and call ``periodic`` every few seconds."""
        self._periodic = periodic
        self._watch.start()

    def submit(self, work: Work, seconds: float | None = None, speaks: bool = True) -> Job:
        """Begin a job for a client, in the event loop of that client.

        Args:
            work: Function that does the work. It takes the job.
            seconds: Maximum seconds that the job may take. ``None`` means the server's limit.
            speaks: Whether a client waits for the job's sound.

        Raises:
            BusyError: The server already has as many jobs as its limit allows.
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
        """End all jobs, and the threads of the engine.

        Args:
            seconds: Maximum seconds to wait. ``None`` waits until all threads have ended.

        Returns:
            Whether all threads have ended.
        """
        self.end_jobs()
        self._stopping.set()
        wait(list(self._running), seconds)
        self._watch.join(seconds)
        self._pool.shutdown(wait=False)
        return not self.alive

    def _watch_jobs(self) -> None:
        """End jobs whose time is over, until the engine stops."""
        look = 0.0
        while True:
            now = time.monotonic()
            for job in [job for job in list(self._jobs) if now > job.deadline]:
                job.stop(DeadlineError(job.deadline - job.began))
            if now > look:
                look = now + PERIOD
                try:
                    self._periodic()
                except Exception:  # this thread must keep running
                    LOGGER.exception("releasing unused models failed")
            if self._stopping.wait(IDLE_SECONDS):
                return

    def _forget(self, job: Job) -> None:
        with self._lock:
            self._jobs.discard(job)
        self._seconds += 0.1 * (time.monotonic() - job.began - self._seconds)


def calls_at_a_time(wanted: int | None, cpu_threads: int) -> int:
    """Return how many jobs may compute at once on the CPU.

    Args:
        wanted: The number that the user asked for. ``None`` means two, if there are at least two CPU threads.
        cpu_threads: Number of CPU threads.

    Raises:
        UserError: The number is greater than the number of CPU threads.
    """
    if wanted is not None and wanted > cpu_threads:
        raise UserError(f"calls must be at most the number of CPU threads, {cpu_threads}, got {wanted}", "calls")
    return wanted or min(2, cpu_threads)
