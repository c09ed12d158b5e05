"""A job on disk: the plan of a book, and the sound of every chunk that was spoken, in one SQLite database.

The database is the only file. Each change is one transaction that is on disk when it returns (WAL, synchronous=FULL),
so a power failure at any instant loses at most the chunk that is being spoken, and a sound without its record or a
record without its sound cannot exist. Sounds are FLAC, 24 bits.
"""

import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from io import BytesIO
from typing import Any

import numpy as np
import soundfile

from ane.books import job_database
from ane.books.job_database import JobDatabase
from ane.books.job_facts import read_chunk, read_fact, read_words
from ane.books.plan import BookPlan, PlannedChunk, seed_of
from ane.books.speakers import SpokenChunk
from ane.speech.words import SpokenWord
from ane.system.errors import UserError
from ane.text.passages import without_voice_mark

LEASE = 60.0  # seconds after which a process that gave no sign of life loses its chunk
OUTPUT = "output"  # the key of the lease on writing the output
SOUND_ONLY = "sound"  # the checker without a recogniser; what another one judged need not be judged by it
JUDGED = "(s.checker IS NOT NULL AND (? = ? OR s.checker = ?))"
CHUNKS = (
    "SELECT c.number, c.key, c.text, c.chapter, c.kind, c.language, c.silence, c.voice, s.take, s.samples, "
    "s.rate, s.elapsed, s.notes, l.expires, s.problems FROM chunks c JOIN sounds s USING (key) "
    "LEFT JOIN leases l USING (key)"
)


@dataclass(frozen=True)
class StoredChunk:
    """A chunk and the facts that the job has of its sound. The process that claimed it alone may speak it."""

    chunk: PlannedChunk
    take: int  # for which time it is spoken; 0: the first
    samples: int | None  # None: it was not spoken yet
    rate: int | None
    elapsed: float | None
    notes: list[str]
    leased: bool
    problems: list[str]  # what a check found in the sound that was kept

    @property
    def seed(self) -> int:
        return seed_of(self.chunk.key, self.take)


