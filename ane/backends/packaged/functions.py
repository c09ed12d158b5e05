"""Functions of Core ML packages: fixed shapes, selected by bucket, loaded when they are first called.

Three runtimes load them: Core ML itself on a Mac (``ane.backends.coreml``), an interpreter on any machine
(``ane.backends.mil``), and Core AI (``ane.backends.coreai``). Padding, masks, windows and cropping are computed in
NumPy, the same for all.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from ane.system.errors import UserError


class EngineRefusalError(UserError):
    """The engine cannot run a function: it fails, does not answer, or returns other values than it should.

    Attributes:
        on_all_units: on all compute units, as when a package does not compile. function: its name; "": all of a
            package.
    """

    def __init__(self, message: str, on_all_units: bool = False, function: str = ""):
        super().__init__(message)
        self.on_all_units, self.function = on_all_units, function


class LoadedFunction(Protocol):
    """A loaded function. Inputs and outputs are arrays of the function's fixed shapes; outputs are float32."""

    def predict(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]: ...

    def make_state(self) -> Any:
        """A new state, all zeros, for ``predict`` to update."""


class Runtime(ABC):
    """Loads functions of packages.

    Attributes:
        in_place: whether ``predict`` of its functions takes a third argument, float32 inputs that it does not copy.
    """

    name: str
    in_place = False

    @abstractmethod
    def load(self, package: Path, function: str, compute_units: str) -> LoadedFunction:
        """``compute_units``: where Core ML may run it, one of ``ane.bundles.package_records.COMPUTE_UNITS``.

        Raises:
            UserError: no such package or function. EngineRefusalError: the engine cannot run it.
        """

    def seconds(self, package: Path, function: str, compute_units: str) -> float:
        """Median time of a call in the first load of a function; NaN: not measured. Raises what ``load`` does."""
        return math.nan

    def default_units(self, stated: str) -> str:
        """What to use instead of compute units that the user did not choose: those a bundle states, or those tried
        after a refusal.
        """
        return stated

    def prepare(self, package: Path, function: str, compute_units: str) -> None:
        """Do the slow first load of a function on this machine now. Raises what ``load`` does."""
        return

    def unload(self, package: Path) -> None:
        """Free what is cached for a package; none of its functions may be in use. By default nothing is."""
        return


class PackageFunction:
    """A function of a package in a bundle, loaded when it is first called.

    Args:
        bucket: the lengths that its shapes have, by name, such as {"columns": 16, "slots": 512}.
        compute_units: where Core ML may run it. kind: what it computes, such as "step".
    """

    def __init__(
        self, runtime: Runtime, package: Path, name: str, bucket: Mapping[str, int], compute_units: str, kind: str = ""
    ):
        self.runtime, self.package, self.name, self.bucket = runtime, package, name, bucket
        self.compute_units, self.kind = compute_units, kind
        self._loaded: LoadedFunction | None = None

    def __call__(
        self, state: Any = None, caches: Mapping[str, np.ndarray] = MappingProxyType({}), **inputs: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Call it. ``caches`` are further inputs: arrays that the caller keeps from call to call."""
        if self.runtime.in_place:
            return self.loaded.predict(inputs, state, caches)
        return self.loaded.predict({**inputs, **caches}, state)

    def make_state(self) -> Any:
        return self.loaded.make_state()

    @property
    def loaded(self) -> LoadedFunction:
        if self._loaded is None:
            self._loaded = self.runtime.load(self.package, self.name, self.compute_units)
        return self._loaded

    @property
    def seconds(self) -> float:
        return self.runtime.seconds(self.package, self.name, self.compute_units)

    def prepare(self) -> None:
        self.runtime.prepare(self.package, self.name, self.compute_units)

    def unload(self) -> None:
        """Drop it; the next call loads it again."""
        self._loaded = None


def state_arrays(state: Any, names: Sequence[str]) -> list[np.ndarray]:
    """What a state of any engine holds: Core ML's is read by name, the others are copied."""
    read = getattr(state, "read_state", None)
    return [read(name) for name in names] if read is not None else [state.copied()[name] for name in names]
