"""Start the processes of a Ray cluster that each hold a model.

Ray (Apache-2.0) restarts a process that is lost.
"""

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
    """Holds a function in a process of the cluster.

    ``make`` returns the function. It is called only once, because it loads a model. ``call`` then runs the function as
    often as needed.
    """

    def __init__(self, make: Callable[[], Callable[..., Any]]):
        self.function = make()

    def call(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yield the module ``ray``, connected to a cluster while the block lasts.

    Args:
        address: "auto", or the cluster's address. ``None`` means a cluster that has only this machine and ends with the
            block.

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
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray reports its use to its makers
    import ray

    return ray


def check_reachable(address: str) -> None:
    """Raise UserError unless a program listens at HOST:PORT. Ray itself tries for minutes, then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"cannot connect to the Ray cluster {address!r} ({error}): give HOST:PORT of `ray start --head`, or auto"
        ) from error


def map_on_workers(
    ray: Any,
    make: Callable[[], Callable[..., Any]],
    calls: Iterable[tuple[Any, ...] | None],
    workers: int | None,
    threads: int = 1,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Call ``make()(*arguments)`` on workers for each of ``calls``. Yield the arguments and the result as calls end.

    If a worker is lost, its call is repeated, at most ``TRIES`` times. ``calls`` is read when a worker is free. An
    entry ``None`` means that no call is known yet, so that the running calls are waited for first. The work ends with
    the iterator.

    Args:
        ray: The module ``ray``, connected to the cluster.
        make: Function that each worker calls once, on its machine.
        calls: The arguments of each call.
        workers: Number of workers. ``None`` means one per GPU or, without GPUs, one per ``threads`` processors.
        threads: Processors per worker.

    Raises:
        UserError: A call raised it, a worker cannot start or dies again and again, or the cluster has no room.
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
    """Return how many workers with so many threads there are, and how many GPUs each one takes.

    Raises UserError if there is no room for them now, because Ray would wait forever for more machines.
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
    """Return the result of a call. Raises UserError if the call did, and any other error as Ray reports it."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise
    except ray.exceptions.RayActorError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"a worker of the cluster died {TRIES + 1} times, or could not start: {reason}") from error
