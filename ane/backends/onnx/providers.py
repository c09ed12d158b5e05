"""Choose ONNX Runtime's execution provider, make sessions, and word its errors as messages for the user.

ONNX Runtime leaves out a provider whose library does not load, and computes on the CPU without an error. So a provider
counts as loaded only if a session that was made with it lists it.

The versions that fit together are those of the published wheels. CUDA's ``Attention`` (opset 23) came with
onnxruntime-gpu 1.25, because 1.24 computes it on the CPU (microsoft/onnxruntime#28025). Wheels for CUDA 13 came with
1.27. They link TensorRT 10.
"""

import contextlib
import importlib
import io
import logging
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ane.system.errors import UserError

LOGGER = logging.getLogger(__name__)
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
SILENT = 4  # severity of ONNX Runtime that logs only fatal errors
OLDEST_ONNXRUNTIME = (1, 25)
OLDEST_TENSORRT, FIRST_UNFIT_TENSORRT = (10, 14), (11,)
TENSORRT_PACKAGES = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")


@dataclass(frozen=True)
class OnnxDevice:
    """A device that ONNX Runtime can compute on.

    Attributes:
        name: NAME of ``--backend onnx:NAME``.
        provider: ONNX Runtime's name for the device.
        memory: Memory of its inputs, "cpu" or "cuda", as ``OrtValue`` names it.
        requirements: Software and hardware that it needs, for error messages.
    """

    name: str
    provider: str
    memory: str
    requirements: str

    @property
    def short_name(self) -> str:
        return self.provider.removesuffix("ExecutionProvider")


# both packages write the same files, and the one that was installed last works
REPLACE_ONNXRUNTIME = "pip uninstall -y onnxruntime; pip install --force-reinstall --no-deps onnxruntime-gpu"
DEVICES = {
    device.name: device
    for device in (
        OnnxDevice("cpu", CPU, "cpu", "onnxruntime"),
        OnnxDevice(
            "cuda",
            CUDA,
            "cuda",
            "an NVIDIA GPU with a current driver, CUDA and cuDNN, and "
            f"onnxruntime-gpu instead of onnxruntime (pip install '.[cuda]'; {REPLACE_ONNXRUNTIME})",
        ),
        OnnxDevice(
            "tensorrt",
            "TensorrtExecutionProvider",
            "cuda",
            "an NVIDIA GPU with a current driver, CUDA, cuDNN and "
            "TensorRT 10, and onnxruntime-gpu instead of onnxruntime (pip install '.[tensorrt]'; "
            f"{REPLACE_ONNXRUNTIME})",
        ),
    )
}
# A serialised graph whose output y is a copy of its input x (float32, any shape). It is a literal, so that no device
# needs the library onnx.
IDENTITY = (
    b'\x08\x08:2\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x08identityZ\t\n\x01x\x12\x04\n\x02\x08\x01'
    b"b\t\n\x01y\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x12"
)
DEFAULT_DEVICES = ("cuda", "cpu")  # plain "onnx" uses the first device that loads


