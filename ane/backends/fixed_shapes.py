"""Arrays of any length on functions of fixed shapes: the smallest bucket, padding, masks, row after row."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ane.backends.base import FunctionSet
from ane.system.errors import UserError

FixedFunction = Any     # what ``FunctionSet.functions`` returns: called with arrays; ``bucket`` has its lengths by name


def smallest_fitting(functions: Sequence[FixedFunction], what: str, **lengths: int) -> FixedFunction:
    """The function with the smallest bucket that all of ``lengths`` fit in; the first length is compared first.

    Raises:
        UserError: no bucket is large enough; the message says that ``what`` ("the text", "the clip") is too long.
    """
    fitting = [f for f in functions if all(f.bucket[name] >= length for name, length in lengths.items())]
    if not fitting:
        largest = max(functions, key=lambda f: tuple(f.bucket[name] for name in lengths))
        needed, available = (", ".join(f"{n} {name}" for name, n in sizes.items())
                             for sizes in (lengths, {name: largest.bucket[name] for name in lengths}))
        raise UserError(f"{what} needs {needed} and the largest bucket of {largest.package.stem} has {available}: make "
                        "it shorter (split), or convert the model again with larger buckets")
    return min(fitting, key=lambda f: tuple(f.bucket[name] for name in lengths))


def pad_last_axis(array: np.ndarray, length: int, value: float = 0.0) -> np.ndarray:
    """``array`` with ``value`` appended on the last axis up to ``length``."""
    widths = [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])]
    return np.pad(array, widths, constant_values=value)


def sequence_masks(length: int, bucket: int) -> dict[str, np.ndarray]:
    """The inputs that mark the first ``length`` positions of a bucket, (1, 1, 1, bucket) each.

    ``inside`` is 1 there and 0 in the padding; ``mean_weight`` is ``inside`` / ``length``, for means over the sequence.
    """
    inside = (np.arange(bucket) < length).astype(np.float32)[None, None, None]
    return {"inside": inside, "mean_weight": inside / np.float32(length)}


def run_rows(package: FunctionSet, stage: str, x: np.ndarray, mask: np.ndarray, unit: str,
             outputs: Sequence[str] = ("y",)) -> np.ndarray:
    """Run each row of x (B, N, C) → (B, N, C'), zeros after its length. Raises UserError for a row that is too long.

    Args:
        unit: what a row has, as the buckets name it. outputs: of the function, side by side.
    """
    rows = []
    for row, length in zip(x, row_lengths(mask), strict=True):
        function = smallest_fitting(package.functions(stage), f"the {stage}", **{unit: length})
        width = function.bucket[unit]
        found = function(x=pad_last_axis(np.ascontiguousarray(row[:length].T)[None, :, None], width),
                         inside=sequence_masks(length, width)["inside"])                    # (1, C', 1, N') each
        y = np.concatenate([found[name] for name in outputs], axis=1)[0, :, 0, :length]
        rows.append(pad_last_axis(y, x.shape[1]).T)
    return np.stack(rows)


def row_lengths(mask: np.ndarray) -> list[int]:
    """How many positions of each row a mask (B, T) of ones, then zeros, holds."""
    return [int(length) for length in mask.sum(axis=1)]
