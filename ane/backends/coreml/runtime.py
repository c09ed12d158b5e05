"""Load functions of packages into Core ML on a Mac, call them, and word its errors for the user.

Each function comes from a compiled model in the cache. ``ane.backends.coreml.tools`` contains everything that needs
macOS. Tests replace the native module of coremltools by one that runs ``ane.backends.mil``, so the rest is tested on
any machine. On a Mac, ``pytest tests/mac`` compares Core ML itself with that interpreter.

This code follows from properties of coremltools 9.0 and its binding (CoreMLPythonArray.mm, CoreMLPythonUtils.mm):

* The binding has no float16. ``CompiledMLModel.predict`` copies each fp16 array to float32, Core ML rounds it to fp16
  again, and fp16 outputs are returned as float32. So fp16 inputs are passed as float32.
* A float32 array is not copied. Core ML reads it in place, and holds it for about a second after the prediction. Then a
  thread of Core ML drops the reference without holding the GIL. If that was the last reference, or if Python counts
  references to the same object at that moment, the heap is corrupted (apple/coremltools#2827, #2829). So every
  prediction gets new views of lasting arrays, which nothing touches until long after Core ML has dropped them. A
  function has a buffer for each input. Caches belong to the decoders that share the function, and Core ML reads them
  in place.
* ``predict`` and ``compile_model`` hold the GIL. No other Python thread runs, no progress bar moves, and Ctrl-C waits.
* Core ML may fail to compile for the Neural Engine without an error. Then it may run elsewhere, be killed by macOS in
  the first prediction (apple/coremltools#2758), or not return at all. So a child process tries the first loads.
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

# compute units on which Core ML failed → compute units to try instead
CPU, GPU, NEURAL_ENGINE, ALL = COMPUTE_UNITS
OTHER_UNITS = {ALL: f"{GPU} or {CPU}", NEURAL_ENGINE: f"{GPU} or {CPU}", GPU: f"{NEURAL_ENGINE} or {CPU}"}
WITHOUT_GPU = {ALL: NEURAL_ENGINE, GPU: CPU}

UNIT_NAMES = {CPU: "the CPU", GPU: "the GPU", NEURAL_ENGINE: "the Neural Engine", ALL: "all compute units"}

ONE_FUNCTION_ONLY = "functionName"  # in messages of systems that reject packages with several functions


class CoreMLFunction:
    """A loaded function, for one prediction at once.

    Args:
        loaded: The model that coremltools returned.
        signature: Inputs and outputs of the function.
        name: Name of the function in messages.
        refuse: Function (action, error) → the error to raise if Core ML fails.
    """

    def __init__(
        self, loaded: Any, signature: ProgramFunction, name: str, refuse: Callable[[str, Exception], EngineRefusalError]
    ):
        self.signature, self.name = signature, name
        self._loaded, self._refuse = loaded, refuse
        self._passed: deque[tuple[float, dict[str, np.ndarray]]] = deque()  # end of a prediction, and its arrays
        weakref.finalize(self, keep_arrays, self._passed).atexit = False
        self._buffers: dict[str, np.ndarray] = {}  # arrays that Core ML reads for inputs that are not caches

    def predict(
        self,
        inputs: Mapping[str, np.ndarray],
        state: Any = None,
        caches: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> dict[str, np.ndarray]:
        """Run the function, and return its outputs as float32.

        Args:
            inputs: Inputs to copy.
            state: State from ``make_state``, which is updated in place.
            caches: Inputs that Core ML reads in place, contiguous float32.

        Raises:
            TypeError: Names, shapes or kinds of numbers differ from the declared inputs.
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
        """Hold the arrays of a prediction that has ended, and drop those that Core ML has surely dropped."""
        now = time.monotonic()
        while self._passed and now - self._passed[0][0] > BUFFER_SECONDS:
            self._passed.popleft()
        self._passed.append((now, views))

    def _filled(self, key: str, array: np.ndarray) -> np.ndarray:
        """Copy an input to its buffer, and return the buffer."""
        if key not in self._buffers:
            self._buffers[key] = np.empty(array.shape, INPUT_DTYPES[self.signature.inputs[key].dtype])
        np.copyto(self._buffers[key], array, casting="unsafe")  # float64 and int64 are narrowed
        return self._buffers[key]


class CoreMLRuntime(Runtime):
    """Loads functions of packages into Core ML from cached compiled models.

    Args:
        api: Access to Core ML. ``None`` means coremltools, and raises UserError if that does not run.
        cache: Cache of compiled models. ``None`` means the user's cache.
        trial: Child process that compiles functions and loads them first. ``None`` means that this process does it, so
            that Core ML can hang or crash it.
    """

    name, in_place = "coreml", True

    def __init__(
        self, api: CoreMLTools | None = None, cache: CompiledCache | None = None, trial: CoreMLTrial | None = None
    ):
        self.api = api or CoreMLTools()
        self.trial = trial
        self.cache = cache or CompiledCache()
        self.machine = self.api.machine()
        # weak references, so that a function that the backend drops is freed
        self._functions: WeakValueDictionary[tuple[Path, str, str], CoreMLFunction] = WeakValueDictionary()
        self._signatures: dict[Path, dict[str, ProgramFunction]] = {}
        self._seconds: dict[tuple[Path, str, str], float] = {}
        self._models: dict[Path, tuple[Path, bool]] = {}

    def load(self, package: Path, function: str, compute_units: str) -> CoreMLFunction:
        """Load a function. While it is referenced, later calls return the same object.

        Raises:
            UserError: There are no such compute units, package or function, the package is damaged, or the cache cannot
                be written.
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
            self._signature(package, function)  # reads the package, because ``_tried`` needs it
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
                    f"input {name} of function {function!r} of {package} is {type.dtype}, and Core ML "
                    f"takes {', '.join(INPUT_DTYPES)} only: convert the model again"
                )
        return signatures[function]

    def _open(self, package: Path, function: str, compute_units: str) -> Any:
        """Open a function. If a cached model does not open, it is compiled again, once."""
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
            if self.trial is not None and meaning != NO_MEMORY:  # there may be memory later
                write_tried(self._compiled(source)[0], {f"{function} {compute_units}": meaning})
            raise self._refusal("load", package, function, compute_units, error) from error

    def _source(self, package: Path, function: str) -> tuple[Path, str]:
        """Return the package from which a function is opened, and the function's name in it.

        If this system rejects packages with several functions, that is a separate package, and the name is "".
        """
        if set(self._signatures[package]) == {"main"}:
            return package, ""
        refused = SEVERAL in read_tried(self._compiled(package)[0])
        return (single_function(package, function), "") if refused else (package, function)

    def _tried(self, package: Path, function: str) -> dict[str, str]:
        return read_tried(self._compiled(self._source(package, function)[0])[0])

    def _try(self, package: Path, function: str, name: str, compute_units: str, declared: Mapping[str, Inputs]) -> Any:
        """Open a function, after its trial if there was none. Raises RuntimeError if it fails or has failed before."""
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
        """Word an error of Core ML in one line: the function, the compute units, the cause, and the remedy."""
        meaning = error_summary(error)
        other = CPU if self.api.gpu_crashes and compute_units != CPU else OTHER_UNITS.get(compute_units)
        advice = f"try compute_units={other}" if other else "use backend=torch"
        return EngineRefusalError(
            f"Core ML cannot {action} function {function!r} of {package} on {compute_units}: {meaning}",
            function=function,
            advice=advice,
        )
