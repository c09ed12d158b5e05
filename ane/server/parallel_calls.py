"""Network calls on threads of their own, so that the calls of several requests run at a time.

Each call has a fixed number of CPU threads, whatever else runs, because a convolution on another number of threads
rounds otherwise. Decoders stay on the engine's thread, with all CPU threads: they serve all requests in each step, and
their bits depend on no number of threads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from ane.backends.base import Backend, Decoder
from ane.backends.denoising import Denoiser
from ane.backends.torch.backend import TorchBackend
from ane.system.errors import UserError


class CallThreads:
    """Threads for network calls. All methods are for the engine's thread.

    Args:
        count: calls at a time. cpu_threads: of each.
        on_end: called on any thread when a call has ended.
    """

    def __init__(self, count: int, cpu_threads: int, on_end: Callable[[], None]):
        self._count, self.cpu_threads, self._on_end = count, cpu_threads, on_end
        self._running: list[Future] = []
        self._executor = ThreadPoolExecutor(count, "network-call", torch.set_num_threads, (cpu_threads,))

    def has_room(self) -> bool:
        """Whether a call would begin at once."""
        self._running = [call for call in self._running if not call.done()]
        return len(self._running) < self._count

    def submit(self, call: Callable[[], Any]) -> Future:
        future = self._executor.submit(call)
        self._running.append(future)
        future.add_done_callback(lambda _: self._on_end())
        return future

    def close(self) -> None:
        self._executor.shutdown()


class CallRunner(Protocol):
    """Runs a network call and returns its result, or raises its error."""

    def __call__(self, call: Callable[[], Any], if_abandoned: Callable[[], None] = ...) -> Any:
        """``if_abandoned``: called after the call if nobody waits for its result any more."""


class ParallelBackend(Backend):
    """torch on the CPU, whose stages and denoisers are run by ``run_call``."""

    returns_attention = True

    def __init__(self, backend: TorchBackend, run_call: Callable[[Callable[[], Any]], Any]):
        self._backend, self._run_call, self.name = backend, run_call, backend.name

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        return self._run_call(partial(self._backend.run, stage, **inputs))

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        bound = self._run_call(partial(self._backend.denoiser, latents, conditioning, frames))
        return ParallelDenoiser(bound, self._run_call)

    def align(self, columns: np.ndarray, memory: np.ndarray,
              heads: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        return self._run_call(partial(self._backend.align, columns, memory, heads))

    def prefix_attention(self, columns: np.ndarray, prefix: int, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        return self._run_call(partial(self._backend.prefix_attention, columns, prefix, heads))

    def embeddings(self) -> dict[str, np.ndarray]:
        return self._backend.embeddings()

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        return self._backend.decoder(lanes, capacity, prefixes, max_prefix_length)

    def load(self, *networks: str) -> None:
        self._backend.load(*networks)

    def release(self, *networks: str) -> None:
        self._backend.release(*networks)


class ParallelDenoiser(Denoiser):
    """A denoiser whose network calls are run by ``run_call``."""

    def __init__(self, bound: Denoiser, run_call: Callable[[Callable[[], Any]], Any]):
        self._bound, self._run_call = bound, run_call

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        return self._run_call(partial(self._bound, x, timestep, guided))


def calls_at_a_time(wanted: int | None, cpu_threads: int) -> int:
    """How many network calls run at a time; None: two, where there are threads for them.

    Raises:
        UserError: more than there are CPU threads.
    """
    if wanted is not None and wanted > cpu_threads:
        raise UserError(f"calls must be at most the number of CPU threads, {cpu_threads}, got {wanted}")
    return wanted or min(2, cpu_threads)
