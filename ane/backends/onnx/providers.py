"""Choose an execution provider (device library) of ONNX Runtime, make sessions, and explain ONNX Runtime's errors.

If the library of a provider does not load, ONNX Runtime raises no error, leaves the provider out, and computes on the
CPU. The code here therefore makes a session with the provider, and checks that the session lists the provider.

The required versions come from the published wheels. onnxruntime-gpu 1.24 computes the op ``Attention`` (opset 23) on
the CPU, and 1.25 is the first that computes it on CUDA (microsoft/onnxruntime#28025). Version 1.27 has the first wheels
for CUDA 13, which link TensorRT 10.
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
from ane.system.reports import switch_off_reports

LOGGER = logging.getLogger(__name__)
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
SILENT = 4  # log severity with which ONNX Runtime reports only fatal errors
OLDEST_ONNXRUNTIME = (1, 25)
OLDEST_TENSORRT, FIRST_UNFIT_TENSORRT = (10, 14), (11,)
TENSORRT_PACKAGES = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")


@dataclass(frozen=True)
class OnnxDevice:
    """A device on which ONNX Runtime can compute.

    Attributes:
        name: The NAME in ``--backend onnx:NAME``.
        provider: Name of ONNX Runtime's execution provider.
        memory: Device whose memory holds the inputs: "cpu" or "cuda", as ``OrtValue`` names it.
        requirements: Hardware and software that the device needs, for messages.
    """

    name: str
    provider: str
    memory: str
    requirements: str

    @property
    def short_name(self) -> str:
        return self.provider.removesuffix("ExecutionProvider")


# onnxruntime and onnxruntime-gpu write the same files, so the package that was installed last works
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
# A serialised graph whose output y is a copy of its input x (float32, any shape). Because it is a literal, checking a
# device does not need the library onnx.
IDENTITY = (
    b'\x08\x08:2\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x08identityZ\t\n\x01x\x12\x04\n\x02\x08\x01'
    b"b\t\n\x01y\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x12"
)
DEFAULT_DEVICES = ("cuda", "cpu")  # the backend "onnx" uses the first of these that loads


def onnxruntime_module(user: str = "backend=onnx", extras: str = "'.[onnx]', or on an NVIDIA GPU '.[cuda]'") -> Any:
    """Import onnxruntime without its reports, and silence its logger, whose lines could get into piped output.

    The logger belongs to the whole process. ONNX Runtime still raises its errors as exceptions.

    Args:
        user: Feature that needs onnxruntime, for the message.
        extras: Extras of tortoise-ane that install onnxruntime, for the message.

    Raises:
        UserError: onnxruntime is not installed.
    """
    switch_off_reports()
    try:
        import onnxruntime  # noqa: TID251
    except ImportError as error:
        raise UserError(f"{user} needs {error.name}: pip install {extras}") from error
    onnxruntime.set_default_logger_severity(SILENT)
    return onnxruntime


def make_session(
    graph: Path | bytes, providers: Sequence[str | tuple[str, dict[str, str]]], threads: int | None = None
) -> Any:
    """Make a session (a loaded graph). Raises ONNX Runtime's errors unchanged.

    The session has two settings that are not ONNX Runtime's defaults. A thread that waits for another thread gives up
    its core instead of spinning (docs/onnx.md). If a provider fails, the session raises the error. By default, it would
    print the error on standard output and continue on the CPU.

    Args:
        graph: Path of the graph, or its content.
        providers: Providers to compute on, in order of preference, some with options.
        threads: Number of CPU threads. ``None`` means ONNX Runtime's choice.
    """
    options = onnxruntime_module().SessionOptions()
    options.log_severity_level = SILENT
    if threads is not None:
        options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warns about missing providers, which callers check anyway
        return onnxruntime_module().InferenceSession(
            graph if isinstance(graph, bytes) else str(graph), options, providers=list(providers), enable_fallback=0
        )


def choose_onnx_device(name: str, check: Callable[[OnnxDevice], str] | None = None) -> OnnxDevice:
    """Choose a device by its name. "" means the first of ``DEFAULT_DEVICES`` that loads.

    If "" means the CPU although the machine has an NVIDIA GPU or a CUDA provider, the function logs a line.

    Args:
        name: Name of the device, or "".
        check: Function that returns why a device does not load, or "" if it loads. ``None`` means ``load_error``.

    Raises:
        UserError: onnxruntime is not installed, no device has this name, or the device's provider does not load here.
    """
    ort, check = onnxruntime_module(), check or load_error
    if name and name not in DEVICES:
        raise UserError(
            f"no backend is named 'onnx:{name}': choose one of {', '.join(f'onnx:{device}' for device in DEVICES)}"
        )
    candidates = [DEVICES[candidate] for candidate in ((name,) if name else DEFAULT_DEVICES)]
    if any(device.memory == "cuda" for device in candidates):
        load_libraries(ort)  # some versions list CUDA only after its libraries have been loaded
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
    """Try to make a session on the device. Return the reason in one line if this fails, and otherwise ""."""
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


# Check the versions of NVIDIA's libraries, and load the libraries that pip has installed


@dataclass(frozen=True)
class GpuVersions:
    """Versions of libraries that must fit together. "" means that a library is not installed.

    Attributes:
        onnxruntime: Version of onnxruntime.
        cuda: CUDA version for which onnxruntime is built. "" means that it is built only for the CPU.
        torch: Version of torch.
        torch_cuda: CUDA version for which torch is built. "" means that it is built only for the CPU.
        tensorrt: Version of TensorRT's Python package. "" means that pip has not installed this package.
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
    """Read the versions that are installed on this machine. ``ort`` is the imported module onnxruntime."""
    import torch

    tensorrt = next(filter(None, map(_version, TENSORRT_PACKAGES)), "")
    return GpuVersions(
        ort.__version__, getattr(ort, "cuda_version", "") or "", torch.__version__, torch.version.cuda or "", tensorrt
    )


