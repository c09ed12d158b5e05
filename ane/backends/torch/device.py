"""Choose the device on which torch computes, explain why CUDA does not work, and manage torch's memory and precision.

By default, cuDNN rounds the factors of torch's float32 convolutions to TF32, which has a mantissa of 10 bits. In a
vocoder, you can hear this rounding, so we turn it off. Matrix products are in float32 by default
(https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere).
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

# text in the error that torch raises if CUDA does not start → cause and remedy for the user
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
EXPECTED_PROBLEMS = ("not compiled with CUDA", "no NVIDIA driver", "No CUDA GPUs")  # usual causes without an NVIDIA GPU


@dataclass(frozen=True)
class CudaProblem:
    """The reason why torch cannot use CUDA.

    Attributes:
        message: Cause and remedy, in one line.
        unexpected: Whether the machine seems to have an NVIDIA GPU, so that the user should hear about the problem.
    """

    message: str
    unexpected: bool


def cuda_problem() -> CudaProblem | None:
    """Try to compute on CUDA. Return why torch cannot use CUDA, or ``None`` if it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hides torch's own warning about the problem
        try:
            torch.cuda.init()
            torch.ones(1, device="cuda").neg_()  # torch may list a GPU that it does not support
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
    """Return the device with this name. "auto" means CUDA. Without CUDA it means MPS, and without MPS the CPU.

    If the machine seems to have an NVIDIA GPU that "auto" cannot use, the function logs a line.

    Args:
        name: "auto", "cpu", "cuda", "cuda:N" or "mps".
        small: Whether the model is so small that MPS does not make it faster. Then "auto" never means MPS.

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
    """Return whether the device cannot compute convolutions over more than 65,536 positions.

    MPS cannot do this before macOS 15.1 (Convolution.mm in torch). A vocoder needs longer rows for 2.73 s of sound or
    more.
    """
    return device.type == "mps" and not macos_at_least(15, 1)


def native_bf16(device: torch.device) -> bool:
    """Return whether a CUDA device computes in bfloat16. Ampere (compute capability 8.0) and later NVIDIA GPUs do."""
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)


OUT_OF_MEMORY = (
    "no memory left on the device: use fewer lanes, a shorter split, a bundle in half precision, or backend=torch:cpu"
)
# settings for glibc, in bytes: the size from which a block gets a separate mapping, and the amount of freed memory that
# a heap keeps at its end
MAPPED_BLOCK, KEPT_MEMORY = 2**25, 2**28
HEAPS = 2  # number of glibc heaps for all threads of a server
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # options of mallopt(3)
# texts in the errors of MPS, CUDA, the CPU's allocator and cuBLAS, which allocates a workspace, if memory runs out
MEMORY_MESSAGES = ("out of memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")


@contextmanager
def torch_memory_errors() -> Iterator[None]:
    """Within the block, turn torch's out-of-memory errors into a one-line error. All other errors stay unchanged.

    Raises:
        UserError: Memory has run out, on the device or on the host.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error):
            raise UserError(OUT_OF_MEMORY) from error
        raise


def out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is an out-of-memory error.

    If memory runs out while torch records a CUDA graph, torch raises an error about the recording. The cause of this
    error is the out-of-memory error.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
            part in str(error) for part in MEMORY_MESSAGES
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def keep_freed_memory() -> None:
    """Make glibc keep the memory that layers free, unless the user has set glibc's thresholds.

    By default, glibc returns freed memory at the end of its heap to the system. Layers allocate and free the same tens
    of MB over and over, and the system must clear every page each time. In a guided denoising step in int8, 48,000 page
    faults took a fifth of the time.
    """
    if not {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        _set_glibc(M_MMAP_THRESHOLD, MAPPED_BLOCK)
        _set_glibc(M_TRIM_THRESHOLD, KEPT_MEMORY)


def share_heaps() -> None:
    """Make glibc use ``HEAPS`` heaps for all threads that start later, unless the user has set the number of heaps.

    By default, glibc has up to eight heaps per core, and every heap keeps pages that its threads have freed. Within
    five minutes, a server with ten clients grew by 183 MB with the default, and by 67 MB with two heaps. A request took
    the same CPU time.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        _set_glibc(M_ARENA_MAX, HEAPS)


def _set_glibc(option: int, value: int) -> None:
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent in musl
        if mallopt is not None:
            mallopt(option, value)


def return_freed_memory(device: torch.device) -> None:
    """Make torch's CUDA allocator and the C library return freed memory to the system.

    Once a program has freed a block of up to 32 MB, glibc puts later blocks of that size on its heap. A heap shrinks
    only at its end. Without this function, 1.4 GB of freed weights and kv-caches stayed in memory after decoding with
    the official weights.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # absent in musl
        if trim is not None:
            trim(0)


class ConvolutionPrecision:
    """Switches torch's float32 convolutions to full precision. This setting belongs to the whole process.

    It replaces ``torch.backends.cudnn.flags``, which also sets other flags. That function raises an error in a program
    that has used the newer setting ``torch.backends.cudnn.conv.fp32_precision`` (since torch 2.9).
    """

    def __init__(self) -> None:
        self._lock, self._calls = threading.Lock(), 0
        self._before: str | bool | None = None

    @contextmanager
    def full(self) -> Iterator[None]:
        """Within the block, compute convolutions in full float32. After the last such block, restore the setting."""
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
        """Set the precision, and return the previous precision: a name in torch 2.9 or later, and a boolean before."""
        cudnn = torch.backends.cudnn
        if hasattr(cudnn, "conv"):
            before, cudnn.conv.fp32_precision = cudnn.conv.fp32_precision, precision
        else:
            before, cudnn.allow_tf32 = cudnn.allow_tf32, precision is True
        return before


convolutions = ConvolutionPrecision()  # the only instance, because torch's setting belongs to the process
