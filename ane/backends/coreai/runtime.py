"""Runs functions of saved Core ML packages on the interpreter in Core AI's wheel, on the CPU.

An asset is made for each function when it is loaded, in a temporary folder: Core AI refuses assets of other betas, and
a damaged one ends the process, or computes wrong numbers, without an exception. Core AI is called from coroutines only,
so one thread runs an event loop for all functions of a runtime.
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
VERSION = "1.0.0b3"  # the beta that this was written for; others refuse its assets
INSTALL = 'install it with: pip install ".[coreai]" (Linux on x86-64 with glibc 2.34, or macOS 26)'
COMPILED = "aimodelx"  # suffix of an asset that is compiled for the interpreter


class CoreAIState:
    """The states of a function by name, as Core AI's arrays, which ``predict`` updates.

    While a NumPy view of an array exists, Core AI writes to a copy that the view does not show.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        from coreai.runtime import NDArray

        self.arrays = {name: NDArray(np.ascontiguousarray(array)) for name, array in arrays.items()}

    def copied(self) -> InterpreterState:
        return InterpreterState({name: array.numpy().copy() for name, array in self.arrays.items()})


class CoreAIFunction:
    """A loaded function."""

    def __init__(self, function: Any, program: ProgramFunction, loop: "EventLoop", name: str):
        self.program, self.name, self._function, self._loop = program, name, function, loop

    def predict(self, inputs: Mapping[str, np.ndarray], state: CoreAIState | None = None) -> dict[str, np.ndarray]:
        """Run the function; ``state``, from ``make_state``, is updated in place. Outputs are float32 or int32.

        Raises:
            TypeError: names, shapes or kinds of numbers differ from the declared inputs.
            UserError: Core AI fails.
        """
        outputs = self.run(inputs, state)
        return {key: outputs[key] for key in self.program.outputs}

    def run(self, inputs: Mapping[str, np.ndarray], state: CoreAIState | None = None) -> dict[str, np.ndarray]:
        """All outputs of the asset's function, by name; otherwise as ``predict``."""
        from coreai.runtime import NDArray

        declared = self.program.inputs
        given = validate_inputs(self.name, declared, inputs)
        states = state.arrays if state else {}
        if set(states) != set(self.program.states):
            raise TypeError(f"{self.name} has the states {sorted(self.program.states)}, got {sorted(states)}")
        arrays = {key: NDArray(_converted(array, declared[key])) for key, array in given.items()}
        try:
            outputs = self._loop.wait(self._function(inputs=arrays, state=states))
        except RuntimeError as error:
            raise UserError(f"Core AI cannot run {self.name}: {error_summary(error)}") from error
        found = {key: array.numpy() for key, array in outputs.items()}
        return {key: array.astype(np.float32 if array.dtype.kind == "f" else np.int32) for key, array in found.items()}

    def activations(
        self, inputs: Mapping[str, np.ndarray], state: InterpreterState | None = None
    ) -> Iterator[tuple[str, str, np.ndarray]]:
        """The values of all operations, and of states where they are written, each with its name and the type of the
        operation, in program order; of a runtime with ``values``. ``state`` stays as it is.
        """
        own = CoreAIState(state) if state else None
        values = self.run(inputs, own)
        states = own.copied() if own else {}
        for op in self.program.ops:
            for name in op.outputs:
                yield name, op.type, values[name]
            if op.written_state:  # its last value, as programs write each state once
                yield op.written_state, op.type, states[op.written_state].astype("float32")

    def make_state(self) -> CoreAIState:
        return CoreAIState(
            {name: np.zeros(type.shape, DTYPES[type.dtype]) for name, type in self.program.states.items()}
        )


def _converted(array: np.ndarray, type: TensorType) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32 if type.dtype in ("fp16", "fp32") else DTYPES[type.dtype])


class CoreAIRuntime(Runtime):
    """Loads functions of packages into Core AI, which computes in float32, from weights and states as stored.

    Args:
        values: ``CoreAIFunction.run`` returns the result of every operation too.

    Raises:
        UserError: Core AI is not installed, or in another version, or is the system's framework.
    """

    name = "coreai"

    def __init__(self, values: bool = False):
        require_core_ai()
        self.values = values
        self.loop = EventLoop()
        self._packages: dict[Path, Package] = {}
        self._models: dict[tuple[Path, str], tuple[Any, TemporaryDirectory]] = {}  # with the folder of its asset

    def load(self, package: Path, function: str, compute_units: str) -> CoreAIFunction:
        """Raises UserError when there is no such package or function, an op is not supported, or Core AI fails."""
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
        """Core AI's AIModel of an asset."""
        from coreai.runtime import AIModel

        try:
            return self.loop.wait(AIModel.load(path, None))
        except RuntimeError as error:
            raise UserError(f"Core AI cannot open {path}: {error_summary(error)}") from error


def write_compiled(package: Package, function: str, path: Path, values: bool) -> None:
    """Write a function as an asset that is compiled for the wheel's interpreter.

    Arguments and errors are those of ``program.write_asset``.
    """
    from coreai.authoring import AIModelAsset

    from ane.backends.coreai.program import write_asset

    with TemporaryDirectory() as folder:
        source = Path(folder) / "source.aimodel"
        write_asset(package, function, source, values)
        path.mkdir()
        try:
            # what AIModelAsset.executable() does on every opening, in a folder of its own that it deletes
            AIModelAsset.load(source)._write_odix(path)
        except RuntimeError as error:
            shutil.rmtree(path)
            raise UserError(f"Core AI cannot compile {package.path}: {error_summary(error)}") from error


def coreai_version() -> str:
    """The version of the installed coreai-core, or "" without it."""
    try:
        return metadata.version("coreai-core")
    except metadata.PackageNotFoundError:
        return ""


def require_core_ai() -> None:
    """Raise UserError unless Core AI can be imported in the version that this was written for, with its interpreter."""
    found = coreai_version()
    if not found:
        raise UserError(f"Core AI is not installed; {INSTALL}")
    if found != VERSION:
        raise UserError(f"Core AI {found} is installed, and this program needs coreai-core=={VERSION}; {INSTALL}")
    try:
        from coreai.runtime import SpecializationOptions
    except ImportError as error:
        raise UserError(f"Core AI cannot be imported ({error}); {INSTALL}") from error
    if SpecializationOptions.is_supported():  # from macOS 27 on, the wheel's interpreter is not used
        raise UserError(
            "Core AI is the system's framework on this macOS, which this program does not use yet: use backend=coreml"
        )


class EventLoop:
    """An event loop on a thread of its own, which ends with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="Core AI", daemon=True).start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