def onnxruntime_module(user: str = "backend=onnx", extras: str = "'.[onnx]', or on an NVIDIA GPU '.[cuda]'") -> Any:
    """Import onnxruntime and silence its process-wide logger, whose lines could end in pipes. Errors are raised.

    Args:
        user: Feature that needs it, for the message.
        extras: Extras of this package that install it.

    Raises:
        UserError: It is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(f"{user} needs {error.name}: pip install {extras}") from error
    onnxruntime.set_default_logger_severity(SILENT)
    return onnxruntime


def make_session(
    graph: Path | bytes, providers: Sequence[str | tuple[str, dict[str, str]]], threads: int | None = None
) -> Any:
    """Make a session that never moves to the CPU by itself and prints nothing. Raises any error of ONNX Runtime.

    By default, threads that wait for each other spin. Here they leave the core to others (docs/onnx.md). By default, a
    session whose provider fails once prints that on standard output, and computes on the CPU from then on.
    """
    options = onnxruntime_module().SessionOptions()
    options.log_severity_level = SILENT
    if threads is not None:
        options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about providers that are left out, because callers check for them
        return onnxruntime_module().InferenceSession(
            graph if isinstance(graph, bytes) else str(graph), options, providers=list(providers), enable_fallback=0
        )


def choose_onnx_device(name: str, check: Callable[[OnnxDevice], str] | None = None) -> OnnxDevice:
    """Choose a device by its name, or for "" the first of ``DEFAULT_DEVICES`` that loads.

    It logs a line if "" falls back to the CPU although there is an NVIDIA GPU or a CUDA provider.

    Args:
        name: Name of the device, or "".
        check: Returns why a device does not load. ``None`` means ``load_error``.

    Raises:
        UserError: onnxruntime is not installed, there is no such device, or its provider does not load here.
    """
    ort, check = onnxruntime_module(), check or load_error
    if name and name not in DEVICES:
        raise UserError(
            f"no backend is named 'onnx:{name}': choose one of {', '.join(f'onnx:{device}' for device in DEVICES)}"
        )
    candidates = [DEVICES[candidate] for candidate in ((name,) if name else DEFAULT_DEVICES)]
    if any(device.memory == "cuda" for device in candidates):
        load_libraries(ort)  # some versions list CUDA only after its libraries are loaded
    available = ort.get_available_providers()
    for device in candidates:
        if device.provider not in available:
            if name:
                raise UserError(
                    f"the provider {device.short_name} is not part of this onnxruntime: set up "
                    f"{device.requirements}, or use backend=onnx:cpu"
                )
            if device.name == "cuda" and shutil.which("nvidia-smi"):
                LOGGER.info(
                    "There is an NVIDIA GPU, but this onnxruntime is built for the CPU only. CUDA needs "
                    "%s. Running on the CPU.",
                    device.requirements,
                )
            continue
        reason = check(device)
        if not reason:
            return device
        if name:
            raise UserError(
                f"the provider {device.short_name} does not load ({reason}): set up "
                f"{device.requirements}, or use backend=onnx:cpu"
            )
        LOGGER.info(
            "ONNX Runtime's %s provider does not load here: %s. It needs %s. Running on the CPU.",
            device.short_name,
            reason,
            device.requirements,
        )
    raise UserError("no provider of this onnxruntime loads, not even the CPU's: install onnxruntime again")


def load_error(device: OnnxDevice) -> str:
    """Return why no session can be made on the device, in one line, or "" if one can."""
    ort = onnxruntime_module()
    missing = ""
    if device.memory == "cuda":
        missing = load_libraries(ort, tensorrt=device.name == "tensorrt")
    if device.provider not in ort.get_available_providers():
        return "it is not part of this onnxruntime"
    if device.memory == "cuda" and (problem := version_problem(device.name, installed_versions(ort))):
        return problem
    try:
        session = make_session(IDENTITY, [device.provider])
    except Exception as error:  # providers raise errors of any type
        return next((line.strip()[:200] for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if device.provider in session.get_providers():
        return ""
    return missing or "ONNX Runtime leaves it out without a reason"


# Versions of NVIDIA's libraries, and how to load those that pip has installed


@dataclass(frozen=True)
class GpuVersions:
    """Versions that must fit together. "" means that something is missing.

    Attributes:
        onnxruntime: Version of onnxruntime.
        cuda: CUDA version that onnxruntime is built for. "" means that it is built for the CPU only.
        torch: Version of torch.
        torch_cuda: CUDA version that torch is built for.
        tensorrt: Version of TensorRT's Python package. It is also "" if TensorRT was installed without pip.
    """

    onnxruntime: str
    cuda: str = ""
    torch: str = ""
    torch_cuda: str = ""
    tensorrt: str = ""

    def __str__(self) -> str:
        built = [
            f"{name} {version} for {f'CUDA {cuda}' if cuda else 'the CPU'}"
            for name, version, cuda in (
                ("onnxruntime", self.onnxruntime, self.cuda),
                ("torch", self.torch, self.torch_cuda),
            )
        ]
        return ", ".join([*built, *([f"TensorRT {self.tensorrt}"] if self.tensorrt else [])])


def installed_versions(ort: Any) -> GpuVersions:
    """Return the versions on this machine. ``ort`` is the module onnxruntime."""
    import torch

    tensorrt = next(filter(None, map(_version, TENSORRT_PACKAGES)), "")
    return GpuVersions(
        ort.__version__, getattr(ort, "cuda_version", "") or "", torch.__version__, torch.version.cuda or "", tensorrt
    )


def version_problem(device: str, versions: GpuVersions) -> str:
    """Return why these versions cannot compute on "cuda" or "tensorrt", with the remedy, or "" if they can."""
    if _numbers(versions.onnxruntime) < OLDEST_ONNXRUNTIME:
        return f"onnxruntime {versions.onnxruntime} computes attention on the CPU: pip install --upgrade '.[cuda]'"
    ours, torchs = versions.cuda.partition(".")[0], versions.torch_cuda.partition(".")[0]
    if ours and ours != torchs:
        return (
            f"onnxruntime {versions.onnxruntime} is built for CUDA {ours} and torch {versions.torch} for "
            f"{f'CUDA {torchs}' if torchs else 'the CPU'}: install both for the same CUDA (for CUDA 13 "
            "onnxruntime-gpu>=1.27 and torch>=2.11)"
        )
    if (
        device == "tensorrt"
        and versions.tensorrt
        and not (OLDEST_TENSORRT <= _numbers(versions.tensorrt) < FIRST_UNFIT_TENSORRT)
    ):
        return (
            f"TensorRT {versions.tensorrt} does not fit onnxruntime {versions.onnxruntime}: pip install '.[tensorrt]'"
        )
    return ""


def load_libraries(ort: Any, tensorrt: bool = False) -> str:
    """Load CUDA, cuDNN and optionally TensorRT from the packages that pip has installed, before the first session.

    The system's loader does not look there. Loading them again has no effect.

    Returns:
        The first library that does not load, with the reason, in one line. "" means that all load.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():  # because standard output may be speech
        warnings.simplefilter("ignore")
        if getattr(ort, "cuda_version", "") and hasattr(ort, "preload_dlls"):  # since 1.21
            import torch  # noqa: F401  (a torch for CUDA loads its libraries, which serve both)

            ort.preload_dlls()
        if tensorrt:
            with contextlib.suppress(ImportError, OSError):
                importlib.import_module("tensorrt")  # loads its libraries
    failed = re.search(r"^Failed to load (.+)$", printed.getvalue(), re.MULTILINE)
    return failed[1].strip()[:200] if failed else ""


