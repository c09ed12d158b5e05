"""Stand in for coremltools' native module, ``coremltools.libcoremlpython``, on machines without Core ML.

coremltools' own Python code runs on the stand-in unmodified. The stand-in refuses what the binding refuses: wrong
types, dtypes and contents of arrays, unknown functions, and states of another model (coremlpython/*.mm in
apple/coremltools). It compiles by copying, and predicts in the interpreter ``ane.backends.mil`` with fp16 rounding. It
plans only the default function, because ``get_compute_plan`` passes no function name. A test can order it to fail
(``Order``), in this process and in child processes. It writes every call to a log.

It cannot show where operations run, or what the Neural Engine computes. Its times come from ``clock``.
"""

import contextlib
import shutil
import sys
import tempfile
import time
import weakref
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ane.system.machine import macos_version
from tests.backends.coreml.orders import StandIn, here

READ_SECONDS = 1.0  # seconds for which Core ML reads an array after the prediction
FLUSH = "flush"  # if the folder has this file, subnormals of fp16 become 0, as on an M1
STALE_FROM = 100
BYTES_PER_SECOND, SLOW_BYTES_PER_SECOND = 1e9, 1e6  # bytes that a prediction moves per second of ``clock``
UNITS = ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL")
SPECIFICATION_VERSION = 9  # specification version of macOS 15
INPUT_DTYPES = {"fp16": (np.float32, np.float64), "fp32": (np.float32, np.float64), "int32": (np.int32,)}


_passed = [0.0]  # seconds that all predictions of this process took


def clock() -> float:
    """In place of ``time.perf_counter``: the seconds of all predictions of this process, by the bytes they move."""
    return _passed[0]


# Classes and functions of the native module, with the same names


