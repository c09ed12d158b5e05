"""What goes on elsewhere when an engine refuses a function: that function alone, a decoder, a denoiser.

A decoder and a denoiser are bound to an utterance and have a state. When a call fails, they are bound again, on what
the backend says is next, and the call is repeated.
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
NEXT_UNITS = {ALL: GPU, NEURAL_ENGINE: GPU, GPU: CPU}  # refused compute units → what is tried then
ON_A_STATE = "state", "store"  # kinds of functions whose work "step" does with the cache on the host

Bind = Callable[[], Any]
MoveOn = Callable[[UserError], None]


class PlacementPolicy:
    """The compute units of a package's functions.

    Args:
        chosen: the first to use; None: those that the package states, or what the runtime uses instead.

    Attributes:
        by_function: name → compute units; functions that are no longer used are missing.
    """

    def __init__(self, package: PackageRecord, runtime: Runtime, chosen: str | None = None):
        self.package, self.runtime = package, runtime
        self.by_function = dict.fromkeys(package.functions, chosen or runtime.default_units(package.compute_units))

    def of_kind(self, *kinds: str) -> list[str]:
        """The functions of these kinds that are used."""
        return [name for name in self.by_function if self.package.functions[name].kind in kinds]

    def replaces_state(self, error: UserError) -> bool:
        """Whether what was refused needs a state, and the host can keep the cache instead."""
        name = getattr(error, "function", "")
        return name in self.of_kind(*ON_A_STATE) and bool(self.of_kind("step"))

    def refuse(self, error: UserError) -> str:
        """Choose what replaces the function that an engine refused: in words, or "" if nothing of the package does."""
        name = error.function if isinstance(error, EngineRefusalError) and not error.on_all_units else ""
        if name not in self.by_function:
            return ""
        kind, steps = self.package.functions[name].kind, self.of_kind("step")
        if kind in ON_A_STATE and steps:
            for unused in self.of_kind(*ON_A_STATE):
                del self.by_function[unused]
            return f"Running {steps[0]} and its like on {self.by_function[steps[0]]}"
        if self.by_function[name] == CPU:
            return ""
        units = self.runtime.default_units(NEXT_UNITS[self.by_function[name]])
        moved = self.of_kind(*ON_A_STATE) if kind in ON_A_STATE else [name]  # those of one state on the same units
        self.by_function |= dict.fromkeys(moved, units)
        return f"Running {' and '.join(moved)} on {units}"


class RetryingProxy:
    """Calls of something that is bound again when one fails.

    Args:
        bind: makes it. move_on: changes what ``bind`` makes; raises the error when nothing is left.
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
    """A denoiser that is bound again when it fails."""

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        return self._repeat(lambda: self._bound(x, timestep, guided))


class FallbackDecoder(RetryingProxy, Decoder):
    """A decoder that is bound again when it fails.

    It keeps the memories, the prefixes and the columns of all lanes, to compute them again on another decoder.
    """

    def __init__(self, bind: Bind, move_on: MoveOn):
        super().__init__(bind, move_on)
        self.lanes, self.capacity, self.prefixes = self._bound.lanes, self._bound.capacity, self._bound.prefixes
        self._prefixes: dict[int, np.ndarray] = {}
        self._memories: dict[int, np.ndarray] = {}
        self._columns: np.ndarray | None = None  # (lanes, capacity, D)
        self._lengths = np.zeros(self.lanes, np.int64)
        self._indices = np.zeros(self.lanes, np.int64)  # the prefix of each lane

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
        self._lengths[lanes] = lengths  # what is beyond them is no part of the lane any more
        self._indices[lanes] = 0 if prefix_indices is None else prefix_indices
        result = self._repeat(lambda: self._bound.step(columns, lengths, first_lane, prefix_indices))
        if self._columns is None:
            self._columns = np.zeros((self.lanes, self.capacity, width), np.float32)
        for lane, length, own in zip(range(lanes.start, lanes.stop), lengths, columns, strict=True):
            self._columns[lane, length : length + count] = own
        self._lengths[lanes] = lengths + count
        return result

    def _rebind(self) -> None:
        """Bind again, and compute the memories, the prefixes and the columns of all lanes again."""
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
    """The result of ``work``, which is repeated after ``move_on`` as long as that does not raise."""
    while True:
        try:
            return work()
        except UserError as error:
            move_on(error)
