"""Run functions that have fixed shapes on arrays of any length.

A package has one function per *bucket* (a fixed length). The code here chooses the smallest bucket that fits, pads and
masks the input, and crops the output.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.backends.base import FunctionSet
from ane.system.errors import UserError

FixedFunction = Any  # a function from ``FunctionSet.functions``; ``bucket`` has the lengths for which it was built


def smallest_fitting(functions: Sequence[FixedFunction], what: str, **lengths: int) -> FixedFunction:
    """Return the smallest function that fits all ``lengths``. A function's *bucket* names the lengths that it takes.

    If several buckets fit, the smallest first length wins, then the smallest second length, and so on.

    Args:
        functions: Functions to choose from, at least one.
        what: Subject of the error message, such as "the text" or "the clip".
        lengths: Lengths that the caller needs, by the names in the functions' ``bucket``.

    Raises:
        UserError: No bucket is large enough.
    """
    fitting = [f for f in functions if all(f.bucket[name] >= length for name, length in lengths.items())]
    if not fitting:
        largest = max(functions, key=lambda f: tuple(f.bucket[name] for name in lengths))
        needed, available = (
            ", ".join(f"{n} {name}" for name, n in sizes.items())
            for sizes in (lengths, {name: largest.bucket[name] for name in lengths})
        )
        raise UserError(
            f"{what} needs {needed} and the largest bucket of {largest.package.stem} has {available}: make "
            "it shorter (split), or convert the model again with larger buckets"
        )
    return min(fitting, key=lambda f: tuple(f.bucket[name] for name in lengths))


def pad_last_axis(array: np.ndarray, length: int, value: float = 0.0) -> np.ndarray:
    """Pad the last axis of an array with ``value`` at its end, up to this length."""
    widths = [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])]
    return np.pad(array, widths, constant_values=value)


def sequence_masks(length: int, bucket: int) -> dict[str, np.ndarray]:
    """Return the mask inputs for ``length`` positions that are padded to ``bucket``, both (1, 1, 1, bucket) float32.

    ``inside`` is 1 inside the sequence and 0 in the padding. ``mean_weight`` is ``inside`` / ``length``. A sum with
    these weights is a mean over the sequence.
    """
    inside = (np.arange(bucket) < length).astype(np.float32)[None, None, None]
    return {"inside": inside, "mean_weight": inside / np.float32(length)}


@dataclass(frozen=True)
class Rows:
    """Runs a stage for ``Stage.packaged`` that takes a batch of rows and their mask.

    The rows are vectors (B, N, C) or ids (B, N). A *bucket* is a length for which the package has a function. Each row
    runs separately, in the smallest bucket that fits it. The output is (B, N, C'), with zeros after the end of each
    row. A call raises UserError if a row fits no bucket.

    Attributes:
        unit: Unit in which functions count the length of a row.
        outputs: Names of the function's outputs. They are concatenated along the channels.
        tables: State dict keys of the embedding tables for ids. An id's vectors from all tables are concatenated along
            the channels.
        finish: Function that turns the concatenated outputs of all rows into the stage's output, on the host.
    """

    unit: str
    outputs: tuple[str, ...] = ("y",)
    tables: tuple[str, ...] = ()
    finish: Callable[[np.ndarray], np.ndarray] = lambda result: result

    def __call__(self, package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        [x] = (array for name, array in inputs.items() if name != "mask")
        if self.tables:
            x = np.concatenate([package.table(key) for key in self.tables], axis=1)[x]
        rows = []
        for row, length in zip(x, row_lengths(inputs["mask"]), strict=True):
            function = smallest_fitting(package.functions(stage), f"the {stage}", **{self.unit: length})
            width = function.bucket[self.unit]
            outputs = function(
                x=pad_last_axis(np.ascontiguousarray(row[:length].T)[None, :, None], width),
                inside=sequence_masks(length, width)["inside"],
            )  # each (1, C', 1, N')
            y = np.concatenate([outputs[name] for name in self.outputs], axis=1)[0, :, 0, :length]
            rows.append(pad_last_axis(y, x.shape[1]).T)
        return self.finish(np.stack(rows))


@dataclass(frozen=True)
class Exact:
    """Runs a stage for ``Stage.packaged`` whose rows must be exactly as long as a function's input.

    Use it if padding would change the output. A row is (C, N) or (C,).

    Attributes:
        output: Name of the function's output, (1, C', 1, N').
        unit: Unit in which functions count the length of a row. "" means that all rows have the same length.
        per: Number of input columns per unit of a function's length.
        sequence: Whether the stage returns all columns, (B, N', C'). If not, it returns the first column, (B, C').
    """

    output: str
    unit: str = ""
    per: int = 1
    sequence: bool = False

    def __call__(self, package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        [(name, x)] = inputs.items()
        functions = package.functions(stage)
        lengths = {self.per * f.bucket[self.unit] if self.unit else x.shape[-1]: f for f in functions}
        if x.shape[-1] not in lengths:
            package_name = next(iter(lengths.values())).package.stem
            raise UserError(
                f"{x.shape[-1]} {name} frames: {package_name} takes exactly "
                f"{' or '.join(map(str, lengths))} frames: convert the model again"
            )
        function = lengths[x.shape[-1]]
        rows = [function(**{name: row.reshape(1, len(row), 1, -1)})[self.output][0, :, 0].T for row in x]
        return np.stack(rows if self.sequence else [y[0] for y in rows])


def row_lengths(mask: np.ndarray) -> list[int]:
    """Return the number of ones in each row of a mask (B, T). In a row, all ones come before all zeros."""
    return [int(length) for length in mask.sum(axis=1)]
