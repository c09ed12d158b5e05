"""Start worker processes on a Ray cluster, and distribute calls to them. Each worker holds a model.

If a worker is lost, Ray (Apache-2.0) starts it again.
"""

import importlib.util
import math
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ane.system.errors import UserError
from ane.system.reports import switch_off_reports

CONNECT_S = 5.0
TRIES = 2  # how many times to repeat a call whose worker dies
MISSING = "Ray is not installed: pip install '.[ray]'"


class Worker:
    """Holds a function in a process of the cluster. ``call`` runs this function.

    Args:
        make: Function that returns the function to hold. It may be slow, because each worker calls it only once.
    """

    def __init__(self, make: Callable[[], Callable[..., Any]]):
        self.function = make()

    def call(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to a cluster for the duration of the block, and yield the module ``ray``.

    Args:
        address: Address of the cluster, or "auto" to find it. ``None`` means a new cluster that consists of this
            machine and ends with the block.

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
    switch_off_reports()
    import ray

    return ray


def check_reachable(address: str) -> None:
    """Raise UserError unless a program listens at HOST:PORT. Ray would try for minutes, and then end the process."""
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
    """Run calls on the workers of a cluster, and yield each result as soon as it is ready.

    A worker runs ``make()(*arguments)`` for a call. If the cluster loses a worker, another worker repeats the call, at
    most ``TRIES`` times. Closing the iterator ends the work.

    Args:
        ray: Module ``ray``, connected to the cluster.
        make: Function that returns the function to call. Every worker calls it once, on its machine.
        calls: Arguments of each call. The function reads this iterable whenever a worker is free. ``None`` instead of
            arguments means that the next call depends on calls that are still running.
        workers: Number of workers. ``None`` means one per GPU or, if there are no GPUs, one per ``threads`` processors.
        threads: Number of processors per worker.

    Yields:
        The arguments of a call, and its result.

    Raises:
        UserError: A call has raised it, a worker cannot start or dies again and again, or the cluster has no room.
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
    """Return the number of workers to start, and the number of GPUs per worker.

    Args:
        ray: Module ``ray``, connected to the cluster.
        workers: Number of workers that the user wants. ``None`` means as many as there is room for.
        threads: Number of processors per worker.

    Raises:
        UserError: The cluster has no room for these workers now. Ray would wait forever for more machines.
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
    """Wait for a call and return its result.

    If the call raised UserError, raise it here. Ray reports all other errors.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise
    except ray.exceptions.RayActorError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"a worker of the cluster died {TRIES + 1} times, or could not start: {reason}") from error
