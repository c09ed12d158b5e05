"""Load the functions of packages into Core ML on a Mac, call them, and explain Core ML's errors.

The functions come from compiled models in the cache (``compiled``). ``ane.backends.coreml.tools`` contains all code
that needs macOS. Tests replace the native module of coremltools by one that runs ``ane.backends.mil``, an interpreter,
so they can test the rest of the code on any machine. On a Mac, ``pytest tests/mac`` compares Core ML with this
interpreter.

Four properties of coremltools 9.0 and its binding (CoreMLPythonArray.mm, CoreMLPythonUtils.mm) explain this code:

* The binding has no float16. ``CompiledMLModel.predict`` copies every fp16 array to float32, and Core ML rounds it to
  fp16 again. Core ML's fp16 outputs also arrive as float32. We therefore pass fp16 inputs as float32.
* The binding does not copy a float32 array. Core ML reads the array in place, and holds a reference to it for about a
  second after the prediction. Then a Core ML thread drops the reference without holding the GIL. If this was the last
  reference, or if Python changes the object's reference count at the same moment, the heap is corrupted
  (apple/coremltools#2827, #2829). We therefore pass new views of long-lived arrays, and hold the views until long after
  Core ML has dropped them. Each function has one buffer per input. Core ML reads a kv-cache in place, from the arrays
  of the decoder that owns it.
* ``predict`` and ``compile_model`` hold the GIL. While they run, no other Python thread runs, no progress bar moves,
  and Ctrl-C has to wait.
* Core ML may fail to compile a model for the Neural Engine without an error. After that, Core ML may run the model on
  another processor, the call may never return, or macOS may kill the process in the first prediction
  (apple/coremltools#2758). A child process therefore does the first load of each function (``trial``).
"""

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ane.backends.coreml.compiled import (
    COMPILED,
    LOADED,
    SECONDS,
    SEVERAL,
    CompiledCache,
    read_tried,
    single_function,
    write_tried,
)
from ane.backends.coreml.tools import BUFFER_SECONDS, NO_MEMORY, CoreMLTools, error_summary, keep_arrays
from ane.backends.coreml.trial import CoreMLTrial, TrialStartError, UnansweredError
from ane.backends.mil import Package, ProgramFunction
from ane.backends.mil.values import validate_inputs
from ane.backends.packaged.functions import EngineRefusalError, Runtime
from ane.backends.packaged.golden import OTHER_VALUES, Inputs
from ane.bundles.package_records import COMPUTE_UNITS
from ane.system.errors import UserError

LOGGER = logging.getLogger(__name__)

# dtype of a declared input → dtype that Core ML receives
INPUT_DTYPES = {"fp16": np.float32, "fp32": np.float32, "int32": np.int32}

# compute units on which Core ML failed → compute units that the error message suggests
CPU, GPU, NEURAL_ENGINE, ALL = COMPUTE_UNITS
OTHER_UNITS = {ALL: f"{GPU} or {CPU}", NEURAL_ENGINE: f"{GPU} or {CPU}", GPU: f"{NEURAL_ENGINE} or {CPU}"}
WITHOUT_GPU = {ALL: NEURAL_ENGINE, GPU: CPU}

UNIT_NAMES = {CPU: "the CPU", GPU: "the GPU", NEURAL_ENGINE: "the Neural Engine", ALL: "all compute units"}

ONE_FUNCTION_ONLY = "functionName"  # is part of the error if this macOS rejects packages with several functions


