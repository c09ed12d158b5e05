"""Run the functions of saved Core ML packages on the CPU, with the interpreter in Core AI's wheel.

Loading a function writes an asset (Core AI's model file) to a temporary folder. We keep no assets, because Core AI
rejects an asset from another beta version. A damaged asset would end the process or compute wrong numbers without an
exception. Only coroutines can call Core AI, so a runtime has a thread with an event loop for all its functions.
"""

import asyncio
import shutil
import threading
from collections.abc import Coroutine, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from ane.backends.coreml.tools import error_summary
from ane.backends.mil.interpreter import InterpreterState
from ane.backends.mil.package import Package, ProgramFunction
from ane.backends.mil.values import DTYPES, TensorType, validate_inputs
from ane.backends.packaged.functions import Runtime
from ane.system.errors import UserError
from ane.system.streams import silent_c_libraries

T = TypeVar("T")
VERSION = "1.0.0b3"  # the beta version for which this code was written; other versions reject its assets
INSTALL = 'install it with: pip install ".[coreai]" (Linux on x86-64 with glibc 2.34, or macOS 26)'
COMPILED = "aimodelx"  # file suffix of an asset that is compiled for the interpreter


class CoreAIState:
    """Holds the states of a function as Core AI arrays, by name. ``predict`` updates these arrays.

    Do not keep a NumPy view of such an array: as long as a view exists, Core AI writes to a copy instead.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        from coreai.runtime import NDArray

        self.arrays = {name: NDArray(np.ascontiguousarray(array)) for name, array in arrays.items()}

    def copied(self) -> InterpreterState:
        return InterpreterState({name: array.numpy().copy() for name, array in self.arrays.items()})


class CoreAIFunction:
    """A function of a package that Core AI has loaded."""

    def __init__(self, function: Any, program: ProgramFunction, loop: "EventLoop", name: str):
        self.program, self.name, self._function, self._loop = program, name, function, loop

    def predict(self, inputs: Mapping[str, np.ndarray], state: CoreAIState | None = None) -> dict[str, np.ndarray]:
        """Run the function, and return its outputs as float32 or int32.

        Args:
            inputs: Inputs by name.
            state: State from ``make_state``. This method updates it in place.

        Raises:
            TypeError: An input has another name, shape or kind of numbers than the function declares.
            UserError: Core AI fails.
        """
        outputs = self.run(inputs, state)
        return {key: outputs[key] for key in self.program.outputs}

    def run(self, inputs: Mapping[str, np.ndarray], state: CoreAIState | None = None) -> dict[str, np.ndarray]:
        """Run the function as ``predict`` does. Return all outputs of the function in Core AI's file, by name."""
        from coreai.runtime import NDArray

        declared = self.program.inputs
        validated = validate_inputs(self.name, declared, inputs)
        states = state.arrays if state else {}
        if set(states) != set(self.program.states):
            raise TypeError(f"{self.name} has the states {sorted(self.program.states)}, got {sorted(states)}")
        arrays = {key: NDArray(_converted(array, declared[key])) for key, array in validated.items()}
        try:
            outputs = self._loop.wait(self._function(inputs=arrays, state=states))
        except RuntimeError as error:
            raise UserError(f"Core AI cannot run {self.name}: {error_summary(error)}") from error
        results = {key: array.numpy() for key, array in outputs.items()}
        return {
            key: array.astype(np.float32 if array.dtype.kind == "f" else np.int32) for key, array in results.items()
        }

    def activations(
        self, inputs: Mapping[str, np.ndarray], state: InterpreterState | None = None
    ) -> Iterator[tuple[str, str, np.ndarray]]:
        """Run the function, and yield the result of every op and the new value of every state, in program order.

        Call this method only if the runtime has ``values=True``. The call does not change ``state``.

        Yields:
            The name of the result, the type of its op, and the result.
        """
        copy = CoreAIState(state) if state else None
        values = self.run(inputs, copy)
        states = copy.copied() if copy else {}
        for op in self.program.ops:
            for name in op.outputs:
                yield name, op.type, values[name]
            if op.written_state:  # this is the state's final value, because a program writes a state only once
                yield op.written_state, op.type, states[op.written_state].astype("float32")

    def make_state(self) -> CoreAIState:
        return CoreAIState(
            {name: np.zeros(type.shape, DTYPES[type.dtype]) for name, type in self.program.states.items()}
        )


