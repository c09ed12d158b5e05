"""Processes of a Ray cluster that each hold a model. Ray (Apache-2.0) starts them again where one is lost."""

import importlib.util
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ane.system.errors import UserError

CONNECT_S = 5.0
TRIES = 2  # repetitions of a call whose worker dies
MISSING = "Ray is not installed: pip install '.[ray]'"


class Worker:
    """What a process does: makes its function once, which loads a model, and calls it again and again."""

    def __init__(self, make: Callable[[], Callable[..., Any]]):
        self.function = make()

    def call(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module ``ray``, connected to a cluster while the block lasts.

    Args:
        address: "auto", or the cluster's address; None: a cluster of this machine alone, which ends with the block.

    Raises:
        UserError: Ray is not installed, or there is no cluster.
    """
    ray = ray_module()
    if address not in (None, "auto"):
        check_reachable(address)
    try:
        ray.init(
            address="local" if address is None else address,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, ValueError) as error:
        raise UserError(
            f"cannot connect to the Ray cluster {address or 'of this machine'}: {str(error).splitlines()[0]}"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def ray_module() -> Any:
    if importlib.util.find_spec("ray") is None:
        raise UserError(MISSING)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports its use to its makers
    import ray

    return ray


def check_reachable(address: str) -> None:
    """Raise UserError unless something listens at HOST:PORT: Ray itself tries for minutes, then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"cannot connect to the Ray cluster {address!r}: {error}; give HOST:PORT of `ray start --head`, or auto"
        ) from error


def map_on_workers(
    ray: Any,
    make: Callable[[], Callable[..., Any]],
    calls: Iterable[tuple[Any, ...] | None],
    workers: int | None,
    threads: int = 1,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Call ``make()(*arguments)`` on workers for each of ``calls``; yield the arguments and the result as they end.

    A call of a lost worker is repeated, ``TRIES`` times at most. ``calls`` is read when a worker is free; None means
    that no call is known now, so that what runs is waited for first; an iterator that ends ends the work.

    Args:
        workers: their number; None: one for each GPU of the cluster, else one for each ``threads`` of its processors.

    Raises:
        UserError: raised by a call; a worker that cannot start, or dies again and again; no room in the cluster.
    """
    workers, gpus = worker_count(ray, workers, threads)
    actor = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=-1, max_task_retries=TRIES)(Worker)
    waiting = iter(calls)
    idle = [actor.remote(make) for _ in range(workers)]
    running: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
    ended = False
    while not ended or running:
        while idle and not ended:
            arguments = next(waiting, ...)
            ended = arguments is ...
            if ended or arguments is None:
                break
            free = idle.pop()
            running[free.call.remote(*arguments)] = free, arguments  # type: ignore[assignment]
        if running:
            for reference in ray.wait(list(running), num_returns=1)[0]:
                free, arguments = running.pop(reference)
                idle.append(free)
                yield arguments, result_of(ray, reference)


def worker_count(ray: Any, workers: int | None, threads: int) -> tuple[int, int]:
    """How many workers of so many threads there are, and the GPUs of each. UserError: more than there is room for now,
    where Ray would wait for more machines for ever.
    """
    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    on_gpus = any(machine.get("GPU") for machine in machines)
    room = sum(
        int(min(machine.get("CPU", 0) // threads, machine.get("GPU", 0) if on_gpus else math.inf))
        for machine in machines
    )
    if not 1 <= (workers or room) <= room:
        raise UserError(
            f"the cluster has room for {room} workers of {threads} threads"
            + " with a GPU" * on_gpus
            + f", not for {workers or 'one'}: choose fewer with workers or threads, or add machines"
        )
    return workers or room, int(on_gpus)


def result_of(ray: Any, reference: Any) -> Any:
    """The result of a call. Raises UserError when the call did, and any other error of the call as Ray reports it."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise
    except ray.exceptions.RayActorError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"a worker of the cluster died {TRIES + 1} times, or could not start: {reason}") from error
