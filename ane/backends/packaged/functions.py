"""Define the interface of a Core ML package's functions, and of the runtimes that load them.

A function has fixed shapes, and loads when it is first called. There are three runtimes: Core ML on a Mac
(``ane.backends.coreml``), an interpreter on any machine (``ane.backends.mil``), and Core AI (``ane.backends.coreai``).
Padding, masks, windows and cropping are NumPy code that all three runtimes share.
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
    """Means that an engine cannot run a function: a call fails, does not return, or returns wrong numbers.

    Args:
        message: Cause of the failure.
        advice: Remedy for the user. The text of the error consists of the cause, a colon and this advice.

    Attributes:
        cause: Cause of the failure, without the advice.
        on_all_units: Whether the function fails on all compute units, for example because its package does not compile.
        function: Name of the function. "" means all functions of the package.
    """

    def __init__(self, message: str, on_all_units: bool = False, function: str = "", advice: str = ""):
        super().__init__(f"{message}: {advice}" if advice else message)
        self.cause, self.on_all_units, self.function = message, on_all_units, function


def error_without_advice(error: UserError) -> str:
    """Return an error's message.

    Leave out the advice of an EngineRefusalError, because the caller's log line has other advice.
    """
    return error.cause if isinstance(error, EngineRefusalError) else str(error)


class LoadedFunction(Protocol):
    """A loaded function of a package. Its inputs and outputs are arrays of fixed shapes. The outputs are float32."""

    def predict(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]: ...

    def make_state(self) -> Any:
        """Create a state of zeros, which ``predict`` updates in place."""


class Runtime(ABC):
    """Loads the functions of packages.

    Attributes:
        name: Name of the runtime, for reports.
        in_place: Whether ``predict`` takes a third argument, with float32 inputs that it reads without a copy.
    """

    name: str
    in_place = False

    @abstractmethod
    def load(self, package: Path, function: str, compute_units: str) -> LoadedFunction:
        """Load a function of a package.

        Args:
            package: Folder of the package.
            function: Name of the function.
            compute_units: Compute units on which Core ML may run the function, one of
                ``ane.bundles.package_records.COMPUTE_UNITS``.

        Raises:
            UserError: There is no such package or function.
            EngineRefusalError: The engine cannot run the function.
        """

    def seconds(self, package: Path, function: str, compute_units: str) -> float:
        """Return the median seconds per call that the runtime measured when it first loaded a function.

        Returns NaN if the runtime has not measured this function. Raises the errors of ``load``.
        """
        return math.nan

    def default_units(self, stated: str) -> str:
        """Return the compute units on which to run a package's function if the user has not chosen any.

        Args:
            stated: Compute units that the bundle names or, after a failure, the compute units to try next.
        """
        return stated

    def prepare(self, package: Path, function: str, compute_units: str) -> None:
        """Load a package's function now if this machine has never loaded it, because first loads are slow.

        Raises the errors of ``load``.
        """
        return

    def unload(self, package: Path) -> None:
        """Free the memory that the runtime uses for a package. No function of the package may be in use.

        If a runtime caches nothing, this method does nothing.
        """
        return


class PackageFunction:
    """A function of a package. It loads when you first call it.

    Args:
        runtime: Runtime that loads the function.
        package: Folder of the package.
        name: Name of the function.
        bucket: Lengths for which the function was built, by name, such as {"columns": 16, "slots": 512}.
        compute_units: Compute units on which Core ML may run the function.
        kind: Kind of function, such as "step".
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
        """Call the function.

        Args:
            state: State to update, for functions that have one.
            caches: Inputs that the caller keeps from call to call. A runtime may read them without a copy.
            inputs: All other inputs.

        Returns:
            The outputs by name.
        """
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
        """Unload the function. The next call loads it again."""
        self._loaded = None


def state_arrays(state: Any, names: Sequence[str]) -> list[np.ndarray]:
    """Read these arrays from a state of any runtime. Core ML reads the arrays one by one.

    Other runtimes copy the whole state.
    """
    read = getattr(state, "read_state", None)
    return [read(name) for name in names] if read is not None else [state.copied()[name] for name in names]
