"""Where ONNX Runtime computes: its providers, which of them load here, and its errors in the user's words.

ONNX Runtime leaves out a provider whose library does not load, and computes on the CPU without an error. So a provider
counts as loaded when a session that was made with it says that it has it.
"""

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ane.system.errors import UserError

CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class Device:
    """A provider of ONNX Runtime.

    Attributes:
        name: as ``--backend onnx:NAME`` has it. provider: as ONNX Runtime calls it.
        memory: where its inputs lie: "cpu" or "cuda", as ``OrtValue`` calls it.
        needs: what must be there for it, for the message when it is not.
    """

    name: str
    provider: str
    memory: str
    needs: str

    @property
    def spoken(self) -> str:
        return self.provider.removesuffix("ExecutionProvider")


DEVICES = {device.name: device for device in (
    Device("cpu", CPU, "cpu", "onnxruntime"),
    Device("cuda", "CUDAExecutionProvider", "cuda", "an NVIDIA GPU with a current driver, CUDA and cuDNN, and "
           "onnxruntime-gpu in place of onnxruntime (pip uninstall onnxruntime; pip install 'tortoise-ane[cuda]')"),
    Device("tensorrt", "TensorrtExecutionProvider", "cuda", "an NVIDIA GPU with a current driver, CUDA, cuDNN and "
           "TensorRT (pip install tensorrt), and onnxruntime-gpu in place of onnxruntime"),
    Device("coreml", "CoreMLExecutionProvider", "cpu", "a Mac, and an onnxruntime for it"),
)}
BY_ITSELF = ("cuda", "cpu")         # what plain "onnx" takes the first of that loads


def runtime() -> Any:
    """The module onnxruntime. Raises UserError when it, or onnx, is not installed."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise UserError(f"--backend onnx needs {error.name}: pip install 'tortoise-ane[onnx]', or on an NVIDIA GPU "
                        "'tortoise-ane[cuda]'") from error
    del onnx
    return onnxruntime


def choose(name: str, notice: Callable[[str], None] = lambda line: None,
           fault: Callable[[Device], str] | None = None) -> Device:
    """The device of that name; "": the best that loads, and ``notice`` is told of one that is there and does not, and
    of a GPU that this onnxruntime is not made for. ``fault`` is ``fault_of``.

    Raises:
        UserError: onnxruntime is not installed, there is no such device, or its provider does not load here.
    """
    ort = runtime()
    fault, there = fault or fault_of, ort.get_available_providers()
    if name and name not in DEVICES:
        raise UserError(f"no backend is named 'onnx:{name}'; there are "
                        f"{', '.join(f'onnx:{device}' for device in DEVICES)}")
    for candidate in (name,) if name else BY_ITSELF:
        device = DEVICES[candidate]
        if device.provider not in there:
            if name:
                raise UserError(f"the provider {device.spoken} is not part of this onnxruntime; it needs "
                                f"{device.needs}. Or use --backend onnx:cpu")
            if device.name == "cuda" and shutil.which("nvidia-smi"):
                notice(f"There is an NVIDIA GPU and this onnxruntime is for the CPU alone; CUDA needs {device.needs}. "
                       "Running on the CPU.")
            continue
        why = fault(device)
        if not why:
            return device
        if name:
            raise UserError(f"the provider {device.spoken} does not load: {why}; it needs {device.needs}. Or use "
                            "--backend onnx:cpu")
        notice(f"ONNX Runtime's {device.spoken} provider does not load here: {why}; it needs {device.needs}. Running "
               "on the CPU.")
    raise UserError("this onnxruntime has no provider that loads, not even the CPU's: install it again")


def fault_of(device: Device) -> str:
    """Why no session can be made with the device, in one line; "" when one can."""
    ort = runtime()
    if device.provider not in ort.get_available_providers():
        return "it is not part of this onnxruntime"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")         # what it would warn of is returned
            session = ort.InferenceSession(_nothing(), quiet_options(), providers=[device.provider])
    except Exception as error:       # whatever a provider's library raises: it does not load
        return next((line.strip()[:200] for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return "" if device.provider in session.get_providers() else "ONNX Runtime leaves it out and does not say why"


def quiet_options(threads: int | None = None) -> Any:
    """ONNX Runtime's own defaults, but for its warnings and the threads that were asked for."""
    options = runtime().SessionOptions()
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads = threads
    return options


def _nothing() -> bytes:
    """A graph that gives back its input."""
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


class OutOfMemoryError(UserError):
    """No memory left on the device or the host."""


class RecordingError(UserError):
    """A session, or a run, that cannot be recorded as a CUDA graph."""


OUT_OF_MEMORY = ("no memory left on the device: use fewer --lanes, a shorter --split, a bundle in fewer bits "
                 "(--precision), or --backend onnx:cpu")
SAID_OF_MEMORY = ("Failed to allocate memory", "out of memory", "OUT_OF_MEMORY", "bad_alloc", "bad allocation",
                  "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED", "Available memory of")
SAID_OF_RECORDING = ("graph capture", "stream is capturing", "CUDA graph", "cudaGraph", "StreamCapture")
SAID_OF_DRIVER = ("driver version is insufficient", "CUDA failure 35", "no kernel image is available")


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn ONNX Runtime's errors into one line for the user.

    Raises:
        OutOfMemoryError: no memory left. RecordingError: it records no CUDA graph of this. UserError: anything else
            that ONNX Runtime itself fails at.
    """
    try:
        yield
    except MemoryError as error:
        raise OutOfMemoryError(OUT_OF_MEMORY) from error
    except Exception as error:
        text = str(error)
        if any(piece in text for piece in SAID_OF_MEMORY):
            raise OutOfMemoryError(OUT_OF_MEMORY) from error
        if any(piece in text for piece in SAID_OF_DRIVER):
            raise UserError(f"ONNX Runtime cannot {doing}: the GPU's driver is too old for this onnxruntime, or the "
                            "GPU is; update the driver, or use --backend onnx:cpu") from error
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        if any(piece in text for piece in SAID_OF_RECORDING):
            raise RecordingError(f"ONNX Runtime cannot {doing}: {line[:300]}") from error
        raise UserError(f"ONNX Runtime cannot {doing}: {line[:300]}; convert the model again, or use --backend "
                        "torch") from error
