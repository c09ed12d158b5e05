"""Memory: what torch raises when it runs out, in the user's words, and giving it back when it is free."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ane.system.errors import UserError

OUT_OF_MEMORY = ("no memory left on the device: use fewer --lanes, a shorter --split, a bundle in half precision, "
                 "or --backend torch:cpu")
# how MPS and CUDA itself, the CPU's allocator, and cuBLAS, which wants room of its own, say it
TOLD = ("out of memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")


@contextmanager
def torch_memory_errors() -> Iterator[None]:
    """Turn an engine's out-of-memory errors into one line for the user; anything else stays a bug.

    Raises:
        UserError: no memory left, on the device or on the host.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error):
            raise UserError(OUT_OF_MEMORY) from error
        raise


def out_of_memory(error: BaseException | None) -> bool:
    """Whether that is what an error tells, or one before it: a CUDA graph cut short raises another error on top."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in TOLD):
            return True
        error = error.__cause__ or error.__context__
    return False


def return_freed_memory(device: torch.device) -> None:
    """Hand freed memory back to the system where torch's allocator for CUDA, or the C library, would keep it.

    glibc serves blocks of up to 32 MB from its heap once such a block has been freed, and a heap shrinks at its end
    alone: measured after decoding at official size, 1.4 GB of freed weights and cache stayed resident.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)      # musl has none
        if trim is not None:
            trim(0)