class CoreMLFunction:
    """A loaded function. Only one thread may call ``predict`` at a time.

    Args:
        loaded: Model that coremltools returned.
        signature: Inputs and outputs that the function declares.
        name: Name of the function for messages.
        refuse: Function that takes the failed action and Core ML's error, and returns the error to raise.
    """

    def __init__(
        self, loaded: Any, signature: ProgramFunction, name: str, refuse: Callable[[str, Exception], EngineRefusalError]
    ):
        self.signature, self.name = signature, name
        self._loaded, self._refuse = loaded, refuse
        self._passed: deque[tuple[float, dict[str, np.ndarray]]] = deque()  # when a prediction ended, and its arrays
        weakref.finalize(self, keep_arrays, self._passed).atexit = False
        self._buffers: dict[str, np.ndarray] = {}  # array from which Core ML reads each input, except kv-caches

    def predict(
        self,
        inputs: Mapping[str, np.ndarray],
        state: Any = None,
        caches: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> dict[str, np.ndarray]:
        """Run the function, and return its outputs as float32.

        Args:
            inputs: Inputs that this method copies.
            state: State from ``make_state``. Core ML updates it in place.
            caches: Inputs that Core ML reads in place, contiguous float32.

        Raises:
            TypeError: An input has another name, shape or kind of numbers than the function declares.
            EngineRefusalError: Core ML fails.
        """
        arrays = validate_inputs(self.name, self.signature.inputs, {**inputs, **caches})
        for key, array in caches.items():
            if array.dtype != np.float32 or not array.flags.c_contiguous:
                raise TypeError(f"cache {key} of {self.name} must be contiguous and float32, got {array.dtype}")
        arrays |= {key: self._filled(key, arrays[key]) for key in inputs}
        views = {key: array.view() for key, array in arrays.items()}
        try:
            predicted = self._loaded.predict(dict(views), state)  # coremltools changes the dict
        except (RuntimeError, MemoryError) as error:
            raise self._refuse("run", error) from error
        finally:
            self._hold(views)
        return {
            key: np.ascontiguousarray(predicted[key], np.float32).reshape(type.shape)
            for key, type in self.signature.outputs.items()
        }

    def make_state(self) -> Any:
        try:
            return self._loaded.make_state()
        except (RuntimeError, MemoryError) as error:
            raise self._refuse("make a state for", error) from error

    def _hold(self, views: dict[str, np.ndarray]) -> None:
        """Hold the arrays of a prediction that has ended, because Core ML may still use them.

        Drop much older arrays.
        """
        now = time.monotonic()
        while self._passed and now - self._passed[0][0] > BUFFER_SECONDS:
            self._passed.popleft()
        self._passed.append((now, views))

    def _filled(self, key: str, array: np.ndarray) -> np.ndarray:
        """Copy an input to the buffer from which Core ML reads it, and return this buffer."""
        if key not in self._buffers:
            self._buffers[key] = np.empty(array.shape, INPUT_DTYPES[self.signature.inputs[key].dtype])
        np.copyto(self._buffers[key], array, casting="unsafe")  # narrows float64 and int64
        return self._buffers[key]


class CoreMLRuntime(Runtime):
    """Loads the functions of packages into Core ML, from compiled models in a cache.

    Args:
        api: Access to Core ML. ``None`` means ``CoreMLTools()``, which raises UserError if coremltools does not run.
        cache: Cache of compiled models. ``None`` means the user's cache.
        trial: Child process that compiles packages and does the first load of each function. ``None`` means that this
            process does both itself. Core ML can then hang or crash this process.
    """

    name, in_place = "coreml", True

    def __init__(
        self, api: CoreMLTools | None = None, cache: CompiledCache | None = None, trial: CoreMLTrial | None = None
    ):
        self.api = api or CoreMLTools()
        self.trial = trial
        self.cache = cache or CompiledCache()
        self.machine = self.api.machine()
        # weak references, so that dropping a function frees it
        self._functions: WeakValueDictionary[tuple[Path, str, str], CoreMLFunction] = WeakValueDictionary()
        self._signatures: dict[Path, dict[str, ProgramFunction]] = {}
        self._seconds: dict[tuple[Path, str, str], float] = {}
        self._models: dict[Path, tuple[Path, bool]] = {}

    def load(self, package: Path, function: str, compute_units: str) -> CoreMLFunction:
        """Load a function. Later calls return the same object, as long as somebody still holds it.

        Raises:
            UserError: There are no such compute units, there is no such package or function, the package is damaged, or
                the cache cannot be written.
            EngineRefusalError: Core ML fails.
        """
        key = package, function, compute_units
        loaded = self._functions.get(key)
        if loaded is None:
            if compute_units not in COMPUTE_UNITS:
                raise UserError(
                    f"compute_units must be one of {', '.join(COMPUTE_UNITS)}, got {compute_units!r}", "compute_units"
                )
            signature = self._signature(package, function)
            loaded = self._functions[key] = CoreMLFunction(
                self._open(package, function, compute_units),
                signature,
                f"function {function!r} of {package}",
                lambda action, error: self._refusal(action, package, function, compute_units, error),
            )
        return loaded

    def seconds(self, package: Path, function: str, compute_units: str) -> float:
        key = package, function, compute_units
        if key not in self._seconds:
            self._signature(package, function)  # fills ``_signatures``, which ``_tried`` needs
            name = f"{function} {compute_units}{SECONDS}"
            if name not in self._tried(package, function):
                self.load(package, function, compute_units)
            self._seconds[key] = float(self._tried(package, function).get(name, "nan"))
        return self._seconds[key]

    def default_units(self, stated: str) -> str:
        return WITHOUT_GPU.get(stated, stated) if self.api.gpu_crashes else stated

    def prepare(self, package: Path, function: str, compute_units: str) -> None:
        if self.trial is not None:
            self.seconds(package, function, compute_units)

    def _signature(self, package: Path, function: str) -> ProgramFunction:
        if package not in self._signatures:
            functions = Package(package).functions
            self._signatures[package] = {
                name: replace(function, ops=[], constants={}) for name, function in functions.items()
            }
        signatures = self._signatures[package]
        if function not in signatures:
            raise UserError(f"{package} has no function {function!r}: choose one of {', '.join(sorted(signatures))}")
        for name, type in signatures[function].inputs.items():
            if type.dtype not in INPUT_DTYPES:
                raise UserError(
                    f"input {name} of function {function!r} of {package} is {type.dtype}, but Core ML "
                    f"takes only {', '.join(INPUT_DTYPES)}: convert the model again"
                )
        return signatures[function]

    def _open(self, package: Path, function: str, compute_units: str) -> Any:
        """Open a function.

        If its compiled model from the cache does not open, compile the package again and retry once.
        """
        declared = {
            called: {
                key: (list(type.shape), np.dtype(INPUT_DTYPES[type.dtype]).name)
                for key, type in signature.inputs.items()
            }
            for called, signature in self._signatures[package].items()
        }
        source, name = self._source(package, function)
        try:
            try:
                return self._try(source, function, name, compute_units, declared)
            except (TrialStartError, UnansweredError):
                raise
            except RuntimeError as error:
                if name and ONE_FUNCTION_ONLY in str(error):
                    write_tried(self._compiled(package)[0], {SEVERAL: "refused"})
                    source = single_function(package, function)
                    return self._try(source, function, "", compute_units, declared)
                if self._compiled(source)[1] or OTHER_VALUES in str(error):
                    raise
                self._compiled(source, recompile=True)
                return self._try(source, function, name, compute_units, declared)
        except (TrialStartError, UnansweredError, MemoryError) as error:
            raise self._refusal("load", package, function, compute_units, error) from error
        except RuntimeError as error:
            meaning = error_summary(error)
            if self.trial is not None and meaning != NO_MEMORY:  # later there may be enough memory
                write_tried(self._compiled(source)[0], {f"{function} {compute_units}": meaning})
            raise self._refusal("load", package, function, compute_units, error) from error

    def _source(self, package: Path, function: str) -> tuple[Path, str]:
        """Return the package from which to open a function, and the function's name in this package.

        If this macOS rejects packages with several functions, the function has a separate package, and the name is "".
        """
        if set(self._signatures[package]) == {"main"}:
            return package, ""
        refused = SEVERAL in read_tried(self._compiled(package)[0])
        return (single_function(package, function), "") if refused else (package, function)

    def _tried(self, package: Path, function: str) -> dict[str, str]:
        return read_tried(self._compiled(self._source(package, function)[0])[0])

    def _try(self, package: Path, function: str, name: str, compute_units: str, declared: Mapping[str, Inputs]) -> Any:
        """Open a function. If Core ML has never loaded it on these compute units, the child process loads it first.

        Raises:
            RuntimeError: Core ML cannot load the function, now or when the child process tried.
        """
        compiled, _ = self._compiled(package)
        if self.trial is not None:
            key, tried = f"{function} {compute_units}", read_tried(compiled)
            if not self.trial.golden_cases and OTHER_VALUES in tried.get(key, OTHER_VALUES):
                key += " unproved"
            if tried.get(key):
                raise UnansweredError(f"{tried[key]} (as when it was first loaded: `ane cache clear` forgets that)")
            if key not in tried:
                LOGGER.info(
                    "Loading %s on %s for the first time: this can take minutes, once for each version of macOS",
                    function,
                    UNIT_NAMES[compute_units],
                )
                started = time.monotonic()
                try:
                    seconds = self.trial.load(compiled, name, compute_units, package, function, declared)
                except UnansweredError as error:
                    write_tried(compiled, {key: str(error)})
                    raise
                took = time.monotonic() - started
                write_tried(compiled, {key: "", key + SECONDS: str(seconds), key + LOADED: str(took)})
        return self.api.open(compiled, name, compute_units)

    def _compiled(self, package: Path, recompile: bool = False) -> tuple[Path, bool]:
        """Return the compiled model of a package, and whether this process has compiled it."""
        if recompile or package not in self._models:
            compile = self.api.compile if self.trial is None else self.trial.compile
            started = time.monotonic()
            model, new = self._models[package] = self.cache.model(package, self.machine, compile, recompile)
            if new and self.trial is not None:
                write_tried(model, {COMPILED: str(time.monotonic() - started)})
        return self._models[package]

    def _refusal(
        self, action: str, package: Path, function: str, compute_units: str, error: Exception
    ) -> EngineRefusalError:
        """Create the error for a failure of Core ML.

        The error's message names the function, the units, the cause and a remedy.
        """
        meaning = error_summary(error)
        other = CPU if self.api.gpu_crashes and compute_units != CPU else OTHER_UNITS.get(compute_units)
        advice = f"try compute_units={other}" if other else "use backend=torch"
        return EngineRefusalError(
            f"Core ML cannot {action} function {function!r} of {package} on {compute_units}: {meaning}",
            function=function,
            advice=advice,
        )
