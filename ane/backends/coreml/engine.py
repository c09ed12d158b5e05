"""Core ML on a Mac: an engine for the functions of packages. Each is loaded from a compiled model that is kept.

What only macOS can do is behind ``Toolkit``; a stand-in for it, over ``ane.backends.mil``, runs all else anywhere. On a
Mac, this shows the rest, Core ML against that interpreter included::

    pytest tests/mac

What coremltools 9.0 and its binding do (coremlpython/CoreMLPythonArray.mm, CoreMLPythonUtils.mm), and what follows:

* The binding knows no float16. ``CompiledMLModel.predict`` makes a float32 copy of each fp16 array, and Core ML rounds
  that to fp16 again; fp16 outputs come back as float32. So fp16 inputs are handed over as float32.
* A float32 array is not copied: Core ML reads it where it lies, and keeps it for about a second after the prediction.
  Then a thread of its own drops the reference without Python's lock; if it was the last one, the heap is corrupted
  (apple/coremltools#2827, #2829). So arrays are handed over in buffers that outlive the prediction by more than that.
* ``predict`` and ``compile_model`` hold Python's lock: meanwhile no other thread runs, no progress bar moves, and
  Ctrl-C waits.
* Core ML may fail to compile for the Neural Engine without an error, and run elsewhere or be killed by macOS in the
  first prediction (apple/coremltools#2758), which nothing here can catch.
"""

import logging
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np

from ane.backends.coreml.compiled import CompiledCache, Machine, first_line, said_by, this_machine
from ane.backends.mil import Package, TensorType
from ane.backends.packaged.functions import Function
from ane.system.errors import UserError

UNITS = ("ALL", "CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE")
OLDEST_MACOS = 15               # the first with several functions in a package, and states
LINGERS = 10.0                  # seconds that the buffers of a function outlive it; Core ML takes about 1

# In what an input of a declared dtype is handed to Core ML.
HANDED = {"fp16": np.float32, "fp32": np.float32, "int32": np.int32}

# What to try where Core ML fails on these units.
OTHER_UNITS = {"ALL": "CPU_AND_GPU or CPU_ONLY", "CPU_AND_NE": "CPU_AND_GPU or CPU_ONLY",
               "CPU_AND_GPU": "CPU_AND_NE or CPU_ONLY"}

# Pieces of Core ML's messages, and what they mean.
MEANINGS = {
    "ANECCompile": "the Neural Engine's compiler refuses it",
    "ANECF": "the Neural Engine's compiler refuses it",
    "MILCompilerForANE": "the Neural Engine's compiler refuses it",
    "std::bad_cast": "Core ML fails inside on these units (std::bad_cast)",
    "error code: -14": "these compute units cannot run it (error code -14)",
    "MLIR pass manager failed": "the GPU's compiler refuses it",
}


