"""Functions of Core ML packages: fixed shapes, selected by bucket, loaded when they are first called.

Three runtimes load them: Core ML itself on a Mac (``ane.backends.coreml``), an interpreter on any machine
(``ane.backends.mil``), and Core AI (``ane.backends.coreai``). Padding, masks, windows and cropping are computed in
NumPy, the same for all.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from ane.system.errors import UserError


class EngineRefusalError(UserError):
    """The engine cannot run a function: it fails, does not answer, or returns NaN.

    Attributes:
        everywhere: on all compute units, as when a package does not compile.
    """

    def __init__(self, message: str, everywhere: bool = False):
        super().__init__(message)
        self.everywhere = everywhere


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
        """``compute_units``: where Core ML may run it, one of ``ane.bundles.packages.COMPUTE_UNITS``.

        Raises:
            UserError: no such package or function. EngineRefusalError: the engine cannot run it.
        """

    def unload(self, package: Path) -> None:
        """Free what is cached for a package; none of its functions may be in use. By default nothing is."""
        return


class PackageFunction:
    """A function of a package in a bundle, loaded when it is first called.

    Args:
        bucket: the lengths that its shapes have, by name, such as {"columns": 16, "slots": 512}.
        compute_units: where Core ML may run it. kind: what it computes, such as "step".
    """

    def __init__(self, runtime: Runtime, package: Path, name: str, bucket: Mapping[str, int],
                 compute_units: str, kind: str = ""):
        self.runtime, self.package, self.name, self.bucket = runtime, package, name, bucket
        self.compute_units, self.kind = compute_units, kind
        self._loaded: LoadedFunction | None = None

    def __call__(self, state: Any = None, caches: Mapping[str, np.ndarray] = MappingProxyType({}),
                 **inputs: np.ndarray) -> dict[str, np.ndarray]:
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

    def unload(self) -> None:
        """Drop it; the next call loads it again."""
        self._loaded = None


def state_arrays(state: Any, names: Sequence[str]) -> list[np.ndarray]:
    """What a state of any engine holds: Core ML's is read by name, the others are copied."""
    read = getattr(state, "read_state", None)
    return [read(name) for name in names] if read is not None else [state.copied()[name] for name in names]


def smallest_fitting(functions: Sequence[PackageFunction], what: str, **lengths: int) -> PackageFunction:
    """The function with the smallest bucket that all of ``lengths`` fit in; the first length is compared first.

    Raises:
        UserError: no bucket is large enough; the message says that ``what`` ("the text", "the clip") is too long.
    """
    fitting = [f for f in functions if all(f.bucket[name] >= length for name, length in lengths.items())]
    if not fitting:
        largest = max(functions, key=lambda f: tuple(f.bucket[name] for name in lengths))
        needed, available = (", ".join(f"{n} {name}" for name, n in sizes.items())
                             for sizes in (lengths, {name: largest.bucket[name] for name in lengths}))
        raise UserError(f"{what} needs {needed} and the largest bucket of {largest.package.stem} has {available}: make "
                        "it shorter (split), or convert the model again with larger buckets")
    return min(fitting, key=lambda f: tuple(f.bucket[name] for name in lengths))


def pad_last_axis(array: np.ndarray, length: int, value: float = 0.0) -> np.ndarray:
    """``array`` with ``value`` appended on the last axis up to ``length``."""
    widths = [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])]
    return np.pad(array, widths, constant_values=value)


def sequence_masks(length: int, bucket: int) -> dict[str, np.ndarray]:
    """The inputs that mark the first ``length`` positions of a bucket, (1, 1, 1, bucket) each.

    ``inside`` is 1 there and 0 in the padding; ``mean_weight`` is ``inside`` / ``length``, for means over the sequence.
    """
    inside = (np.arange(bucket) < length).astype(np.float32)[None, None, None]
    return {"inside": inside, "mean_weight": inside / np.float32(length)}
