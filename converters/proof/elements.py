"""Compare two arrays: measure, count, store and show their differences, for `ane verify --layers`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ane.system.decibels import snr_db
from ane.system.files import replacing

TOLERANCE = 1e-4  # an element whose absolute error exceeds this counts as different
SHOWN = 6  # number of elements in an excerpt


@dataclass(frozen=True)
class LayerComparison:
    """Options for the comparison of values inside a function with their references.

    Attributes:
        tolerance: Largest absolute error of an element. An element with a larger error counts as different.
        kept: Dictionary that receives the arrays of every value, as FOLDER/VALUE/reference and FOLDER/VALUE/package.
            ``None`` means that the arrays are not stored.
        folder: Names of the package and the function, with which the keys of ``kept`` begin.
    """

    tolerance: float = TOLERANCE
    kept: dict[str, np.ndarray] | None = None
    folder: str = ""

    def within(self, folder: str) -> "LayerComparison":
        return replace(self, folder=folder)

    def keep(self, value: str, expected: np.ndarray, actual: np.ndarray) -> None:
        if self.kept is not None:
            self.kept[f"{self.folder}/{value}/reference"] = np.asarray(expected, np.float32)
            self.kept[f"{self.folder}/{value}/package"] = np.asarray(actual, np.float32)

    def excerpt(self, value: str) -> list[str]:
        """Return three lines with elements around the largest error: the reference, the package, the difference.

        If the arrays of the value were not stored, return no lines.
        """
        arrays = self.kept or {}
        reference, package = (arrays.get(f"{self.folder}/{value}/{side}") for side in ("reference", "package"))
        if reference is None or package is None or not reference.size:
            return []
        difference = (package.astype(np.float64) - reference).ravel()
        begin = max(0, min(int(np.abs(difference).argmax()), difference.size - SHOWN))
        sides = {"torch": reference.ravel(), "package": package.ravel(), "difference": difference}
        place = f"[{begin}:{min(begin + SHOWN, difference.size)}]"
        return [
            f"{side} {place} {' '.join(f'{number:.6g}' for number in array[begin : begin + SHOWN])}"
            for side, array in sides.items()
        ]


ALONE = LayerComparison()  # stores no arrays


MAX_DROP = 8.0  # a value is reported if it is more than this many dB below all earlier values
HEADROOM = 10.0  # the first value is compared with a level that is this many dB above the function's threshold
MAX_SNR = 200.0  # dB that stands for equal arrays. −200 dB stands for arrays that are not finite


@dataclass(frozen=True)
class ComparedValue:
    """The comparison of a value with its reference: the output of a PyTorch module, or the value in another run.

    Attributes:
        name: Name of the value.
        op: Type of the operation that computes the value.
        error: Largest absolute difference.
        snr: Signal-to-noise ratio in dB, between ±``MAX_SNR``. It is −``MAX_SNR`` if an element is not finite.
        factor: Power of two by which the value was multiplied before the comparison, because residual streams are
            scaled.
        module: Path of the PyTorch module. ``None`` means that the reference is another run.
        lost: dB that the operation lost: the smallest SNR of its inputs, minus the SNR of this value. ``None`` means
            that the reference is a module.
        outside: Number of elements that are not finite, or whose error exceeds the tolerance.
        count: Number of all elements.
        identical: Whether all elements are equal.
        published: Name that the network's authors give the value, or "" if they give it no name.
    """

    name: str
    op: str
    error: float
    snr: float
    factor: float = 1.0
    module: str | None = None
    lost: float | None = None
    outside: int = 0
    count: int = 0
    identical: bool = False
    published: str = ""


def compare(
    name: str,
    op: str,
    expected: np.ndarray,
    actual: np.ndarray,
    scaled: bool = False,
    layers: LayerComparison = ALONE,
    path: str = "",
) -> ComparedValue:
    """Compare two arrays.

    Args:
        name: Name of the value.
        op: Type of the operation that computes the value.
        expected: Array of the reference.
        actual: Array of the package.
        scaled: Whether to multiply ``actual`` by the power of two that fits best before the comparison.
        layers: Options, which may store both arrays.
        path: Key under which ``layers`` stores the arrays (default: ``name``).
    """
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
        layers.keep(path or name, expected, actual)
        both = np.isfinite(expected) & np.isfinite(actual)
        return ComparedValue(name, op, float("inf"), -MAX_SNR, outside=int((~both).sum()), count=expected.size)
    factor = 1.0
    if scaled:
        product = (expected * actual).sum()
        factor = float(2.0 ** np.round(np.log2(product / np.square(actual).sum()))) if product > 0 else 1.0
    actual = factor * actual
    layers.keep(path or name, expected, actual)
    errors, snr = np.abs(expected - actual), float(np.clip(snr_db(expected, actual), -MAX_SNR, MAX_SNR))
    return ComparedValue(
        name,
        op,
        float(errors.max(initial=0)),
        snr,
        factor,
        count=expected.size,
        outside=int((errors > layers.tolerance).sum()),
        identical=not errors.any(),
    )


def first_drift(values: Sequence[ComparedValue], threshold: float) -> ComparedValue | None:
    """Return the first value whose SNR is more than ``MAX_DROP`` dB below the SNR of all earlier values.

    If no value has such a drop, return the first value whose SNR is more than ``MAX_DROP`` dB below ``threshold``. If
    there is no such value either, return ``None``.
    """
    level = threshold + HEADROOM
    for value in values:
        if value.snr < level - MAX_DROP:
            return value
        level = min(level, value.snr)
    return next((value for value in values if value.snr < threshold - MAX_DROP), None)


def write_arrays(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Write arrays to an .npz file, which appears when it is complete. Raises UserError if it cannot be written."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
