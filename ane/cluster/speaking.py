"""Many texts on a Ray cluster."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from ane.cluster.workers import connected, map_on_workers

AHEAD = 64              # results that wait for an earlier one


def speak_many(texts: Iterable[str], bundle: str | None = None, address: str | None = None,
               workers: int | None = None, threads: int = 1, backend: str = "auto", precision: str = "auto",
               **request: Any) -> Iterator[Any]:
    """Yield each text's speech in order, as ``ane.load(bundle).speak(text, **request)`` returns it.

    Args:
        texts: of any number, read as workers become free, at most ``AHEAD`` beyond the first that is not done.
        bundle, backend, precision: as of ``ane.load``; the bundle must be on every machine of the cluster.
        address: of the cluster (``connected``). workers: processes that hold the model; None: one a GPU, else one for
            each ``threads`` processors of the cluster. threads: CPU threads of each.
        request: further arguments of ``speak``; with ``seed=`` the speech is that of one machine.

    Raises:
        UserError: a text cannot be spoken, there is no such model or cluster, or Ray is not installed.
    """
    with connected(address) as ray:
        make = partial(make_speaker, bundle, backend, precision, threads, request)
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


def make_speaker(bundle: str | None, backend: str, precision: str, threads: int,
                 request: dict[str, Any]) -> Callable[[int, str], Any]:
    """What a worker calls: (number, text) → speech."""
    import ane

    synthesizer = ane.load(bundle, backend, precision, threads, keep=True)
    return lambda number, text: synthesizer.speak(text, **request)
