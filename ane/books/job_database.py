"""Open the SQLite database of a job, which is the narration of one book, and define its tables and transactions."""

import fcntl
import os
import secrets
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ane.system.errors import UserError
from ane.system.files import flush_folder
from ane.system.interruption import uninterrupted

FILE = "job.sqlite"
VERSION, FORMER = 3, 2
BUSY = 60.0  # maximum seconds to wait for a transaction of another process
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE chunks (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, text TEXT NOT NULL, chapter INTEGER NOT NULL,
                     kind TEXT NOT NULL, language TEXT NOT NULL, silence REAL NOT NULL,
                     voice TEXT NOT NULL DEFAULT '');
CREATE TABLE sounds (key TEXT PRIMARY KEY, take INTEGER NOT NULL DEFAULT 0, samples INTEGER, rate INTEGER,
                     elapsed REAL, notes TEXT, flac BLOB, words TEXT, signals TEXT, checker TEXT,
                     problems TEXT, replaced INTEGER);
CREATE TABLE leases (key TEXT PRIMARY KEY, owner TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
                     expires REAL NOT NULL);
"""
# Jobs of the version before this one lack the column. Their texts contain marks that name the voices.
UPGRADE = "ALTER TABLE chunks ADD COLUMN voice TEXT NOT NULL DEFAULT ''"
# Files that the job wrote as output. If an earlier version made the job, opening it adds this table.
OUTPUTS = "CREATE TABLE IF NOT EXISTS outputs (sha256 TEXT PRIMARY KEY, size INTEGER, name TEXT NOT NULL)"


class JobDatabase:
    """The connection of one process to the database of a job.

    Every method raises UserError if the database cannot be read or written, or has another version's format.

    Args:
        path: Folder of the job. It is created if it does not exist.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time):
        self.path, self.clock = path, clock
        self.host = socket.gethostname()
        self.owner = f"{self.host}:{os.getpid()}:{secrets.token_hex(4)}"
        with self._errors():
            if not path.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(mode=0o700, exist_ok=True)  # another process may have created it by now
                flush_folder(path.parent)
            self._is_new = not os.path.exists(path / FILE)
            with suppress(FileExistsError):  # SQLite creates its other files with the mode of this file
                os.close(os.open(path / FILE, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._connection = self._connect()
            with self._transaction() as run:
                [version] = run("PRAGMA user_version").fetchone()
                if former := {0: SCHEMA, FORMER: UPGRADE}.get(version):
                    for statement in (*former.split(";"), f"PRAGMA user_version = {VERSION}"):
                        run(statement)
                if known := former is not None or version == VERSION:
                    run(OUTPUTS)
        if not known:
            self.close()
            raise UserError(
                f"the job in {path} belongs to another version ({version}): update tortoise-ane, or delete the "
                "folder to start over"
            )

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path / FILE, timeout=BUSY, isolation_level=None)
        for attempt in range(40):  # SQLite does not wait if another process also turns WAL on
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or attempt == 39:
                    raise
                time.sleep(0.1)
        # "Writers sync the WAL on every transaction commit if PRAGMA synchronous is set to FULL but omit this sync if
        # PRAGMA synchronous is set to NORMAL." (sqlite.org/wal.html)
        for pragma in ("synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON"):  # fullfsync is for macOS
            connection.execute(f"PRAGMA {pragma}")
        return connection

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()

    def discard_new(self) -> None:
        """Delete the job (narration) if this process created it, nothing was spoken, and no other process uses it."""
        with suppress(sqlite3.Error, OSError):
            if (
                not self._is_new
                or self._connection.execute("SELECT 1 FROM sounds WHERE samples IS NOT NULL").fetchone()
            ):
                return
            # "the journal mode can only be changed from WAL if the connection is the only one" (sqlite.org/wal.html)
            if self._connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",):
                (self.path / FILE).unlink()
                self.path.rmdir()

    def _row(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        """Run a query, and return the first row, or ``None`` if the query finds no row."""
        with self._errors():
            row: tuple[Any, ...] | None = self._connection.execute(query, values).fetchone()
        return row

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            advice = (
                "delete the folder to start over"
                if type(error) is sqlite3.DatabaseError
                else "repair that and run the command again (what was spoken is kept)"
            )
            cause = str(error).replace("database or disk", "the disk")
            raise UserError(f"cannot use the job in {self.path}, because {cause}: {advice}") from error
        except OSError as error:
            in_the_way = isinstance(error, FileExistsError)
            why = "it is not a folder: move it, or choose another output" if in_the_way else error.strerror or error
            raise UserError(f"cannot use the job in {self.path}: {why}") from error

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Yield a function that executes SQL.

        The ``with`` block stores all changes at its end, or none after an error.
        """
        with self._errors(), uninterrupted():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise


def lock_folder(path: Path) -> int | None:
    """Lock a folder, so that no other process can lock it.

    The operating system releases the lock when the process ends, however it ends.

    Returns:
        A file descriptor to close, -1 if the file system cannot lock, or ``None`` if another process has the lock.
    """
    try:
        opened = os.open(path, os.O_RDONLY)
    except OSError:
        return -1
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return opened
    except OSError as error:
        os.close(opened)
        return None if isinstance(error, BlockingIOError) else -1