class JobStore(JobDatabase):
    """A job: its plan, its sounds and who works on what."""

    _wanted_seed: int | None = None
    _lock = -1  # descriptor of the lock on writing the output

    # Facts

    def fact(self, name: str) -> Any:
        """A fact about the job as JSON, None if it is not known."""
        found = self._row("SELECT value FROM facts WHERE name = ?", name)
        return read_fact(name, found[0], self.path) if found else None

    def set_fact(self, name: str, value: Any) -> None:
        with self._transaction() as run:
            set_fact(run, name, value)

    def seed(self, wanted: int | None) -> int:
        """The seed of the job: ``wanted``; None: that of its first run, a random one for a new job.

        ``adopt`` makes ``wanted`` the seed of the job: a run that is refused before must not change it.
        """
        self._wanted_seed = wanted
        with self._transaction() as run:
            run("INSERT OR IGNORE INTO facts VALUES ('seed', ?)", (json.dumps(secrets.randbits(32)),))
        return int(self.fact("seed") if wanted is None else wanted)

    # The plan

    def adopt(self, plan: BookPlan, options: str = "") -> None:
        """Make ``plan`` the plan of this job, and ``options`` the digest of those of its files.

        No sound is deleted before ``prune``: a run with a forgotten option must not cost hours of speech.

        Raises:
            UserError: another process is working on a different plan, or with different options.
        """
        with self._transaction() as run:
            self._drop_dead_leases(run)
            former = {
                name: read_fact(name, value, self.path)
                for name, value in run("SELECT name, value FROM facts WHERE name IN ('plan', 'options')")
            }
            changed = former != {"plan": plan.digest, "options": options}
            other = run("SELECT pid, host FROM leases WHERE owner != ?", (self.owner,)).fetchone()
            if changed and other:
                raise UserError(
                    f"process {other[0]} on {other[1]} is speaking the job in {self.path} with another "
                    "text, voice or option: wait for it, stop it, or choose another output"
                )
            if self._wanted_seed is not None:
                set_fact(run, "seed", self._wanted_seed)
            set_fact(run, "options", options)
            if former.get("plan") == plan.digest:
                return
            run("DELETE FROM chunks")
            for chunk in plan.chunks:
                run(
                    "INSERT INTO chunks VALUES (:number, :key, :text, :chapter, :kind, :language, :silence, :voice)",
                    vars(chunk),
                )
            run("INSERT OR IGNORE INTO sounds (key) SELECT key FROM chunks")
            set_fact(run, "plan", plan.digest)
            set_fact(run, "chapters", plan.chapters)

    def missing_texts(self, plan: BookPlan) -> tuple[int, int]:
        """How many chunks that were spoken have a text that ``plan`` lacks, and how many were spoken."""
        wanted = {chunk.marked for chunk in plan.chunks}
        spoken = [chunk.chunk.marked for chunk in self.chunks() if chunk.samples is not None]
        return sum(text not in wanted for text in spoken), len(spoken)

    def prune(self) -> None:
        """Delete the sounds that the plan does not need."""
        with self._transaction() as run:
            run("DELETE FROM sounds WHERE key NOT IN (SELECT key FROM chunks)")

    def redo(self, numbers: Iterable[int]) -> None:
        """Forget the sounds of these chunks; each is spoken with a new seed. Raises UserError for an unknown number."""
        with self._transaction() as run:
            [count] = run("SELECT count(*) FROM chunks").fetchone()
            for number in numbers:
                if not 1 <= number <= count:
                    raise UserError(f"redo must name chunks from 1 to {count}, got {number}", "redo")
                key = run("SELECT key FROM chunks WHERE number = ?", (number,)).fetchone()
                run(
                    "UPDATE sounds SET take = take + 1, samples = NULL, rate = NULL, elapsed = NULL, notes = NULL, "
                    "flac = NULL, words = NULL, signals = NULL, checker = NULL, problems = NULL, "
                    "replaced = NULL WHERE key = ?",
                    key,
                )
                run("DELETE FROM leases WHERE key = ?", key)

    def chunks(self) -> list[StoredChunk]:
        """All chunks in order."""
        with self._errors():
            rows = self._connection.execute(f"{CHUNKS} ORDER BY c.number").fetchall()
        return [self._stored(row) for row in rows]

    def _stored(self, row: tuple[Any, ...]) -> StoredChunk:
        """Make a chunk from a row of ``CHUNKS``. Raises UserError when the row is damaged."""
        *planned, take, samples, rate, elapsed, notes, expires, problems = read_chunk(row, self.path)
        chunk = PlannedChunk(*planned)
        if not chunk.voice:  # a job of an earlier version has it in the text
            chunk.text, chunk.voice = without_voice_mark(chunk.text)
        return StoredChunk(
            chunk,
            take,
            samples,
            rate,
            elapsed,
            notes or [],
            expires is not None and expires > self.clock(),
            problems or [],
        )

    def progress(self) -> tuple[int, int, int]:
        """Chunks with a sound, chunks in all, and characters of those without."""
        row = self._row(
            "SELECT count(s.samples), count(*), total(CASE WHEN s.samples IS NULL THEN length(c.text) END) "
            "FROM chunks c JOIN sounds s USING (key)"
        )
        done, total, left = row or (0, 0, 0)
        return done, total, int(left)

    def sound(self, key: str) -> np.ndarray:
        """The stored sound of a chunk, (S,) float32. A damaged one is removed, so that the next run speaks it again.

        Raises:
            UserError: there is none, or it is damaged.
        """
        row = self._row("SELECT samples, flac FROM sounds WHERE key = ?", key)
        if row is None or row[0] is None:
            raise UserError(f"the job in {self.path} changed while its sound was read: run the command again")
        if not row[0]:
            return np.zeros(0, np.float32)
        try:
            audio, _ = soundfile.read(BytesIO(row[1]), dtype="float32")
        except (soundfile.LibsndfileError, TypeError):  # TypeError: not even bytes
            audio = np.zeros((0, 0))
        if audio.shape == (row[0],):
            return np.asarray(audio)
        with self._transaction() as run:
            [number] = run("SELECT number FROM chunks WHERE key = ?", (key,)).fetchone() or ["?"]
            run("UPDATE sounds SET samples = NULL, flac = NULL WHERE key = ?", (key,))
        raise UserError(
            f"the sound of chunk {number} in {self.path} was damaged, and is removed: run the command "
            "again, which speaks this chunk alone"
        )

    def spoken(self, key: str) -> SpokenChunk:
        """Return the sound of a chunk with the words and signals that are known. Raises UserError as ``sound`` does."""
        return SpokenChunk(self.sound(key), words=self.words(key), signals=self.signals_of(key), stored=True)

    def words(self, key: str) -> list[SpokenWord]:
        """The words of a chunk in seconds from the beginning of its sound; none if they were not timed."""
        row = self._row("SELECT words FROM sounds WHERE key = ?", key)
        return [SpokenWord(*word) for word in read_words(row[0], self.path)] if row and row[0] else []

    # Work

    def claim(self, plan: str) -> StoredChunk | None:
        """Lease the first chunk that nobody has spoken or is speaking; None when there is none."""
        return self._claim(plan, "s.samples IS NULL")

    def claim_output(self) -> bool:
        """Lock and lease the writing of the output; False when another process does it.

        The lock holds while this process does, also when it is stopped for longer than a lease. The lease is for file
        systems without locks.
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
        """A transaction of the process that leases the output. UserError: another process has the lease."""
        with self._transaction() as run:
            if not run("SELECT 1 FROM leases WHERE key = ? AND owner = ?", (OUTPUT, self.owner)).fetchone():
                raise UserError(
                    f"another process writes the output of the job in {self.path} since this one gave no "
                    "sign of life for a while: this one stops"
                )
            yield run

    def recorded_outputs(self) -> list[tuple[str, int | None, str]]:
        """SHA-256, bytes (None: not known) and name of everything that this job ever wrote as output."""
        with self._errors():
            rows = self._connection.execute("SELECT sha256, size, name FROM outputs").fetchall()
        # earlier versions kept the hashes of the last run, by name
        return [*rows, *((digest, None, name) for name, digest in (self.fact("hashes") or {}).items())]

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def close(self) -> None:
        self._unlock()
        super().close()

    def save(
        self,
        claimed: StoredChunk,
        audio: np.ndarray,
        rate: int,
        elapsed: float,
        notes: list[str],
        words: Sequence[SpokenWord] = (),
        signals: Mapping[str, Any] | None = None,
    ) -> bool:
        """Store a sound, (S,) float32 within ±1, with notes, the times of its words from its beginning, and signals.

        False, and nothing is stored, when the lease was lost.
        """
        key = claimed.chunk.key
        with self._transaction() as run:
            held = run("DELETE FROM leases WHERE key = ? AND owner = ?", (key, self.owner)).rowcount
            return bool(held) and bool(
                run(
                    "UPDATE sounds SET samples = ?, rate = ?, elapsed = ?, notes = ?, flac = ?, words = ?, signals = ? "
                    "WHERE key = ? AND take = ? AND samples IS NULL",
                    (
                        len(audio),
                        rate,
                        elapsed,
                        json.dumps(notes),
                        as_flac(audio, rate),
                        as_json(words),
                        json.dumps(signals) if signals else None,
                        key,
                        claimed.take,
                    ),
                ).rowcount
            )

    # Checks

    def signals(self) -> list[dict[str, Any]]:
        """The signals of every chunk's first sound, of those that have any."""
        with self._errors():
            rows = self._connection.execute(
                "SELECT s.signals FROM chunks c JOIN sounds s USING (key) WHERE s.signals IS NOT NULL ORDER BY c.number"
            ).fetchall()
        return [read_fact("signals", row[0], self.path) for row in rows]

    def signals_of(self, key: str) -> dict[str, Any] | None:
        """The signals of a chunk's sound; None: it replaced the first one, or was spoken by an earlier version."""
        row = self._row("SELECT signals FROM sounds WHERE key = ? AND replaced IS NULL", key)
        return read_fact("signals", row[0], self.path) if row and row[0] else None

    def checked(self, checker: str) -> int:
        """How many chunks were judged by this checker, or by a recogniser beside ``SOUND_ONLY``."""
        row = self._row(
            f"SELECT count(*) FROM chunks c JOIN sounds s USING (key) WHERE {JUDGED}", checker, SOUND_ONLY, checker
        )
        return int(row[0]) if row else 0

    def claim_check(self, plan: str, checker: str) -> StoredChunk | None:
        """Lease the first spoken chunk that this checker has not judged and nobody judges; None if none is left."""
        return self._claim(plan, f"s.samples IS NOT NULL AND NOT {JUDGED}", checker, SOUND_ONLY, checker)

    def save_check(self, claimed: StoredChunk, checker: str, best: SpokenChunk, rate: int) -> bool:
        """Store the problems of a chunk's best sound, and this sound unless it is the stored one.

        False, and nothing is stored, when the lease was lost.
        """
        key = claimed.chunk.key
        with self._transaction() as run:
            if not run("DELETE FROM leases WHERE key = ? AND owner = ?", (key, self.owner)).rowcount:
                return False
            if not best.stored:
                run(
                    "UPDATE sounds SET samples = ?, rate = ?, notes = ?, flac = ?, words = ?, replaced = 1 "
                    "WHERE key = ?",
                    (
                        len(best.audio),
                        rate,
                        json.dumps(best.notes),
                        as_flac(best.audio, rate),
                        as_json(best.words),
                        key,
                    ),
                )
            return bool(
                run(
                    "UPDATE sounds SET checker = ?, problems = ? WHERE key = ? AND take = ?",
                    (checker, json.dumps(best.problems), key, claimed.take),
                ).rowcount
            )

    def renew(self) -> None:
        """Extend the leases of this process."""
        with self._transaction() as run:
            run("UPDATE leases SET expires = ? WHERE owner = ?", (self.clock() + LEASE, self.owner))

    def release(self) -> None:
        """Give up the leases of this process."""
        with self._transaction() as run:
            run("DELETE FROM leases WHERE owner = ?", (self.owner,))
        self._unlock()

    def second_connection(self) -> "JobStore":
        """The same process's store for another thread."""
        other = JobStore(self.path, self.clock)
        other.owner = self.owner
        return other

    def _claim(self, plan: str, condition: str, *values: str) -> StoredChunk | None:
        """Lease the first chunk that meets a condition and that nobody has leased; None: there is none.

        Raises:
            UserError: the plan of the job is no longer the one with digest ``plan``.
        """
        with self._transaction() as run:
            stored = run("SELECT value FROM facts WHERE name = 'plan'").fetchone()
            if stored is None or json.loads(stored[0]) != plan:
                raise UserError(
                    f"another process gave the job in {self.path} another text, voice or setting "
                    "meanwhile: this one stops"
                )
            self._drop_dead_leases(run)
            row = run(f"{CHUNKS} WHERE l.key IS NULL AND {condition} ORDER BY c.number LIMIT 1", values).fetchone()
            if row is None:
                return None
            claimed = self._stored(row)
            self._lease(run, claimed.chunk.key)
        return claimed

    def _lease(self, run: Callable[..., sqlite3.Cursor], key: str) -> None:
        run(
            "INSERT INTO leases VALUES (?, ?, ?, ?, ?)", (key, self.owner, self.host, os.getpid(), self.clock() + LEASE)
        )

    def _drop_dead_leases(self, run: Callable[..., sqlite3.Cursor]) -> None:
        """Delete leases that expired, and those of processes of this machine that have ended."""
        run("DELETE FROM leases WHERE expires < ?", (self.clock(),))
        for key, pid in run("SELECT key, pid FROM leases WHERE host = ?", (self.host,)).fetchall():
            if not is_running(pid):
                run("DELETE FROM leases WHERE key = ? AND pid = ?", (key, pid))


def set_fact(run: Callable[..., sqlite3.Cursor], name: str, value: Any) -> None:
    run("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value, default=str)))


def as_flac(audio: np.ndarray, rate: int) -> bytes:
    """A sound (S,) as FLAC of 24 bits; empty without samples."""
    flac = BytesIO()
    if len(audio):
        soundfile.write(flac, audio, rate, format="FLAC", subtype="PCM_24")
    return flac.getvalue()


def as_json(words: Sequence[SpokenWord]) -> str | None:
    return json.dumps([astuple(word) for word in words]) if words else None


def is_running(pid: int) -> bool:
    """Whether a process of this machine runs. A process that got the number of one that ended counts as that one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True
