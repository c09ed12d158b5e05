"""Speak the chunks of a job one by one, alone or together with other processes that work on the same job."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace

import numpy as np

from ane.audio import trimming
from ane.books.job_leases import LEASE
from ane.books.judging import ChunkSignals
from ane.books.plan import BookPlan
from ane.books.speakers import BookSpeaker, SpokenChunk
from ane.books.store import JobStore, StoredChunk
from ane.speech.words import delivered_words
from ane.system.errors import UserError
from ane.text import NothingToSayError, shorten

BREATH = 0.05  # seconds of silence that trimming leaves before and after the speech of a chunk
POLL = 0.25  # seconds between two checks for the end of another process's work

# takes the number of chunks done, the number of all chunks, and the estimated seconds left (``None`` if not known)
NarrationProgress = Callable[[int, int, float | None], None]


class Narration:
    """The work of one process on a job. It reserves chunks, stores their sounds, and reports progress."""

    def __init__(
        self, store: JobStore, plan: BookPlan, progress: NarrationProgress, clock: Callable[[], float] = time.monotonic
    ):
        self.store, self.plan, self._progress, self._clock = store, plan, progress, clock
        self.spoken = self._characters = 0
        self._began = clock()

    def chunks(self) -> Iterator[StoredChunk | None]:
        """Reserve and yield the chunks that have no sound.

        Yield ``None`` while other processes speak the last chunks.
        """
        while True:
            claimed = self.store.claim(self.plan.digest)
            if claimed is None:
                done, total, _ = self.store.progress()
                if done == total:
                    self._progress(done, total, 0.0)
                    return
                time.sleep(POLL)
            yield claimed

    def keep(self, claimed: StoredChunk, chunk: SpokenChunk, rate: int, seconds: float) -> None:
        """Store the sound of a chunk.

        Args:
            rate: Sample rate in Hz.
            seconds: Seconds that speaking the chunk took.
        """
        self.store.save(
            claimed,
            chunk.audio,
            rate,
            seconds,
            chunk.notes,
            chunk.words,
            asdict(ChunkSignals.of(claimed.chunk.text, chunk, rate)),
        )
        self.spoken += 1
        done, total, left = self.store.progress()
        if self.spoken == 1:  # the time of the first chunk includes loading the networks
            self._began = self._clock()
            self._progress(done, total, None if left else 0.0)
            return
        self._characters += len(claimed.chunk.text)
        self._progress(done, total, left * (self._clock() - self._began) / self._characters)


def narrate(
    store: JobStore,
    plan: BookPlan,
    speaker: BookSpeaker,
    progress: NarrationProgress,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Speak every chunk that has no sound yet, and wait for the chunks that other processes speak.

    Returns:
        Number of chunks that this process spoke.

    Raises:
        UserError: A chunk cannot be spoken, another process changed the plan, or the store cannot be written.
    """
    narration = Narration(store, plan, progress, clock)
    with leases_renewed(store):
        for claimed in narration.chunks():
            if claimed is not None:
                started = time.perf_counter()
                chunk = sound_of(speaker, claimed, len(plan.chunks))
                narration.keep(claimed, chunk, speaker.sample_rate, time.perf_counter() - started)
    return narration.spoken


def sound_of(speaker: BookSpeaker, claimed: StoredChunk, count: int, seed: int | None = None) -> SpokenChunk:
    """Speak a chunk, and trim the silence at its ends to ``BREATH``.

    If the text has no letter that the voice can speak, the sound is empty and has a warning.

    Args:
        count: Number of chunks in the book, for messages.
        seed: Seed to speak with. ``None`` means the chunk's seed.
    """
    chunk = claimed.chunk
    try:
        speech = speaker.speak(chunk.text, claimed.seed if seed is None else seed, chunk.voice)
        if not np.isfinite(speech.audio).all():
            raise UserError("its sound has NaN or infinite samples: check the voice, the weights and the precision")
    except NothingToSayError:
        speech = SpokenChunk(np.zeros(0, np.float32), ["it was left out: it has no letter that the voice can speak"])
    except UserError as error:
        raise UserError(f"chunk {chunk.number} of {count}, {shorten(chunk.text)!r}: {error}") from error
    if not len(speech.audio):
        return speech
    edge = BREATH * speaker.sample_rate / trimming.RATE
    trimmer = trimming.Trimmer(edge, edge)
    audio = np.concatenate((trimmer.feed(np.clip(speech.audio, -1, 1).astype(np.float32)), trimmer.finish()))
    return replace(
        speech,
        audio=audio,
        words=delivered_words(
            speech.words, trimmer.removed / speaker.sample_rate, len(audio) / speaker.sample_rate, 0.0
        ),
    )


@contextmanager
def leases_renewed(store: JobStore) -> Iterator[None]:
    """Renew this process's leases (reservations of chunks) from a thread until the ``with`` block ends.

    Then give up the leases.
    """
    ended = threading.Event()

    def renew() -> None:
        other: JobStore | None = None
        while not ended.wait(LEASE / 4):
            with suppress(UserError):  # the ``with`` block reports an error of the store
                other = other or store.second_connection()
                other.renew()
        if other is not None:
            other.close()

    thread = threading.Thread(target=renew, name="leases", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(UserError):
            store.release()
