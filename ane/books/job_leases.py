"""Let several processes work on one job: each leases the chunk that it speaks or checks, or the writing of the output.

A process renews its leases while it works. If it ends or hangs, other processes take over its chunks.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ane.books import job_database
from ane.books.job_database import JobDatabase
from ane.system.errors import UserError

LEASE = 60.0  # seconds after which a process that does not renew its lease loses the chunk
OUTPUT = "output"  # key of the lease on writing the output


class JobLeases(JobDatabase):
    """A job, and its leases, with which processes reserve the chunks on which they work."""

    _lock = -1  # file descriptor of the lock on writing the output

    def claim_output(self) -> bool:
        """Reserve the output for this process, with a lock and a lease. Return False if another process is writing it.

        The lock lasts until this process ends, even if the system suspends the process for longer than a lease. The
        lease is for file systems that have no locks.
        """
        locked = job_database.lock_folder(self.path)
        if locked is None:
            return False
        self._unlock()
        self._lock = locked
        with self._transaction() as run:
            self._drop_dead_leases(run)
            if run("SELECT 1 FROM leases WHERE key = ?", (OUTPUT,)).fetchone():
                self._unlock()
                return False
            self._lease(run, OUTPUT)
            return True

    @contextmanager
    def output_transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Run a transaction if this process still holds the lease (reservation) of the output.

        Otherwise, raise UserError.
        """
        with self._transaction() as run:
            if not run("SELECT 1 FROM leases WHERE key = ? AND owner = ?", (OUTPUT, self.owner)).fetchone():
                raise UserError(
                    "this process was silent for too long, so another one has taken over writing the output of "
                    f"{self.path}: let that one finish"
                )
            yield run

    def renew(self) -> None:
        """Extend the time of all leases (reservations) of this process."""
        with self._transaction() as run:
            run("UPDATE leases SET expires = ? WHERE owner = ?", (self.clock() + LEASE, self.owner))

    def release(self) -> None:
        """Give up all leases (reservations) of this process."""
        with self._transaction() as run:
            run("DELETE FROM leases WHERE owner = ?", (self.owner,))
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def close(self) -> None:
        self._unlock()
        super().close()

    def _lease(self, run: Callable[..., sqlite3.Cursor], key: str) -> None:
        run(
            "INSERT INTO leases VALUES (?, ?, ?, ?, ?)", (key, self.owner, self.host, os.getpid(), self.clock() + LEASE)
        )

    def _drop_dead_leases(self, run: Callable[..., sqlite3.Cursor]) -> None:
        """Delete leases (reservations) that have expired, and leases of processes on this machine that have ended."""
        run("DELETE FROM leases WHERE expires < ?", (self.clock(),))
        for key, pid in run("SELECT key, pid FROM leases WHERE host = ?", (self.host,)).fetchall():
            if not is_running(pid):
                run("DELETE FROM leases WHERE key = ? AND pid = ?", (key, pid))


def is_running(pid: int) -> bool:
    """Return whether this machine runs a process with this number, which may be a newer process with an old number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        pass
    return True
