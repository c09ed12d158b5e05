"""A job of `ane read` on a Ray cluster: its workers speak and check, this process alone reads and writes the job."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from ane.books.checking.judging import BookNorms
from ane.books.checking.retries import (
    BookChecker,
    CheckProgress,
    SoundToCheck,
    chunks_to_check,
    judged,
    norms_of,
    sound_to_check,
)
from ane.books.narration import Narration, NarrationProgress, leases_renewed, sound_of
from ane.books.plan import BookPlan
from ane.books.speakers import BookSpeaker, SpokenChunk
from ane.books.store import CheckedChunk, ClaimedChunk, JobStore
from ane.cluster.workers import connected, map_on_workers

SPEAK, CHECK = "speak", "check"


class BookWorker:
    """What a worker holds, on its machine: called with ``SPEAK`` or ``CHECK`` and the arguments of that method."""

    def __init__(self, speaker: BookSpeaker, checker: BookChecker):
        self.speaker, self.checker = speaker, checker

    def __call__(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def speak(self, claimed: ClaimedChunk, count: int) -> tuple[SpokenChunk, float]:
        """A chunk's sound, of ``count`` chunks, and the seconds that it took."""
        started = time.perf_counter()
        spoken = sound_of(self.speaker, claimed, count)
        return spoken, time.perf_counter() - started

    def check(self, claimed: ClaimedChunk, sound: SoundToCheck, norms: BookNorms, count: int) -> CheckedChunk:
        """``ane.books.checking.retries.judged``: what is wrong with a sound, and a better one."""
        return judged(claimed, sound, self.speaker, self.checker, norms, count)


def narrate_on_ray(store: JobStore, plan: BookPlan, make_worker: Callable[[], BookWorker], checker: BookChecker,
                   sample_rate: int, progress: NarrationProgress, check_progress: CheckProgress, address: str | None,
                   workers: int | None, threads: int) -> int:
    """``narrate`` and then ``check_book`` with the workers of a cluster. A chunk has the sound that one machine gives
    it. Returns the number of chunks spoken.

    Args:
        checker: that of the workers. sample_rate: of the sound.
        address, workers, threads: as of ``ane.cluster.speak_many``.

    Raises:
        UserError: as ``narrate``; there is no cluster, or Ray is not installed.
    """
    narration = Narration(store, plan, progress)
    with leases_renewed(store), connected(address) as ray:
        calls = calls_for(store, plan, narration, checker, check_progress)
        for (method, claimed, *_), result in map_on_workers(ray, make_worker, calls, workers, threads):
            if method == SPEAK:
                chunk, seconds = result
                narration.keep(claimed, chunk, sample_rate, seconds)
            else:
                store.save_check(claimed, checker.name, result, sample_rate)
    return narration.spoken


def calls_for(store: JobStore, plan: BookPlan, narration: Narration, checker: BookChecker,
              progress: CheckProgress) -> Iterator[tuple[Any, ...] | None]:
    """First every chunk that has no sound; when all have one, every chunk that was not checked."""
    count = len(plan.chunks)
    for claimed in narration.chunks():
        yield claimed and (SPEAK, claimed, count)
    norms = norms_of(store)
    for claimed in chunks_to_check(store, plan, checker, progress):
        yield claimed and (CHECK, claimed, sound_to_check(store, claimed), norms, count)
