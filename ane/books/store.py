"""Store a job on disk, in one SQLite database: the plan of a book, and the sound of every chunk that has been spoken.

Each change is one transaction, which SQLite has written to the disk when the call returns (WAL, synchronous=FULL). A
power failure loses at most the chunk that is being spoken. A sound and its record are always stored together. Sounds
are FLAC with 24 bits.
"""

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from io import BytesIO
from typing import Any

import numpy as np
import soundfile

from ane.books.job_facts import read_chunk, read_fact, read_words
from ane.books.job_leases import JobLeases
from ane.books.plan import BookPlan, PlannedChunk, seed_of
from ane.books.speakers import SpokenChunk
from ane.speech.words import SpokenWord
from ane.system.errors import UserError
from ane.text.passages import without_voice_mark

# name of the checker without a recogniser. It need not judge chunks that another checker has judged.
SOUND_ONLY = "sound"
JUDGED = "(s.checker IS NOT NULL AND (? = ? OR s.checker = ?))"
CHUNKS = (
    "SELECT c.number, c.key, c.text, c.chapter, c.kind, c.language, c.silence, c.voice, s.take, s.samples, "
    "s.rate, s.elapsed, s.notes, l.expires, s.problems FROM chunks c JOIN sounds s USING (key) "
    "LEFT JOIN leases l USING (key)"
)


@dataclass(frozen=True)
class StoredChunk:
    """A chunk, and the facts that the job stores about its sound.

    Only the process that holds the chunk's lease (reservation) may speak it.

    Attributes:
        take: Number of times that the chunk's sound was discarded so that the chunk could be spoken again.
        samples: Number of samples in the sound. ``None`` means that the chunk has not been spoken yet.
        rate: Sample rate of the sound in Hz. ``None`` means that the chunk has not been spoken yet.
        elapsed: Seconds that speaking the chunk took.
        leased: Whether a process is working on the chunk.
        problems: The problems that a check found in the sound.
    """

    chunk: PlannedChunk
    take: int
    samples: int | None
    rate: int | None
    elapsed: float | None
    notes: list[str]
    leased: bool
    problems: list[str]

    @property
    def seed(self) -> int:
        return seed_of(self.chunk.key, self.take)


