"""Run all MLX work on one thread.

MLX has a stream for each thread (since 0.31.2). An array that one thread's stream made cannot be used from another
thread before it is evaluated. So one thread of the process owns all arrays, and callers wait for it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from ane.system.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")
OUT_OF_MEMORY = ("[malloc", "out of memory", "Insufficient Memory")  # parts of MLX's messages


@cache
def owner() -> ThreadPoolExecutor:
    """Return the executor of the owning thread, which starts with its first work."""
    return ThreadPoolExecutor(1, "mlx")


def on_owner(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function run on the owning thread, and wait for its result.

    Raises:
        UserError: No memory is left.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if threading.current_thread().name.startswith("mlx_"):
            return function(*args, **kwargs)
        try:
            return owner().submit(function, *args, **kwargs).result()
        except RuntimeError as error:
            if any(part in str(error) for part in OUT_OF_MEMORY):
                raise UserError(
                    f"not enough memory for MLX ({error}): use fewer candidates or lanes, or a smaller "
                    "precision such as 8bit"
                ) from error
            raise

    return call


def device_name() -> str:
    """Return "gpu" if MLX computes on Apple's GPU, or "cpu" otherwise."""
    from mlx import core as mx

    return "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"
