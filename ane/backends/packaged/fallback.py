"""Keep speaking when an engine cannot run a function: run it or its network on other compute units or in torch.

A decoder or denoiser is bound to an utterance and keeps a state between calls. If a call fails, the backend chooses
another place for the function, binds the decoder or denoiser again, and repeats the call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ane.backends.decoding import Decoder
from ane.backends.denoising import Denoiser
from ane.backends.packaged.functions import EngineRefusalError, Runtime
from ane.bundles.package_records import COMPUTE_UNITS, PackageRecord
from ane.system.errors import UserError

CPU, GPU, NEURAL_ENGINE, ALL = COMPUTE_UNITS
NEXT_UNITS = {ALL: GPU, NEURAL_ENGINE: GPU, GPU: CPU}  # compute units that failed → compute units to try next
ON_A_STATE = "state", "store"  # kinds of functions that "step" can replace, with the kv-cache on the host

Bind = Callable[[], Any]
MoveOn = Callable[[UserError], None]


class PlacementPolicy:
    """Decides on which compute units each function of a package runs.

    Args:
        package: The package.
        runtime: Runtime that runs the functions.
        chosen: Compute units to use first. ``None`` means that ``Runtime.default_units`` chooses, given the units that
            the package names.

    Attributes:
        by_function: Compute units by function name, for the functions that are still in use.
    """

    def __init__(self, package: PackageRecord, runtime: Runtime, chosen: str | None = None):
        self.package, self.runtime = package, runtime
        self.by_function = dict.fromkeys(package.functions, chosen or runtime.default_units(package.compute_units))

    def of_kind(self, *kinds: str) -> list[str]:
        """List the functions of these kinds that are still in use, by name."""
        return [name for name in self.by_function if self.package.functions[name].kind in kinds]

    def replaces_state(self, error: UserError) -> bool:
        """Return whether the failed function needs a Core ML state, and the host can keep the kv-cache instead."""
        name = getattr(error, "function", "")
        return name in self.of_kind(*ON_A_STATE) and bool(self.of_kind("step"))

    def refuse(self, error: UserError) -> str:
        """Choose a replacement for the function that failed with ``error``.

        Returns:
            A sentence about the replacement, for a log line. "" means that nothing in the package replaces the
            function.
        """
        name = error.function if isinstance(error, EngineRefusalError) and not error.on_all_units else ""
        if name not in self.by_function:
            return ""
        kind, steps = self.package.functions[name].kind, self.of_kind("step")
        if kind in ON_A_STATE and steps:
            for unused in self.of_kind(*ON_A_STATE):
                del self.by_function[unused]
            return (
                f"Running decoder steps with the kv-cache on the host, such as {steps[0]}, "
                f"on {self.by_function[steps[0]]}"
            )
        if self.by_function[name] == CPU:
            return ""
        units = self.runtime.default_units(NEXT_UNITS[self.by_function[name]])
        moved = self.of_kind(*ON_A_STATE) if kind in ON_A_STATE else [name]  # such functions share a state
        self.by_function |= dict.fromkeys(moved, units)
        return f"Running {' and '.join(moved)} on {units}"


class RetryingProxy:
    """Forwards calls to an object. If a call fails, it creates a new object and repeats the call.

    Args:
        bind: Function that creates the object.
        move_on: Function that takes the error, and changes on which engine or units the next object from ``bind`` runs.
            It raises the error if there is no engine left.
    """

    def __init__(self, bind: Bind, move_on: MoveOn):
        self._bind, self._move_on = bind, move_on
        self._bound = attempt(bind, move_on)

    def _rebind(self) -> None:
        self._bound = self._bind()

    def _repeat(self, work: Callable[[], Any]) -> Any:
        def again(error: UserError) -> None:
            self._move_on(error)
            attempt(self._rebind, self._move_on)

        return attempt(work, again)


class FallbackDenoiser(RetryingProxy, Denoiser):
    """A denoiser that a ``PlacementPolicy`` moves to other compute units or another engine if a call fails."""

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        return self._repeat(lambda: self._bound(x, timestep, guided))


class FallbackDecoder(RetryingProxy, Decoder):
    """A decoder that a ``PlacementPolicy`` moves to other compute units or another engine if a call fails.

    It keeps a copy of all memories and prefixes and of all lanes' columns, so that a new decoder can compute them
    again.
    """

    def __init__(self, bind: Bind, move_on: MoveOn):
        super().__init__(bind, move_on)
        self.lanes, self.capacity, self.prefixes = self._bound.lanes, self._bound.capacity, self._bound.prefixes
        self._prefixes: dict[int, np.ndarray] = {}
        self._memories: dict[int, np.ndarray] = {}
        self._columns: np.ndarray | None = None  # (lanes, capacity, D)
        self._lengths = np.zeros(self.lanes, np.int64)
        self._indices = np.zeros(self.lanes, np.int64)  # prefix of each lane

    def set_memory(self, memory: np.ndarray, index: int = 0) -> None:
        self._repeat(lambda: self._bound.set_memory(memory, index))
        self._memories[index] = memory

    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        result = self._repeat(lambda: self._bound.prefill(prefix, index))
        self._prefixes[index] = prefix
        return result

    def step(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0, prefix_indices: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        n, count, width = columns.shape
        lanes = slice(first_lane, first_lane + n)
        self._lengths[lanes] = lengths  # the lanes keep only their first ``lengths`` positions
        self._indices[lanes] = 0 if prefix_indices is None else prefix_indices
        result = self._repeat(lambda: self._bound.step(columns, lengths, first_lane, prefix_indices))
        if self._columns is None:
            self._columns = np.zeros((self.lanes, self.capacity, width), np.float32)
        for lane, length, added in zip(range(lanes.start, lanes.stop), lengths, columns, strict=True):
            self._columns[lane, length : length + count] = added
        self._lengths[lanes] = lengths + count
        return result

    def _rebind(self) -> None:
        """Create a new decoder. Compute on it all memories, all prefixes and the columns of all lanes (sequences)."""
        super()._rebind()
        for index, memory in self._memories.items():
            self._bound.set_memory(memory, index)
        for index, prefix in self._prefixes.items():
            self._bound.prefill(prefix, index)
        for lane in np.flatnonzero(self._lengths):
            assert self._columns is not None
            if self._indices[lane] in self._prefixes:
                self._bound.step(
                    self._columns[lane : lane + 1, : self._lengths[lane]],
                    np.zeros(1, np.int64),
                    lane,
                    self._indices[lane : lane + 1],
                )


def attempt(work: Callable[[], Any], move_on: MoveOn) -> Any:
    """Call ``work`` and return its result.

    If ``work`` raises UserError, pass the error to ``move_on`` and try again.
    """
    while True:
        try:
            return work()
        except UserError as error:
            move_on(error)
