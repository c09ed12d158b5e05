"""Speak many texts, a data set of Ray Data, or a job of `ane read` on a Ray cluster.

Workers speak and check the chunks of a job, but only this process reads and writes the job.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ane.books.judging import BookNorms
from ane.books.narration import Narration, NarrationProgress, leases_renewed, sound_of
from ane.books.plan import BookPlan
from ane.books.retries import BookChecker, CheckProgress, chunks_to_check, judged, norms_of
from ane.books.speakers import BookSpeaker, SpokenChunk
from ane.books.store import JobStore, StoredChunk
from ane.cluster.workers import connected, map_on_workers, ray_module, worker_count
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ray.data import Dataset

SPEAK, CHECK = "speak", "check"


class BookWorker:
    """A worker's object, on its machine. Call it with ``SPEAK`` or ``CHECK`` and the arguments of that method."""

    def __init__(self, speaker: BookSpeaker, checker: BookChecker):
        self.speaker, self.checker = speaker, checker

    def __call__(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def speak(self, claimed: StoredChunk, count: int) -> tuple[SpokenChunk, float]:
        """Return the sound of a chunk, one of ``count``, and the seconds that it took."""
        started = time.perf_counter()
        spoken = sound_of(self.speaker, claimed, count)
        return spoken, time.perf_counter() - started

    def check(self, claimed: StoredChunk, sound: SpokenChunk, norms: BookNorms, count: int) -> SpokenChunk:
        return judged(claimed, sound, self.speaker, self.checker, norms, count)


def narrate_on_ray(
    store: JobStore,
    plan: BookPlan,
    make_worker: Callable[[], BookWorker],
    checker: BookChecker,
    sample_rate: int,
    progress: NarrationProgress,
    check_progress: CheckProgress,
    address: str | None,
    workers: int | None,
    threads: int,
) -> int:
    """Run ``narrate`` and then ``check_book`` with the workers of a cluster. Return the number of chunks spoken.

    A chunk has the same sound as on one machine.

    Args:
        store: The job.
        plan: The chunks of the book.
        make_worker: Function that a worker calls once, on its machine.
        checker: The checker that the workers use.
        sample_rate: Sample rate of the sound.
        progress, check_progress: Progress of speaking and of checking.
        address, workers, threads: As in ``ane.cluster.speak_many``.

    Raises:
        UserError: As ``narrate`` raises it. Also if there is no cluster, or Ray is not installed.
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


def calls_for(
    store: JobStore, plan: BookPlan, narration: Narration, checker: BookChecker, progress: CheckProgress
) -> Iterator[tuple[Any, ...] | None]:
    """Yield a call for every chunk without sound and then, when all have sound, for every unchecked chunk."""
    count = len(plan.chunks)
    for claimed in narration.chunks():
        yield claimed and (SPEAK, claimed, count)
    norms = norms_of(store)
    for claimed in chunks_to_check(store, plan, checker, progress):
        yield claimed and (CHECK, claimed, store.spoken(claimed.chunk.key), norms, count)


AHEAD = 64  # the most results that wait for an earlier one


def speak_many(
    texts: "Iterable[str] | Dataset",
    bundle: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    threads: int = 1,
    backend: str = "auto",
    precision: str = "auto",
    column: str = "text",
    **request: Any,
) -> Any:
    """Speak many texts, each as ``ane.load(bundle).speak(text, **request)`` does.

    Args:
        texts: An iterable of any length, or a ``ray.data.Dataset`` with the texts in ``column``. An iterable is read as
            workers become free, at most ``AHEAD`` texts beyond the first one that is not done.
        bundle, backend, precision: As in ``ane.load``. The bundle must be on every machine of the cluster.
        address: Address of the cluster (see ``connected``). A data set already has one.
        workers: Number of processes that hold the model. ``None`` means one per GPU or, without GPUs, one per
            ``threads`` processors of the cluster.
        threads: CPU threads of each worker.
        column: Column of a data set with the texts.
        request: Further arguments of ``speak``. With ``seed=``, the speech is the same as on one machine.

    Returns:
        For an iterable, an iterator over the speeches in order. For a data set, a data set with the further columns
            ``audio`` (samples, float32), ``sample_rate`` and ``seconds``. It is computed when it is read, with its rows
            in any order.

    Raises:
        UserError: A text cannot be spoken, there is no such model or cluster, or Ray is not installed. For a data set,
            Ray raises an error about a text when the data set is read.
    """
    make = partial(make_speaker, bundle, backend, precision, threads, request)
    if hasattr(texts, "map_batches"):
        if address is not None:
            raise UserError(
                "address has no effect on a data set, which is on a cluster already: leave it out", "address"
            )
        return speak_dataset(texts, make, column, workers, threads)
    return speak_texts(texts, make, address, workers, threads)


def speak_texts(
    texts: Iterable[str],
    make: Callable[[], Callable[[int, str], Any]],
    address: str | None,
    workers: int | None,
    threads: int,
) -> Iterator[Any]:
    with connected(address) as ray:
        waiting: dict[int, Any] = {}
        due = 0

        def calls() -> Iterator[tuple[int, str] | None]:
            for call in enumerate(texts):
                while len(waiting) >= AHEAD:
                    yield None
                yield call

        for (number, _), speech in map_on_workers(ray, make, calls(), workers, threads):
            waiting[number] = speech
            while due in waiting:
                yield waiting.pop(due)
                due += 1


class RowSpeaker:
    """A worker of Ray Data that adds the speech to a row."""

    def __init__(self, make: Callable[[], Callable[[int, str], Any]], column: str):
        self.speak, self.column = make(), column

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        speech = self.speak(0, row[self.column])
        return {**row, "audio": speech.audio, "sample_rate": speech.sample_rate, "seconds": speech.seconds}


def speak_dataset(
    dataset: "Dataset", make: Callable[[], Callable[[int, str], Any]], column: str, workers: int | None, threads: int
) -> "Dataset":
    """Return the data set with the speech of its texts.

    Ray Data starts the workers when the data set is read, and starts others if it loses some.
    """
    workers, gpus = worker_count(ray_module(), workers, threads)
    return dataset.map(
        RowSpeaker, fn_constructor_args=(make, column), concurrency=workers, num_cpus=threads, num_gpus=gpus
    )


def make_speaker(
    bundle: str | None, backend: str, precision: str, threads: int, request: dict[str, Any]
) -> Callable[[int, str], Any]:
    """Return the function (number, text) → speech that a worker calls."""
    import ane

    synthesizer = ane.load(bundle, backend, precision, threads, keep=True)
    return lambda number, text: synthesizer.speak(text, **request)
