"""Choose the device that torch computes on, explain why CUDA does not work, and manage torch's memory and precision.

By default, torch lets cuDNN round the factors of float32 convolutions to TF32 (10 bits of mantissa), which is audible
in a vocoder. Matrix products stay float32 (https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere).
"""

import ctypes
import logging
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ane.system.errors import UserError
from ane.system.machine import macos_at_least

LOGGER = logging.getLogger(__name__)

# part of torch's message if CUDA does not start → the cause, and the remedy
CUDA_PROBLEMS = {
    "not compiled with CUDA": "this torch was built without CUDA: install one built with it "
    "(https://pytorch.org/get-started/locally)",
    "driver on your system is too old": "the NVIDIA driver is too old for this torch, which is built for CUDA "
    "{built}: update the driver, or install a torch built for an older CUDA "
    "(https://pytorch.org/get-started/previous-versions)",
    "no NVIDIA driver": "this machine has no NVIDIA driver: if it has an NVIDIA GPU, install the driver",
    "no kernel image": "this torch has no kernels for this GPU: install a torch built for GPUs of its generation "
    "(https://pytorch.org/get-started/previous-versions)",
    "No CUDA GPUs": "torch finds no NVIDIA GPU{hidden}: `nvidia-smi` lists those that the driver finds",
}
EXPECTED_PROBLEMS = ("not compiled with CUDA", "no NVIDIA driver", "No CUDA GPUs")  # without an NVIDIA GPU


@dataclass(frozen=True)
class CudaProblem:
    """The reason why torch cannot use CUDA.

    Attributes:
        message: Cause and remedy, in one line.
        unexpected: Whether the machine seems to have an NVIDIA GPU, so that the user should know.
    """

    message: str
    unexpected: bool


def cuda_problem() -> CudaProblem | None:
    """Return why torch cannot compute on CUDA here, or ``None`` if it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch also warns about the problem
        try:
            torch.cuda.init()
            torch.ones(1, device="cuda").neg_()  # because a GPU can be listed and yet not be supported
            return None
        except (AssertionError, RuntimeError, torch.cuda.DeferredCudaCallError) as error:
            text = str(error)
    for part, meaning in CUDA_PROBLEMS.items():
        if part in text:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
            message = meaning.format(built=torch.version.cuda, hidden=hidden)
            return CudaProblem(message, part not in EXPECTED_PROBLEMS or shutil.which("nvidia-smi") is not None)
    return CudaProblem(f"CUDA does not start: {text.strip().partition(chr(10))[0]}", True)


def choose_device(name: str, small: bool = False) -> torch.device:
    """Return the device of that name. "auto" is CUDA, or MPS if there is no CUDA, or else the CPU.

    It logs a line if "auto" cannot use an NVIDIA GPU that the machine seems to have.

    Args:
        name: "auto", "cpu", "cuda", "cuda:N" or "mps".
        small: Whether the model is so small that MPS does not make it faster. Then "auto" is never MPS.

    Raises:
        UserError: This machine lacks the device, or torch cannot use it.
    """
    kind, colon, number = name.partition(":")
    mps = torch.backends.mps.is_available()
    problem = cuda_problem() if kind in ("auto", "cuda") else None
    if name == "auto":
        chosen = "cuda" if problem is None else "mps" if mps and not small else "cpu"
        if problem is not None and problem.unexpected:
            LOGGER.info("using %s instead of CUDA: %s", chosen, problem.message)
        return torch.device(chosen)
    others = " or ".join(["torch:mps"] * (mps and kind != "mps") + ["torch:cpu"])
    if kind == "cuda" and problem is not None:
        raise UserError(f"backend=torch:{name}: {problem.message}, or use {others}")
    count = torch.cuda.device_count() if kind == "cuda" else 1 if kind == "cpu" or (kind == "mps" and mps) else 0
    if not count or (colon and number not in map(str, range(count))):
        numbers = f" (it has {count} of kind {kind}, numbered from 0)" if count else ""
        raise UserError(f"this machine has no {name!r} device for torch{numbers}: use {others}")
    return torch.device(name)


def refuses_long_rows(device: torch.device) -> bool:
    """Return whether convolutions with an axis above 65,536 fail, as on MPS before macOS 15.1 (torch's Convolution.mm).

    A vocoder's rows are longer than this from 2.73 s of sound on.
    """
    return device.type == "mps" and not macos_at_least(15, 1)


def native_bf16(device: torch.device) -> bool:
    """Return whether a CUDA device computes in bfloat16, as NVIDIA GPUs do from compute capability 8.0 on (Ampere)."""
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)


OUT_OF_MEMORY = (
    "no memory left on the device: use fewer lanes, a shorter split, a bundle in half precision, or backend=torch:cpu"
)
# glibc: block size from which a block gets its own mapping, and freed memory at the end of a heap that glibc keeps
MAPPED_BLOCK, KEPT_MEMORY = 2**25, 2**28
HEAPS = 2  # heaps of glibc that all threads of a server share
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # options of mallopt(3)
# parts of the messages from MPS, CUDA, the CPU's allocator, and cuBLAS, which allocates a workspace
MEMORY_MESSAGES = ("out of memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")


@contextmanager
def torch_memory_errors() -> Iterator[None]:
    """Convert torch's out-of-memory errors to one line for the user. Other errors stay unchanged.

    Raises:
        UserError: No memory is left, on the device or on the host.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error):
            raise UserError(OUT_OF_MEMORY) from error
        raise


