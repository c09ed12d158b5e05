"""Functions of Core ML packages as the stages see them: fixed shapes, chosen by bucket. Who runs them is the engine's.

Two engines fulfil ``Engine``: Core ML itself on a Mac (``ane.backends.coreml.runtime``), and the interpreter
(``ane.backends.mil``) anywhere. All between a stage and a function, padding, masks, chunks and cropping, is above this
seam and the same for both.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ane.system.errors import UserError


class Runnable(Protocol):
    """A loaded function. Inputs and outputs are arrays of the function's fixed shapes; outputs are float32."""

    def predict(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]: ...

    def make_state(self) -> Any: ...


class Engine(Protocol):
    """Loads functions of packages."""

    name: str

    def load(self, package: Path, function: str, units: str) -> Runnable:
        """``units`` is where Core ML may run it: "CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE" or "ALL"."""

    def forget(self, package: Path) -> None:
        """Let go of what is kept of a package none of whose functions is held any more."""


class Function:
    """A function of a package in a bundle: its bucket is known at once, it is loaded when it is first called."""

    def __init__(self, engine: Engine, package: Path, name: str, bucket: Mapping[str, int], units: str,
                 kind: str = ""):
        self.engine, self.package, self.name, self.bucket = engine, package, name, bucket
        self.units, self.kind = units, kind
        self._loaded: Runnable | None = None

    def __call__(self, state: Any = None, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        return self.loaded.predict(inputs, state)

    def make_state(self) -> Any:
        return self.loaded.make_state()

    @property
    def loaded(self) -> Runnable:
        if self._loaded is None:
            self._loaded = self.engine.load(self.package, self.name, self.units)
        return self._loaded


def smallest(functions: Sequence[Function], what: str, **lengths: int) -> Function:
    """The function with the least room that takes all of ``lengths``, the first named counting most.

    Raises:
        UserError: none is large enough; ``what`` is what the user has too much of ("the text", "the clip").
    """
    fitting = [f for f in functions if all(f.bucket[name] >= length for name, length in lengths.items())]
    if not fitting:
        most = max(functions, key=lambda f: tuple(f.bucket[name] for name in lengths))
        asked, there = (", ".join(f"{n} {name}" for name, n in sizes.items())
                        for sizes in (lengths, {name: most.bucket[name] for name in lengths}))
        raise UserError(f"{what} needs {asked} and the largest bucket of {most.package.stem} has {there}: make it "
                        "shorter (--split), or convert the model again with larger --buckets")
    return min(fitting, key=lambda f: tuple(f.bucket[name] for name in lengths))


def padded(array: np.ndarray, length: int, value: float = 0.0) -> np.ndarray:
    """The last axis brought to ``length``."""
    room = [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])]
    return np.pad(array, room, constant_values=value)


def frames(length: int, bucket: int) -> dict[str, np.ndarray]:
    """Inputs that tell a graph which places of a bucket are of the sequence: inside and share, (1, 1, 1, bucket)."""
    inside = (np.arange(bucket) < length).astype(np.float32)[None, None, None]
    return {"inside": inside, "share": inside / np.float32(length)}
