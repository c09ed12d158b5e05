"""Out-of-memory errors of torch as messages for the user, and whether the process keeps freed memory."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ane.system.errors import UserError

OUT_OF_MEMORY = ("no memory left on the device: use fewer lanes, a shorter split, a bundle in half precision, "
                 "or backend=torch:cpu")
# glibc: the size from which a block is mapped for itself, and the freed memory at the end of a heap that it keeps
MAPPED_BLOCK, KEPT_MEMORY = 2**25, 2**28
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3         # options of mallopt(3)
# parts of the messages of MPS, CUDA, the CPU's allocator, and cuBLAS, which allocates a workspace
MEMORY_MESSAGES = ("out of memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")


@contextmanager
def torch_memory_errors() -> Iterator[None]:
    """Convert torch's out-of-memory errors to one line for the user; other errors are raised unchanged.

    Raises:
        UserError: no memory is left, on the device or on the host.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error):
            raise UserError(OUT_OF_MEMORY) from error
        raise


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, is an out-of-memory error.

    An error while a CUDA graph is recorded causes another one, about the aborted recording.
    """
    while error is not None:
        if (isinstance(error, torch.OutOfMemoryError | MemoryError)
                or any(part in str(error) for part in MEMORY_MESSAGES)):
            return True
        error = error.__cause__ or error.__context__
    return False


def keep_freed_memory() -> None:
    """Make glibc keep the memory that layers free, unless the user set its thresholds.

    By default glibc returns freed memory at the end of its heap to the system, which clears each page when it is next
    used. Layers allocate and free the same tens of MB: a guided call in int8 had 48,000 page faults, a fifth of its
    time.
    """
    chosen = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys()
    if sys.platform == "linux" and not chosen:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)       # absent in musl
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, MAPPED_BLOCK)
            mallopt(M_TRIM_THRESHOLD, KEPT_MEMORY)


def return_freed_memory(device: torch.device) -> None:
    """Return freed memory that torch's CUDA allocator, or the C library, would keep.

    glibc serves blocks of up to 32 MB from its heap once such a block has been freed, and a heap shrinks only at its
    end: after decoding at official size, 1.4 GB of freed weights and cache stayed resident.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)      # absent in musl
        if trim is not None:
            trim(0)