def version_problem(device: str, versions: GpuVersions) -> str:
    """Explain why these versions cannot compute on a device ("cuda" or "tensorrt").

    Returns:
        The cause and the remedy in one line. "" means that the versions fit.
    """
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
    """Load the libraries of CUDA and cuDNN that pip has installed, and TensorRT's libraries if ``tensorrt`` is true.

    Call this function before you create a session, because the system's loader does not find pip's libraries. A second
    call has no effect.

    Returns:
        The first library that does not load and the reason, in one line. "" means that all libraries load.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():  # standard output may be the speech
        warnings.simplefilter("ignore")
        if getattr(ort, "cuda_version", "") and hasattr(ort, "preload_dlls"):  # since 1.21
            import torch  # noqa: F401  (a torch for CUDA loads CUDA's libraries, which ONNX Runtime can use)

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


# Explain ONNX Runtime's errors

OUT_OF_MEMORY = (
    "no memory left on the device: use fewer lanes, a shorter split, a bundle in fewer bits, or backend=onnx:cpu"
)
# texts in the errors that ONNX Runtime raises if memory runs out
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
# ``run_with_iobinding`` and ``OrtValue`` raise a plain RuntimeError; these texts show that it is ONNX Runtime's error
RUNTIME_MESSAGES = ("Error in execution: ", "CUDA failure", "CUDNN failure", "CUBLAS failure", "[ONNXRuntimeError]")
DRIVER_MESSAGES = ("driver version is insufficient", "CUDA failure 35", "no kernel image is available")


@contextmanager
def onnx_errors(action: str, advice: str = "convert the model again, or use backend=torch") -> Iterator[None]:
    """Within the block, turn errors of ONNX Runtime into a message "ONNX Runtime cannot ``action``: …: ``advice``".

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
