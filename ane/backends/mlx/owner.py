"""Run all work of MLX on a single thread of the process.

Since version 0.31.2, MLX has a stream of computations for each thread. Other threads cannot use an array before the
stream of its thread has evaluated it. One thread, the *owner*, therefore computes everything, and callers wait for its
results.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from ane.system.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")
OUT_OF_MEMORY = ("[malloc", "out of memory", "Insufficient Memory")  # text in MLX's errors if memory runs out


@cache
def owner() -> ThreadPoolExecutor:
    """Return the executor of MLX's only thread (the owner). The thread starts when it gets its first work."""
    return ThreadPoolExecutor(1, "mlx")


def on_owner(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it runs on MLX's only thread (the owner), while the caller waits for the result.

    The decorated function raises UserError if memory runs out.
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
    """Return "gpu" if MLX computes on Apple's GPU, and otherwise "cpu"."""
    from mlx import core as mx

    return "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"