def _version(package: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


# Errors

OUT_OF_MEMORY = (
    "no memory left on the device: use fewer lanes, a shorter split, a bundle in fewer bits, or backend=onnx:cpu"
)
# parts of ONNX Runtime's messages, by cause
MEMORY_MESSAGES = (
    "Failed to allocate memory",
    "out of memory",
    "OUT_OF_MEMORY",
    "bad_alloc",
    "bad allocation",
    "not enough memory",
    "STATUS_ALLOC_FAILED",
    "Available memory of",
)
# ``run_with_iobinding`` and ``OrtValue`` raise a plain RuntimeError, which these messages identify as ONNX Runtime's
RUNTIME_MESSAGES = ("Error in execution: ", "CUDA failure", "CUDNN failure", "CUBLAS failure", "[ONNXRuntimeError]")
DRIVER_MESSAGES = ("driver version is insufficient", "CUDA failure 35", "no kernel image is available")


@contextmanager
def onnx_errors(action: str, advice: str = "convert the model again, or use backend=torch") -> Iterator[None]:
    """Convert ONNX Runtime's errors to one line for the user: "ONNX Runtime cannot ``action``: …: ``advice``".

    Raises:
        UserError: ONNX Runtime raised an error. Errors of other modules stay unchanged.
    """
    try:
        yield
    except MemoryError as error:
        raise UserError(OUT_OF_MEMORY) from error
    except Exception as error:
        text = str(error)
        if any(part in text for part in MEMORY_MESSAGES):
            raise UserError(OUT_OF_MEMORY) from error
        if any(part in text for part in DRIVER_MESSAGES):
            raise UserError(
                f"ONNX Runtime cannot {action}: the GPU or its driver is too old for this onnxruntime: "
                "update the driver, or use backend=onnx:cpu"
            ) from error
        plain = isinstance(error, RuntimeError) and any(part in text for part in RUNTIME_MESSAGES)
        if not (plain or type(error).__module__.startswith("onnxruntime")):
            raise
        line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"ONNX Runtime cannot {action}: {line[:300]}: {advice}") from error
