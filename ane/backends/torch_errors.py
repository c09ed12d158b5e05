"""What torch raises when memory runs out, in the user's words."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ane.errors import UserError

OUT_OF_MEMORY = ("no memory left on the device: use fewer --lanes, a shorter --split, a bundle in half precision, "
                 "or --backend torch:cpu")


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn an engine's out-of-memory errors into one line for the user; anything else stays a bug.

    Raises:
        UserError: no memory left, on the device or on the host.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise UserError(OUT_OF_MEMORY) from error
    except RuntimeError as error:
        if "out of memory" in str(error) or "not enough memory" in str(error):    # MPS and the CPU allocator
            raise UserError(OUT_OF_MEMORY) from error
        raise