class JobStore(JobLeases):
    """A job: its plan, its sounds, and its leases, with which processes reserve the chunks on which they work."""

    _wanted_seed: int | None = None

    # Facts

    def fact(self, name: str) -> Any:
        """Return a fact about the job as a JSON value, or ``None`` if the job does not store this fact."""
        row = self._row("SELECT value FROM facts WHERE name = ?", name)
        return read_fact(name, row[0], self.path) if row else None

    def set_fact(self, name: str, value: Any) -> None:
        with self._transaction() as run:
            set_fact(run, name, value)

    def seed(self, wanted: int | None) -> int:
        """Return the seed of the job. A new seed is stored only by ``adopt``, so that a failed run does not change it.

        Args:
            wanted: The seed to use. ``None`` means the seed of the first run. A new job then gets a random seed.
        """
        self._wanted_seed = wanted
        with self._transaction() as run:
            run("INSERT OR IGNORE INTO facts VALUES ('seed', ?)", (json.dumps(secrets.randbits(32)),))
        return int(self.fact("seed") if wanted is None else wanted)

    # The plan

    def adopt(self, plan: BookPlan, options: str = "") -> None:
        """Make ``plan`` the plan of this job.

        Sounds that the plan lacks are kept until ``prune``, so that a forgotten option does not lose hours of speech.

        Args:
            options: Digest of the job's output options.

        Raises:
            UserError: Another process is working on the job with another plan or with other options.
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
        """Return how many spoken chunks have a text that is not in ``plan``, and how many chunks have been spoken."""
        wanted = {chunk.marked for chunk in plan.chunks}
        spoken = [chunk.chunk.marked for chunk in self.chunks() if chunk.samples is not None]
        return sum(text not in wanted for text in spoken), len(spoken)

    def prune(self) -> None:
        """Delete the sounds of chunks that are not in the plan."""
        with self._transaction() as run:
            run("DELETE FROM sounds WHERE key NOT IN (SELECT key FROM chunks)")

    def redo(self, numbers: Iterable[int]) -> None:
        """Discard the sounds of these chunks, so that they are spoken with a new seed.

        Raises UserError for an invalid number.
        """
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
        """Return all chunks of the plan in order."""
        with self._errors():
            rows = self._connection.execute(f"{CHUNKS} ORDER BY c.number").fetchall()
        return [self._stored(row) for row in rows]

    def _stored(self, row: tuple[Any, ...]) -> StoredChunk:
        """Make a chunk from a row that ``CHUNKS`` selects. Raises UserError if the row is damaged."""
        *planned, take, samples, rate, elapsed, notes, expires, problems = read_chunk(row, self.path)
        chunk = PlannedChunk(*planned)
        if not chunk.voice:  # an earlier version stored the voice in the text
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
        """Count the chunks with a sound, all chunks, and the characters in chunks without a sound."""
        row = self._row(
            "SELECT count(s.samples), count(*), total(CASE WHEN s.samples IS NULL THEN length(c.text) END) "
            "FROM chunks c JOIN sounds s USING (key)"
        )
        done, total, left = row or (0, 0, 0)
        return done, total, int(left)

    def sound(self, key: str) -> np.ndarray:
        """Return the stored sound of a chunk, (S,) float32.

        Raises:
            UserError: The chunk has no sound, or the sound is damaged. A damaged sound is deleted, so that the next run
                speaks the chunk again.
        """
        row = self._row("SELECT samples, flac FROM sounds WHERE key = ?", key)
        if row is None or row[0] is None:
            raise UserError(f"the job in {self.path} changed while its sound was read: run the command again")
        if not row[0]:
            return np.zeros(0, np.float32)
        try:
            audio, _ = soundfile.read(BytesIO(row[1]), dtype="float32")
        except (soundfile.LibsndfileError, TypeError):  # TypeError: the column is not bytes
            audio = np.zeros((0, 0))
        if audio.shape == (row[0],):
            return np.asarray(audio)
        with self._transaction() as run:
            [number] = run("SELECT number FROM chunks WHERE key = ?", (key,)).fetchone() or ["?"]
            run("UPDATE sounds SET samples = NULL, flac = NULL WHERE key = ?", (key,))
        raise UserError(
            f"the sound of chunk {number} in {self.path} was damaged and is removed: run the command "
            "again to speak only this chunk"
        )

    def spoken(self, key: str) -> SpokenChunk:
        """Return the stored sound of a chunk, with its words and signals. Raises the errors of ``sound``."""
        return SpokenChunk(self.sound(key), words=self.words(key), signals=self.signals_of(key), stored=True)

    def words(self, key: str) -> list[SpokenWord]:
        """Return the words of a chunk, with times in seconds from the start of its sound.

        If nobody has timed the words, the result is empty.
        """
        row = self._row("SELECT words FROM sounds WHERE key = ?", key)
        return [SpokenWord(*word) for word in read_words(row[0], self.path)] if row and row[0] else []

    # Work

    def claim(self, plan: str) -> StoredChunk | None:
        """Reserve the first chunk that is not spoken and not reserved. Return ``None`` if there is no such chunk."""
        return self._claim(plan, "s.samples IS NULL")

    def recorded_outputs(self) -> list[tuple[str, int | None, str]]:
        """Return the SHA-256, the size and the name of every file that this job ever wrote as output.

        The size is in bytes, or ``None`` if it is not known.
        """
        with self._errors():
            rows = self._connection.execute("SELECT sha256, size, name FROM outputs").fetchall()
        # earlier versions stored only the hashes of the last run's files, by name
        return [*rows, *((digest, None, name) for name, digest in (self.fact("hashes") or {}).items())]

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
        """Store the sound of a chunk that this process reserved.

        If the lease (reservation) was lost, store nothing and return False.

        Args:
            audio: The sound, (S,) float32 from -1 to 1.
            rate: Sample rate in Hz.
            elapsed: Seconds that speaking the chunk took.
            words: The words, with times in seconds from the start of the sound.
            signals: The fields of ``ane.books.judging.ChunkSignals``.
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
        """Return the signals of every chunk's first sound, in the order of the chunks. Some chunks have no signals."""
        with self._errors():
            rows = self._connection.execute(
                "SELECT s.signals FROM chunks c JOIN sounds s USING (key) WHERE s.signals IS NOT NULL ORDER BY c.number"
            ).fetchall()
        return [read_fact("signals", row[0], self.path) for row in rows]

    def signals_of(self, key: str) -> dict[str, Any] | None:
        """Return the signals of a chunk's first sound, or ``None`` if a check replaced the sound or none are stored."""
        row = self._row("SELECT signals FROM sounds WHERE key = ? AND replaced IS NULL", key)
        return read_fact("signals", row[0], self.path) if row and row[0] else None

    def checked(self, checker: str) -> int:
        """Count the chunks that a checker has judged. For ``SOUND_ONLY``, count the chunks that any checker judged."""
        row = self._row(
            f"SELECT count(*) FROM chunks c JOIN sounds s USING (key) WHERE {JUDGED}", checker, SOUND_ONLY, checker
        )
        return int(row[0]) if row else 0

    def claim_check(self, plan: str, checker: str) -> StoredChunk | None:
        """Reserve the first spoken chunk that this checker has not judged.

        Return ``None`` if there is no such chunk.
        """
        return self._claim(plan, f"s.samples IS NOT NULL AND NOT {JUDGED}", checker, SOUND_ONLY, checker)

    def save_check(self, claimed: StoredChunk, checker: str, best: SpokenChunk, rate: int) -> bool:
        """Store the best sound of a chunk, and its problems.

        If the lease (reservation) was lost, store nothing and return False.
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

    def second_connection(self) -> "JobStore":
        """Open a second connection of this process, for use in another thread."""
        other = JobStore(self.path, self.clock)
        other.owner = self.owner
        return other

    def _claim(self, plan: str, condition: str, *values: str) -> StoredChunk | None:
        """Reserve the first chunk that meets a condition and is not reserved.

        Return ``None`` if there is no such chunk.

        Args:
            plan: Digest of the plan that this process is working on.
            condition: Condition on a chunk, in SQL.
            values: Values for the placeholders in the condition.

        Raises:
            UserError: Another process has since changed the plan of the job.
        """
        with self._transaction() as run:
            stored = run("SELECT value FROM facts WHERE name = 'plan'").fetchone()
            if stored is None or json.loads(stored[0]) != plan:
                raise UserError(
                    f"another process has since changed the text, voice or settings of the job in {self.path}, so "
                    "this one stops: run the command again when it is done"
                )
            self._drop_dead_leases(run)
            row = run(f"{CHUNKS} WHERE l.key IS NULL AND {condition} ORDER BY c.number LIMIT 1", values).fetchone()
            if row is None:
                return None
            claimed = self._stored(row)
            self._lease(run, claimed.chunk.key)
        return claimed


def set_fact(run: Callable[..., sqlite3.Cursor], name: str, value: Any) -> None:
    run("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value, default=str)))


def as_flac(audio: np.ndarray, rate: int) -> bytes:
    """Encode a sound (S,) as FLAC with 24 bits. Return no bytes if there are no samples."""
    flac = BytesIO()
    if len(audio):
        soundfile.write(flac, audio, rate, format="FLAC", subtype="PCM_24")
    return flac.getvalue()


def as_json(words: Sequence[SpokenWord]) -> str | None:
    return json.dumps([astuple(word) for word in words]) if words else None