class _State:
    """pybind's class of MLState: arrays by name."""

    def __init__(self, model: "_MLModelProxy", arrays: dict[str, np.ndarray]):
        self.model, self.arrays = model, arrays

    def read_state(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise RuntimeError(f"Unknown state name {name}")
        return self.arrays[name].astype(np.float32)


class _MLModelProxy:
    def __init__(self, path: str, units: str, function: str, hints: dict, asset: Any = None):
        if not (type(path) is str and type(units) is str and type(function) is str and type(hints) is dict):
            raise TypeError("__init__(): incompatible constructor arguments")
        assert units in UNITS, units  # the binding asserts this too
        assert asset is None
        from ane.backends.mil import Arithmetic, Interpreter

        self.stand_in, self.units, self.deleted = here(), units, None
        if not path.rstrip("/").endswith(".mlmodelc"):
            path = self.compileModel(path)
            self.deleted = weakref.finalize(self, shutil.rmtree, path, True)
        self.path = Path(path)
        self.package = opened(self.path)
        if function and set(self.package.functions) == {"main"}:
            raise RuntimeError('{\n NSLocalizedDescription = "One function: functionName must be nil.";\n}')
        self.function = function or self.package.default_function
        self.stand_in.obey("load", self.function, units)
        if self.function not in self.package.functions:
            raise RuntimeError(f'{{\n NSLocalizedDescription = "There is no function named {function}.";\n}}')
        flush = (self.stand_in.folder / FLUSH).exists()
        self.interpreter = Interpreter(self.package, self.function, Arithmetic(fp16=True, flush=flush))
        self.predictions, self.older = 0, {}

    def get_compiled_model_path(self) -> str:
        return str(self.path)

    def predict(self, features: dict, state: _State | None) -> dict[str, np.ndarray]:
        from ane.backends.mil import InterpreterState

        if type(features) is not dict or not (state is None or isinstance(state, _State)):
            raise TypeError("predict(): incompatible function arguments")
        spoiled = self.stand_in.obey("predict", self.function, self.units)
        declared = self.interpreter.function.inputs
        arrays = {name: multi_array(value) for name, value in features.items()}
        for name, type_ in declared.items():
            if name not in arrays:
                raise RuntimeError(f'{{\n NSLocalizedDescription = "Feature {name} is required, but missing.";\n}}')
            array = arrays[name]
            if array.shape != type_.shape or array.dtype.type not in INPUT_DTYPES[type_.dtype]:
                raise RuntimeError(
                    f'{{\n NSLocalizedDescription = "MultiArray {name} {array.dtype} {array.shape} does '
                    f'not match {type_} of the model description.";\n}}'
                )
        states = self._states(state)
        if spoiled == "forget" and states is not None:
            states = InterpreterState(states).copied()
        self.predictions += 1
        if spoiled == "stale" and self.predictions >= STALE_FROM:
            arrays |= self.older
        self.older = {name: arrays[name].copy() for name in declared if name.endswith(("keys", "values"))}
        outputs = self.interpreter.predict({name: arrays[name] for name in declared}, states)
        for name in declared:
            watch(features[name], name)
        if spoiled == "nan":
            outputs = {name: np.full_like(array, np.nan) for name, array in outputs.items()}
        if spoiled == "off":
            outputs = {name: array * np.float32(1.05) for name, array in outputs.items()}
        returned = {
            name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in outputs.items()
        }
        handed = [arrays[name] for name in declared]
        moved = sum(array.nbytes for array in (*handed, *returned.values()))
        self.stand_in.note(f"moved {moved}")
        _passed[0] += moved / (SLOW_BYTES_PER_SECOND if spoiled == "slow" else BYTES_PER_SECOND)
        return returned

    def newState(self) -> _State:  # noqa: N802  the binding's name
        return _State(self, self.interpreter.make_state())

    def _states(self, state: _State | None) -> Any:
        """The arrays of a state that a function of the same model made, of the same names, shapes and types."""
        declared = self.interpreter.make_state()
        if not declared:
            return None
        if state is None:
            raise RuntimeError('{\n NSLocalizedDescription = "A stateful model needs a state.";\n}')
        if state.model.path != self.path or {
            name: (array.shape, array.dtype) for name, array in state.arrays.items()
        } != {name: (array.shape, array.dtype) for name, array in declared.items()}:
            raise RuntimeError('{\n NSLocalizedDescription = "The state was made by another model.";\n}')
        return state.arrays

    @staticmethod
    def compileModel(path: str) -> str:  # noqa: N802  the binding's name
        if type(path) is not str:
            raise TypeError("compileModel(): incompatible function arguments")
        here().obey("compile", Path(path).name)
        destination = Path(tempfile.mkdtemp(".mlmodelc", f"{Path(path).stem}_"))
        shutil.copytree(path, destination, dirs_exist_ok=True)
        here().note(f"wrote {sum(file.stat().st_size for file in destination.rglob('*') if file.is_file())}")
        try:
            opened(destination)
        except RuntimeError:
            shutil.rmtree(destination)
            raise
        return str(destination)

    @staticmethod
    def maximum_supported_specification_version() -> int:
        return SPECIFICATION_VERSION

    @staticmethod
    def auto_set_specification_version(spec: Any) -> Any:
        return spec

    @staticmethod
    def get_compute_plan(path: str, units: str) -> Any:
        """A plan of the default function. Convolutions run on the Neural Engine where it is allowed, transposes not."""
        from coremltools.models import compute_device, compute_plan

        package = opened(Path(path))
        name = package.default_function
        here().obey("plan", name, units)
        cpu = compute_device.MLCPUComputeDevice(_MLCPUComputeDeviceProxy())
        gpu = compute_device.MLGPUComputeDevice(_MLGPUComputeDeviceProxy())
        engine = compute_device.MLNeuralEngineComputeDevice(_MLNeuralEngineComputeDeviceProxy())
        best = {"CPU_ONLY": cpu, "CPU_AND_GPU": gpu}.get(units, engine)

        def operation(op: Any) -> Any:
            outputs = [compute_plan.MLModelStructureProgramNamedValueType(key, None) for key in op.outputs]
            return compute_plan.MLModelStructureProgramOperation(
                {}, f"ios18.{op.type}", outputs, [], SimpleNamespace(type=op.type)
            )

        # the structure has all functions, but the plan has devices only for the operations of the default function
        planned = [operation(op) for op in package.function(name).ops]
        functions = {
            other: compute_plan.MLModelStructureProgramFunction(
                [],
                compute_plan.MLModelStructureProgramBlock(
                    [], planned if other == name else [operation(op) for op in package.function(other).ops], []
                ),
            )
            for other in package.functions
        }
        known = {id(one) for one in planned}

        def usage(one: Any) -> Any:
            if id(one) not in known:
                return None
            device = cpu if one.__proxy__.type == "transpose" else best
            return compute_plan.MLComputePlanDeviceUsage(device, [cpu] if device is cpu else [cpu, device])

        proxy = _MLComputePlanProxy()
        program = compute_plan.MLModelStructureProgram(functions)
        proxy.model_structure = compute_plan.MLModelStructure(None, program, None)
        proxy.get_compute_device_usage_for_mlprogram_operation = usage
        proxy.get_estimated_cost_for_mlprogram_operation = lambda one: (
            compute_plan.MLComputePlanCost(1 / len(planned)) if id(one) in known else None
        )
        return compute_plan.MLComputePlan(proxy)


class _MLComputePlanProxy: ...


class _MLCPUComputeDeviceProxy: ...


class _MLGPUComputeDeviceProxy: ...


class _MLNeuralEngineComputeDeviceProxy:
    def get_total_core_count(self) -> int:
        return 16


class _MLModelAssetProxy: ...


CLASSES = (
    _MLModelProxy,
    _State,
    _MLComputePlanProxy,
    _MLCPUComputeDeviceProxy,
    _MLGPUComputeDeviceProxy,
    _MLNeuralEngineComputeDeviceProxy,
    _MLModelAssetProxy,
)


def opened(model: Path) -> Any:
    """The package or compiled model, its weights readable. RuntimeError with Core ML's kind of message when not."""
    from ane.system.errors import UserError

    try:
        return parsed(
            model,
            tuple(
                (file, status.st_ino, status.st_mtime_ns, status.st_size)
                for file in sorted(model.rglob("*"))
                for status in [file.stat()]
            ),
        )
    except UserError as error:
        raise RuntimeError(f'{{\n    NSLocalizedDescription = "Error reading the model: {error}";\n}}') from error


@lru_cache(maxsize=4)
def parsed(model: Path, files: tuple[tuple[Path, int, int, int], ...]) -> Any:
    """The package, parsed once for all its functions while its files are unchanged."""
    from ane.backends.mil import Package

    return Package(model)


def multi_array(value: Any) -> np.ndarray:
    """What ``convertValueToObjC`` accepts of arrays: it drops the reason of a refusal."""
    accepted = (
        isinstance(value, np.ndarray)
        and value.ndim
        and value.flags.writeable
        and (value.dtype in (np.int32, np.float32, np.float64))
        and value.flags.c_contiguous
    )
    if not accepted:
        raise RuntimeError("value type not convertible")
    return value


def watch(array: np.ndarray, name: str) -> None:
    """Core ML reads an array for a while after the prediction: log it if it dies before."""
    since, folder = time.monotonic(), here().folder

    def died() -> None:
        if time.monotonic() - since < READ_SECONDS:
            with contextlib.suppress(OSError), (folder / "log").open("a") as log:
                log.write(f"freed too early: {name}\n")

    weakref.finalize(array, died).atexit = False


def native_module() -> ModuleType:
    module = ModuleType("coremltools.libcoremlpython")
    for one in CLASSES:
        setattr(module, one.__name__, one)
    return module


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def write_system(folder: Path, version: str, build: str = "24F74") -> None:
    """Give the machine of ``folder`` another macOS."""
    write_program(folder / "bin" / "sw_vers", f'case "$1" in -productVersion) echo {version};; *) echo {build};; esac')
    macos_version.cache_clear()


def machine_folder(folder: Path, version: str = "15.5", chip: str = "Apple M2", build: str = "24F74") -> StandIn:
    """Make ``folder`` the machine's: an empty log, and the commands ``sw_vers`` and ``sysctl`` in ``bin``."""
    (folder / "bin").mkdir(parents=True)
    write_program(folder / "bin" / "sysctl", f'case "$2" in machdep.cpu.brand_string) echo "{chip}";; *) exit 1;; esac')
    write_system(folder, version, build)
    return StandIn(folder)


def install_in_process(setattr_: Any = setattr, setitem: Any = dict.__setitem__) -> None:
    """Make this process believe that it runs on the Mac of ``machine_folder``.

    With a monkeypatch's ``setattr`` and ``setitem`` it ends with the test.
    """
    import platform

    module = native_module()
    setitem(sys.modules, module.__name__, module)
    for name in ("model", "_compiled_model", "compute_plan", "compute_device"):
        user = sys.modules.get(f"coremltools.models.{name}")
        for one in CLASSES:
            if user is not None and hasattr(user, one.__name__):  # it was imported when the native module was missing
                setattr_(user, one.__name__, one)
    setattr_(sys, "platform", "darwin")
    # what Python reports on macOS 26 if it was built with an older SDK
    setattr_(platform, "mac_ver", lambda: ("16.0", ("", "", ""), "arm64"))
    macos_version.cache_clear()
    utils = sys.modules.get("coremltools.models.utils")
    if utils is not None:
        utils._macos_version.cache_clear()