class Loaded(Protocol):
    """A function that the toolkit has opened: coremltools' CompiledMLModel, or a stand-in."""

    def predict(self, data: dict[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]: ...

    def make_state(self) -> Any: ...


class Toolkit(Protocol):
    """What only macOS can do. ``compile`` and ``open`` raise RuntimeError when Core ML fails."""

    def machine(self) -> Machine: ...

    def compile(self, package: Path, destination: Path) -> None:
        """Compile a .mlpackage to ``destination``, a path ending in .mlmodelc where nothing is."""

    def open(self, compiled: Path, function: str, units: str) -> Loaded:
        """Load a function of a compiled model for units of ``UNITS``; function "": its only one."""


class CoreMLTools:
    """The toolkit of a Mac: coremltools. Raises UserError off macOS and on a macOS older than 15."""

    def __init__(self):
        if sys.platform != "darwin":
            raise UserError("Core ML runs on macOS only; --backend mil interprets the same packages here, "
                            "--backend torch is faster")
        version = said_by("sw_vers", "-productVersion")
        if int(version.partition(".")[0] or 0) < OLDEST_MACOS:
            raise UserError(f"this Mac has macOS {version}; the Core ML packages need macOS {OLDEST_MACOS} or newer: "
                            "update it, or use --backend torch")

    def machine(self) -> Machine:
        return this_machine()

    def compile(self, package: Path, destination: Path) -> None:
        """Core ML compiles into a temporary folder; coremltools moves the result to ``destination``."""
        from coremltools.models.utils import compile_model

        compile_model(str(package), str(destination))

    def open(self, compiled: Path, function: str, units: str) -> Loaded:
        logging.getLogger("coremltools").setLevel(logging.ERROR)        # it warns of every torch newer than 2.7
        import coremltools

        return coremltools.models.CompiledMLModel(str(compiled), compute_units=coremltools.ComputeUnit[units],
                                                  function_name=function)


@dataclass(frozen=True)
class Signature:
    """Inputs, outputs and states of a function by name, as its package declares them."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    states: Mapping[str, TensorType]


class CoreMLFunction:
    """A loaded function; a ``LoadedFunction``. One prediction at a time.

    Attributes:
        buffers: the arrays that Core ML reads, by input. ``predict`` copies its inputs there; one that is its buffer
            itself, written in place by the caller, is not copied.
    """

    def __init__(self, loaded: Loaded, signature: Signature, name: str, failed: Callable[[str, Exception], UserError]):
        self.signature, self.name = signature, name
        self._loaded, self._failed = loaded, failed
        self.buffers = {key: np.zeros(type.shape, HANDED[type.dtype]) for key, type in signature.inputs.items()}

    def predict(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]:
        """Run it; ``state``, of ``make_state``, is updated in place. Outputs are float32, of the declared shapes.

        Raises:
            TypeError: other inputs, shapes or kinds of numbers than the function declares.
            UserError: Core ML fails.
        """
        if set(inputs) != set(self.buffers):
            raise TypeError(f"{self.name} takes {sorted(self.buffers)}, got {sorted(inputs)}")
        for key, array in inputs.items():
            self._fill(key, array)
        try:
            outputs = self._loaded.predict(dict(self.buffers), state)       # a copy: coremltools changes the dict
        except RuntimeError as error:
            raise self._failed("run", error) from error
        return {key: np.ascontiguousarray(outputs[key], np.float32).reshape(type.shape)
                for key, type in self.signature.outputs.items()}

    def make_state(self) -> Any:
        """A new state, zero everywhere; Core ML's own object."""
        try:
            return self._loaded.make_state()
        except RuntimeError as error:
            raise self._failed("make a state for", error) from error

    def warm(self) -> None:
        """One prediction on zeros: what Core ML puts off until the first is done before anybody waits for it."""
        for buffer in self.buffers.values():
            buffer.fill(0)
        self.predict(self.buffers, self.make_state() if self.signature.states else None)

    def _fill(self, key: str, array: np.ndarray) -> None:
        buffer = self.buffers[key]
        if array is buffer:
            return
        kinds = "f" if buffer.dtype.kind == "f" else "iub"
        if array.shape != buffer.shape or array.dtype.kind not in kinds:
            raise TypeError(f"input {key} of {self.name} is {self.signature.inputs[key]}, got {array.dtype} "
                            f"{array.shape}")
        np.copyto(buffer, array, casting="unsafe")      # float64 and int64 are narrowed


class CoreMLEngine:
    """Loads functions of packages into Core ML, from models that were compiled once.

    Args:
        toolkit: what macOS does (default: coremltools; UserError where that cannot be).
        cache: where compiled models are kept (default: in the user's cache).
        notice: told in one line what takes long, before it begins.
    """

    name = "coreml"

    def __init__(self, toolkit: Toolkit | None = None, cache: CompiledCache | None = None,
                 notice: Callable[[str], None] = lambda line: None):
        self.toolkit = toolkit or CoreMLTools()
        self.cache = cache or CompiledCache()
        self.notice = notice
        self.machine = self.toolkit.machine()
        # weak: a backend that lets go of a function frees its memory
        self._functions: WeakValueDictionary[tuple[Path, str, str], CoreMLFunction] = WeakValueDictionary()
        self._signatures: dict[Path, dict[str, Signature]] = {}
        self._models: dict[Path, tuple[Path, bool]] = {}
        self._released: list[tuple[float, dict[str, np.ndarray]]] = []

    def forget(self, package: Path) -> None:
        """Nothing to do: a function goes when nobody holds it."""

    def load(self, package: Path, function: str, units: str) -> CoreMLFunction:
        """The function, loaded for ``units``; the same object each time while anybody holds it.

        Raises:
            UserError: no such units, package or function; a damaged package; Core ML fails; an unwritable cache.
        """
        key = package, function, units
        loaded = self._functions.get(key)
        if loaded is None:
            if units not in UNITS:
                raise UserError(f"there are no compute units {units!r}; --compute-units takes {', '.join(UNITS)}")
            signature = self._signature(package, function)
            loaded = self._functions[key] = CoreMLFunction(
                self._open(package, function, units), signature, f"function {function!r} of {package}",
                lambda doing, error: failure(doing, package, function, units, error))
            weakref.finalize(loaded, self._linger, loaded.buffers).atexit = False
        return loaded

    def warm(self, function: Function) -> None:
        """Load a function of this engine and predict once on zeros, so that its first use does not stall a sentence."""
        function.loaded.warm()

    def _linger(self, buffers: dict[str, np.ndarray]) -> None:
        """Keep the buffers of a function that is gone until Core ML has surely let go of them."""
        now = time.monotonic()
        self._released = [(since, kept) for since, kept in self._released if now - since < LINGERS] + [(now, buffers)]

    def _signature(self, package: Path, function: str) -> Signature:
        if package not in self._signatures:
            functions = Package(package).functions
            self._signatures[package] = {name: Signature(f.inputs, f.outputs, f.states)
                                         for name, f in functions.items()}
        there = self._signatures[package]
        if function not in there:
            raise UserError(f"{package} has no function {function!r}; it has {', '.join(sorted(there))}")
        for name, type in there[function].inputs.items():
            if type.dtype not in HANDED:
                raise UserError(f"input {name} of function {function!r} of {package} is {type.dtype}, and Core ML "
                                f"takes {', '.join(HANDED)} only; convert the model again")
        return there[function]

    def _open(self, package: Path, function: str, units: str) -> Loaded:
        """Open a function, of a model compiled afresh if the kept one does not open."""
        only = "" if set(self._signatures[package]) == {"main"} else function
        model, new = self._compiled(package)
        try:
            try:
                return self.toolkit.open(model, only, units)
            except RuntimeError:
                if new:
                    raise
                return self.toolkit.open(self._compiled(package, afresh=True)[0], only, units)
        except RuntimeError as error:
            raise failure("load", package, function, units, error) from error

    def _compiled(self, package: Path, afresh: bool = False) -> tuple[Path, bool]:
        """The compiled model of a package, and whether this engine compiled it."""
        if afresh or package not in self._models:
            self._models[package] = self.cache.model(package, self.machine, self.toolkit.compile, afresh, self.notice)
        return self._models[package]


def failure(doing: str, package: Path, function: str, units: str, error: Exception) -> UserError:
    """Core ML's error as one line that says what failed where, and what to try."""
    text = str(error)
    meaning = next((meaning for piece, meaning in MEANINGS.items() if piece in text), first_line(error))
    other = OTHER_UNITS.get(units)
    advice = f"try --compute-units {other}" if other else "use --backend torch"
    return UserError(f"Core ML cannot {doing} function {function!r} of {package} on {units}: {meaning}; {advice}")
