"""Speak many texts, a Ray Data data set, or a job (book) of `ane read` on a Ray cluster.

Worker processes on the cluster speak and check the chunks of a job. Only this process reads and writes the job's files.
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
from ane.system.errors import NoEffectError

if TYPE_CHECKING:
    from ray.data import Dataset

SPEAK, CHECK = "speak", "check"


class BookWorker:
    """The object with which a worker speaks and checks chunks.

    Call it with ``SPEAK`` or ``CHECK``, which are the names of its methods, and with the arguments of that method.
    """

    def __init__(self, speaker: BookSpeaker, checker: BookChecker):
        self.speaker, self.checker = speaker, checker

    def __call__(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def speak(self, claimed: StoredChunk, count: int) -> tuple[SpokenChunk, float]:
        """Speak a chunk. Return its sound and the seconds of work.

        Args:
            claimed: The chunk.
            count: Number of chunks in the book.
        """
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
    """Speak and then check a book on the workers of a cluster, and return the number of chunks that they have spoken.

    The workers do the same work as ``narrate`` and ``check_book``. A chunk has the same sound as on one machine.

    Args:
        store: Job of the book.
        plan: Chunks of the book.
        make_worker: Function that makes the worker's object. Every worker calls it once, on its machine.
        checker: Checker that the workers use.
        sample_rate: Samples per second of the sound.
        progress, check_progress: Objects that report the progress of speaking and checking.
        address, workers, threads: See ``ane.cluster.speak_many``.

    Raises:
        UserError: ``narrate`` or ``check_book`` would raise it, there is no cluster, or Ray is not installed.
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
    """Yield the calls for a book's workers: first speak all chunks that have no sound, then check unchecked chunks."""
    count = len(plan.chunks)
    for claimed in narration.chunks():
        yield claimed and (SPEAK, claimed, count)
    norms = norms_of(store)
    for claimed in chunks_to_check(store, plan, checker, progress):
        yield claimed and (CHECK, claimed, store.spoken(claimed.chunk.key), norms, count)


AHEAD = 64  # at most this many results wait until an earlier result is ready


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
    """Speak many texts on a cluster. Every speech is the same as from ``ane.load(bundle).speak(text, **request)``.

    Args:
        texts: Iterable of texts, of any length, or a ``ray.data.Dataset`` with the texts in ``column``. The function
            reads an iterable when workers become free, but at most ``AHEAD`` texts beyond the first unfinished text.
        bundle, backend, precision: See ``ane.load``. The bundle must be on every machine of the cluster.
        address: Address of the cluster (see ``connected``). Leave it out for a data set, which is already on a cluster.
        workers: Number of processes that load the model. ``None`` means one per GPU or, if there are no GPUs, one per
            ``threads`` processors of the cluster.
        threads: Number of CPU threads per worker.
        column: Column of the data set that has the texts.
        request: Other arguments of ``speak``. If you pass ``seed``, the speech is the same as on one machine.

    Returns:
        For an iterable, an iterator over the speeches in the order of the texts. For a data set, a data set with three
        more columns: ``audio`` (float32 samples), ``sample_rate`` and ``seconds``. Ray Data computes this data set when
        you read it, and its rows may come in any order.

    Raises:
        UserError: A text cannot be spoken, there is no such model or cluster, or Ray is not installed. If a text in a
            data set cannot be spoken, Ray raises an error when you read the returned data set.
    """
    make = partial(make_speaker, bundle, backend, precision, threads, request)
    if hasattr(texts, "map_batches"):
        if address is not None:
            raise NoEffectError("address", "on a data set, which is on a cluster already", "leave it out")
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
    """Speaks the text in each row of a data set, and adds the sound to the row.

    Every worker of Ray Data has one speaker.
    """

    def __init__(self, make: Callable[[], Callable[[int, str], Any]], column: str):
        self.speak, self.column = make(), column

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        speech = self.speak(0, row[self.column])
        return {**row, "audio": speech.audio, "sample_rate": speech.sample_rate, "seconds": speech.seconds}


def speak_dataset(
    dataset: "Dataset", make: Callable[[], Callable[[int, str], Any]], column: str, workers: int | None, threads: int
) -> "Dataset":
    """Return a data set that adds the speech of its texts to ``dataset``.

    Ray Data starts the workers when you read the returned data set. If a worker is lost, Ray Data starts another one.
    """
    workers, gpus = worker_count(ray_module(), workers, threads)
    return dataset.map(
        RowSpeaker, fn_constructor_args=(make, column), concurrency=workers, num_cpus=threads, num_gpus=gpus
    )


def make_speaker(
    bundle: str | None, backend: str, precision: str, threads: int, request: dict[str, Any]
) -> Callable[[int, str], Any]:
    """Load the model in a worker. Return a function that takes a text's number and the text, and speaks the text."""
    import ane

    synthesizer = ane.load(bundle, backend, precision, threads, keep=True)
    return lambda number, text: synthesizer.speak(text, **request)