def _converted(array: np.ndarray, type: TensorType) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32 if type.dtype in ("fp16", "fp32") else DTYPES[type.dtype])


class CoreAIRuntime(Runtime):
    """Loads the functions of packages into Core AI, for float32 arithmetic.

    Weights have the values that the package stores. States keep the dtype that the package declares.

    Args:
        values: Whether ``CoreAIFunction.run`` also returns the result of every operation.

    Raises:
        UserError: Core AI is not installed, has another version, or is the framework of this macOS and not the wheel.
    """

    name = "coreai"

    def __init__(self, values: bool = False):
        require_core_ai()
        self.values = values
        self.loop = EventLoop()
        self._packages: dict[Path, Package] = {}
        self._models: dict[tuple[Path, str], tuple[Any, TemporaryDirectory]] = {}  # model, folder of its asset

    def load(self, package: Path, function: str, compute_units: str) -> CoreAIFunction:
        """Load a function of a package.

        Raises UserError if there is no such function, an op is not supported, or Core AI fails.
        """
        if package not in self._packages:
            self._packages[package] = Package(package)
        opened, key = self._packages[package], (package, function)
        program = opened.function(function)
        with silent_c_libraries():
            if key not in self._models:
                folder = TemporaryDirectory()
                path = Path(folder.name) / f"{function}.{COMPILED}"
                write_compiled(opened, function, path, self.values)
                self._models[key] = self._opened(path), folder
            return CoreAIFunction(
                self._models[key][0].load_function(function), program, self.loop, f"function {function!r} of {package}"
            )

    def unload(self, package: Path) -> None:
        self._packages.pop(package, None)
        for key in [key for key in self._models if key[0] == package]:
            self._models.pop(key)[1].cleanup()

    def _opened(self, path: Path) -> Any:
        """Open an asset as Core AI's AIModel."""
        from coreai.runtime import AIModel

        try:
            return self.loop.wait(AIModel.load(path, None))
        except RuntimeError as error:
            raise UserError(f"Core AI cannot open {path}: {error_summary(error)}") from error


def write_compiled(package: Package, function: str, path: Path, values: bool) -> None:
    """Write a package's function as a Core AI asset, compiled for the interpreter in the wheel.

    The arguments and errors are the same as for ``program.write_asset``.
    """
    from coreai.authoring import AIModelAsset

    from ane.backends.coreai.program import write_asset

    with TemporaryDirectory() as folder:
        source = Path(folder) / "source.aimodel"
        write_asset(package, function, source, values)
        path.mkdir()
        try:
            # AIModelAsset.executable() would compile the asset each time that it opens, in a temporary folder
            AIModelAsset.load(source)._write_odix(path)
        except RuntimeError as error:
            shutil.rmtree(path)
            raise UserError(f"Core AI cannot compile {package.path}: {error_summary(error)}") from error


def coreai_version() -> str:
    """Return the version of the installed coreai-core, or "" if it is not installed."""
    try:
        return metadata.version("coreai-core")
    except metadata.PackageNotFoundError:
        return ""


def require_core_ai() -> None:
    """Raise UserError unless version ``VERSION`` of Core AI is installed and runs with the interpreter in its wheel."""
    installed = coreai_version()
    if not installed:
        raise UserError(f"Core AI is not installed: {INSTALL}")
    if installed != VERSION:
        raise UserError(f"Core AI {installed} is installed, but this program needs coreai-core=={VERSION}: {INSTALL}")
    try:
        from coreai.runtime import SpecializationOptions
    except ImportError as error:
        raise UserError(f"Core AI cannot be imported ({error}): {INSTALL}") from error
    if SpecializationOptions.is_supported():  # true from macOS 27 on, where the wheel's interpreter is not used
        raise UserError(
            "Core AI is the system's framework on this macOS, which this program does not use yet: use backend=coreml"
        )


class EventLoop:
    """An event loop on a separate thread. The thread ends with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="Core AI", daemon=True).start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop, wait for it, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
