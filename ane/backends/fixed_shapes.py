"""Arrays of any length on functions of fixed shapes: the smallest bucket, padding, masks, row after row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.backends.base import FunctionSet
from ane.system.errors import UserError

FixedFunction = Any  # what ``FunctionSet.functions`` returns: called with arrays; ``bucket`` has its lengths by name


def smallest_fitting(functions: Sequence[FixedFunction], what: str, **lengths: int) -> FixedFunction:
    """The function with the smallest bucket that all of ``lengths`` fit in; the first length is compared first.

    Raises:
        UserError: no bucket is large enough; the message says that ``what`` ("the text", "the clip") is too long.
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
    """``array`` with ``value`` appended on the last axis up to ``length``."""
    widths = [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])]
    return np.pad(array, widths, constant_values=value)


def sequence_masks(length: int, bucket: int) -> dict[str, np.ndarray]:
    """The inputs that mark the first ``length`` positions of a bucket, (1, 1, 1, bucket) each.

    ``inside`` is 1 there and 0 in the padding; ``mean_weight`` is ``inside`` / ``length``, for means over the sequence.
    """
    inside = (np.arange(bucket) < length).astype(np.float32)[None, None, None]
    return {"inside": inside, "mean_weight": inside / np.float32(length)}


@dataclass(frozen=True)
class Rows:
    """``Stage.packaged`` of a stage that takes rows (B, N, C), or ids (B, N), and their mask: row after row in the
    smallest bucket, the output (B, N, C'), zeros after a row's length. A row that is too long raises UserError.

    Attributes:
        unit: Name in a bucket for the length of a row.
        outputs: Outputs of the function that the result has side by side.
        tables: Keys of the tables in which ids are looked up. The vectors are side by side, too.
        finish: The host's part: what the stage returns for the result.
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
            found = function(
                x=pad_last_axis(np.ascontiguousarray(row[:length].T)[None, :, None], width),
                inside=sequence_masks(length, width)["inside"],
            )  # (1, C', 1, N') each
            y = np.concatenate([found[name] for name in self.outputs], axis=1)[0, :, 0, :length]
            rows.append(pad_last_axis(y, x.shape[1]).T)
        return self.finish(np.stack(rows))


@dataclass(frozen=True)
class Exact:
    """``Stage.packaged`` of a stage whose rows (C, N) or (C,) fill a function, since padding would change its output.

    Attributes:
        output: Output of the function: (1, C', 1, N').
        unit: Name in a bucket for the length; "" means that all rows have the same. per: Columns of the input for each.
        sequence: Whether the stage returns (B, N', C'), or else (B, C').
    """

    output: str
    unit: str = ""
    per: int = 1
    sequence: bool = False

    def __call__(self, package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        [(name, x)] = inputs.items()
        lengths = {
            self.per * each.bucket[self.unit] if self.unit else x.shape[-1]: each for each in package.functions(stage)
        }
        if x.shape[-1] not in lengths:
            package_name = next(iter(lengths.values())).package.stem
            raise UserError(
                f"{x.shape[-1]} {name} frames: {package_name} takes exactly "
                f"{' or '.join(map(str, lengths))} frames; convert the model again"
            )
        function = lengths[x.shape[-1]]
        found = [function(**{name: row.reshape(1, len(row), 1, -1)})[self.output][0, :, 0].T for row in x]
        return np.stack(found if self.sequence else [y[0] for y in found])


def row_lengths(mask: np.ndarray) -> list[int]:
    """How many positions of each row a mask (B, T) of ones, then zeros, holds."""
    return [int(length) for length in mask.sum(axis=1)]
