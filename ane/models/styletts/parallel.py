"""Chunks computed by several threads at once, their results in order.

At most ``workers`` chunks are computed at any time, since each needs the memory of one run. A single chunk, or a single
worker, takes no thread.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from ane.system.errors import UserError
from ane.system.machine import usable_cores

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Parallelism:
    """How chunks share the cores.

    Attributes:
        workers: chunks computed at once; None: one per core.
        threads: cores for each; None: one each where several are computed at once, else all.
    """

    workers: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("threads", self.threads)):
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, got {value}", name)

    def workers_for(self, chunks: int) -> int:
        """Workers for that many chunks: no more than there are chunks or cores."""
        cores = usable_cores()
        return max(1, min(chunks, self.workers or cores, cores))

    def threads_for(self, workers: int) -> int | None:
        """Threads of a session for that many workers; None: ONNX Runtime's choice."""
        return self.threads or (1 if workers > 1 else None)


def compute_in_order(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """Yield ``function`` of each item as soon as it and those before it are computed.

    The next ``workers`` items are computed ahead, also while the caller handles a result, and no more. When the
    generator is closed or an item fails, the items that have not begun are cancelled.
    """
    if workers == 1 or len(items) < 2:
        yield from map(function, items)
        return
    with _pool(workers) as pool:
        ahead: deque[Future[R]] = deque(pool.submit(function, item) for item in items[:workers])
        try:
            for item in items[workers:]:
                result = ahead.popleft().result()
                ahead.append(pool.submit(function, item))
                yield result
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _pool(workers: int) -> ThreadPoolExecutor:
    """A pool of the call's own: in a shared one, a function that itself computes items could wait for ever."""
    return ThreadPoolExecutor(workers, thread_name_prefix="chunk")
