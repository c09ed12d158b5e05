"""A job of `ane read` on a Ray cluster: its workers speak, this process alone reads and writes the job."""

import time
from collections.abc import Callable
from functools import partial

from ane.books.narration import Narration, NarrationProgress, leases_renewed, sound_of
from ane.books.plan import BookPlan
from ane.books.speakers import BookSpeaker, SpokenChunk
from ane.books.store import ClaimedChunk, JobStore
from ane.cluster.workers import connected, map_on_workers

MakeSpeaker = Callable[[], BookSpeaker]


def narrate_on_ray(store: JobStore, plan: BookPlan, make_speaker: MakeSpeaker, sample_rate: int,
                   progress: NarrationProgress, address: str | None, workers: int | None, threads: int) -> int:
    """``narrate`` with the workers of a cluster. A chunk has the sound that one machine gives it.

    Args:
        make_speaker: makes a worker's speaker, on its machine. sample_rate: of the speaker's sound.
        address, workers, threads: as of ``ane.cluster.speak_many``.

    Raises:
        UserError: as ``narrate``; there is no cluster, or Ray is not installed.
    """
    narration = Narration(store, plan, progress)
    with leases_renewed(store), connected(address) as ray:
        calls = (claimed and (claimed, len(plan.chunks)) for claimed in narration.chunks())
        for (claimed, _), (chunk, seconds) in map_on_workers(ray, partial(make_call, make_speaker), calls, workers,
                                                             threads):
            narration.keep(claimed, chunk, sample_rate, seconds)
    return narration.spoken


def make_call(make_speaker: MakeSpeaker) -> Callable[..., tuple[SpokenChunk, float]]:
    """What a worker calls: (chunk, number of chunks) → its sound, and the seconds that it took."""
    speaker = make_speaker()

    def speak(claimed: ClaimedChunk, count: int) -> tuple[SpokenChunk, float]:
        started = time.perf_counter()
        spoken = sound_of(speaker, claimed, count)
        return spoken, time.perf_counter() - started

    return speak
