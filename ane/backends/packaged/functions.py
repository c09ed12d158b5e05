"""Define the functions of Core ML packages: they have fixed shapes and load when they are first called.

Three runtimes load them: Core ML on a Mac (``ane.backends.coreml``), an interpreter on any machine
(``ane.backends.mil``), and Core AI (``ane.backends.coreai``). The host computes padding, masks, windows and cropping in
NumPy, for all of them alike.
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
    """An engine cannot run a function: the function fails, does not answer, or returns wrong values.

    Args:
        message: The cause.
        advice: The remedy, which the text of the error adds after a colon.

    Attributes:
        cause: The cause, without advice.
        on_all_units: Whether the function fails on all compute units, for example because its package does not compile.
        function: Name of the function. "" means all functions of a package.
    """

    def __init__(self, message: str, on_all_units: bool = False, function: str = "", advice: str = ""):
        super().__init__(f"{message}: {advice}" if advice else message)
        self.cause, self.on_all_units, self.function = message, on_all_units, function


def error_without_advice(error: UserError) -> str:
    """Return the cause of a refusal, or the message of another error, for a log line that adds its own remedy."""
    return error.cause if isinstance(error, EngineRefusalError) else str(error)


class LoadedFunction(Protocol):
    """A loaded function. Inputs and outputs are arrays of the function's fixed shapes, and outputs are float32."""

    def predict(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]: ...

    def make_state(self) -> Any:
        """Return a new state, which is all zeros and which ``predict`` updates."""


class Runtime(ABC):
    """Loads the functions of packages.

    Attributes:
        name: Name of the runtime, for reports.
        in_place: Whether ``predict`` of a function takes a third argument: float32 inputs that it does not copy.
    """

    name: str
    in_place = False

    @abstractmethod
    def load(self, package: Path, function: str, compute_units: str) -> LoadedFunction:
        """Load a function.

        Args:
            package: Folder of the package.
            function: Name of the function.
            compute_units: Compute units on which Core ML may run it, one of
                ``ane.bundles.package_records.COMPUTE_UNITS``.

        Raises:
            UserError: There is no such package or function.
            EngineRefusalError: The engine cannot run the function.
        """

    def seconds(self, package: Path, function: str, compute_units: str) -> float:
        """Return the median time of a call in a function's first load, or NaN if it is unknown. Errors: ``load``."""
        return math.nan

    def default_units(self, stated: str) -> str:
        """Return the compute units to use instead of units that the user did not choose.

        These are the units that a bundle states, or the next ones after a refusal.
        """
        return stated

    def prepare(self, package: Path, function: str, compute_units: str) -> None:
        """Do the slow first load of a function on this machine now. Raises the errors of ``load``."""
        return

    def unload(self, package: Path) -> None:
        """Free the cached data of a package. None of its functions may be in use. By default there is none."""
        return


class PackageFunction:
    """A function of a package in a bundle. It loads when it is first called.

    Args:
        runtime: Engine that runs it.
        package: Folder of the package.
        name: Name of the function.
        bucket: Lengths of its shapes, by name, such as {"columns": 16, "slots": 512}.
        compute_units: Compute units on which Core ML may run it.
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
        """Call the function. ``caches`` are further inputs: arrays that the caller keeps from call to call."""
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
        """Drop the loaded function. The next call loads it again."""
        self._loaded = None


def state_arrays(state: Any, names: Sequence[str]) -> list[np.ndarray]:
    """Return the content of a state of any engine. Core ML's state is read by name, and other states are copied."""
    read = getattr(state, "read_state", None)
    return [read(name) for name in names] if read is not None else [state.copied()[name] for name in names]