def out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is an out-of-memory error.

    An error while a CUDA graph is recorded causes another one, about the aborted recording.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
            part in str(error) for part in MEMORY_MESSAGES
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def keep_freed_memory() -> None:
    """Make glibc keep the memory that layers free, unless the user has set its thresholds.

    By default, glibc returns freed memory at the end of its heap to the system, which must clear each page before it is
    used again. Layers allocate and free the same tens of MB over and over. A guided call in int8 had 48,000 page
    faults, which took a fifth of its time.
    """
    if not {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        _set_glibc(M_MMAP_THRESHOLD, MAPPED_BLOCK)
        _set_glibc(M_TRIM_THRESHOLD, KEPT_MEMORY)


def share_heaps() -> None:
    """Make glibc use ``HEAPS`` heaps for all threads that start later, unless the user has set their number.

    By default it has up to eight heaps per core, and each of them keeps pages that its threads have freed. A server
    with ten clients grew by 183 MB in five minutes with these, and by 67 MB with two heaps. The CPU time of a request
    was the same.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        _set_glibc(M_ARENA_MAX, HEAPS)


def _set_glibc(option: int, value: int) -> None:
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent in musl
        if mallopt is not None:
            mallopt(option, value)


def return_freed_memory(device: torch.device) -> None:
    """Return freed memory to the system that torch's CUDA allocator, or the C library, would keep.

    Once a block of up to 32 MB has been freed, glibc serves such blocks from its heap, and a heap shrinks only at its
    end. After decoding at the official size, 1.4 GB of freed weights and cache stayed resident.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # absent in musl
        if trim is not None:
            trim(0)


class ConvolutionPrecision:
    """Torch's precision of float32 convolutions, which all threads of the process share.

    ``torch.backends.cudnn.flags`` would set other flags too. It also raises an error in a program that has used the
    newer setting per operator (``torch.backends.cudnn.conv.fp32_precision``, since torch 2.9).
    """

    def __init__(self) -> None:
        self._lock, self._calls = threading.Lock(), 0
        self._before: str | bool | None = None

    @contextmanager
    def full(self) -> Iterator[None]:
        """Compute convolutions in full float32 inside the block. The setting returns after the last such block."""
        with self._lock:
            if not self._calls:
                self._before = self._set("ieee")
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    self._set(self._before)

    def _set(self, precision: str | bool) -> str | bool:
        """Set the precision and return the previous one: a name for the newer setting, a boolean for the older one."""
        cudnn = torch.backends.cudnn
        if hasattr(cudnn, "conv"):
            before, cudnn.conv.fp32_precision = cudnn.conv.fp32_precision, precision
        else:
            before, cudnn.allow_tf32 = cudnn.allow_tf32, precision is True
        return before


convolutions = ConvolutionPrecision()  # one per process, as torch's setting is
