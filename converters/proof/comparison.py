"""Compares two tensors that should be equal: the numbers that `ane verify --layers` shows, and the file of --dump."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from zipfile import ZipFile

import numpy as np

from ane.system.decibels import snr_db
from ane.system.files import replacing

MAX_DROP = 8.0      # dB below the lowest earlier value; a larger drop is drift
HEADROOM = 10.0     # dB above the function's threshold: the level that the first value is compared with
MAX_SNR = 200.0     # dB recorded for equal arrays; −200 for arrays that are not finite
TOLERANCE = 1e-4    # absolute error above which an element is counted


@dataclass(frozen=True)
class TensorSummary:
    """The distribution of a tensor's elements; ``deviation`` is the standard deviation."""

    mean: float
    deviation: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, array: np.ndarray) -> "TensorSummary":
        if not array.size:
            return cls(0.0, 0.0, 0.0, 0.0)
        return cls(*(float(number) for number in (array.mean(), array.std(), array.min(), array.max())))


@dataclass(frozen=True)
class ElementErrors:
    """The elements of two tensors compared one by one.

    Attributes:
        shape: of both. reference, package: their elements; the package's, times ``ComparedValue.factor``.
        mean_error: mean absolute difference.
        outside: number of elements whose absolute difference exceeds the tolerance, or is NaN.
        count: number of elements.
        identical: whether all elements are equal.
    """

    shape: tuple[int, ...]
    reference: TensorSummary
    package: TensorSummary
    mean_error: float
    outside: int
    count: int
    identical: bool


@dataclass(frozen=True)
class ComparedValue:
    """A value of a function compared with its reference.

    Attributes:
        error: largest absolute difference. snr: in dB, between ±``MAX_SNR``; −``MAX_SNR`` when a number is not finite.
        factor: power of two that the value was first multiplied by, because residual streams are scaled.
        module: the reference's module; None if the reference is another run.
        lost: dB below the worst of the op's inputs; None if the reference is a module.
        elements: what was found element by element; None if the reference is another run.
    """

    name: str
    op: str
    error: float
    snr: float
    factor: float = 1.0
    module: str | None = None
    lost: float | None = None
    elements: ElementErrors | None = None


def compare(name: str, op: str, expected: np.ndarray, actual: np.ndarray, scaled: bool = False) -> ComparedValue:
    """Compare two arrays; ``scaled``: first multiply ``actual`` by the power of two that fits best."""
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
        return ComparedValue(name, op, float("inf"), -MAX_SNR)
    factor = 1.0
    if scaled:
        product = (expected * actual).sum()
        factor = float(2.0 ** np.round(np.log2(product / np.square(actual).sum()))) if product > 0 else 1.0
    snr = float(np.clip(snr_db(expected, factor * actual), -MAX_SNR, MAX_SNR))
    return ComparedValue(name, op, float(np.abs(expected - factor * actual).max(initial=0)), snr, factor)


def first_drift(values: Sequence[ComparedValue], threshold: float) -> ComparedValue | None:
    """The first value more than ``MAX_DROP`` dB below all earlier ones, else the first as far below the threshold."""
    level = threshold + HEADROOM
    for value in values:
        if value.snr < level - MAX_DROP:
            return value
        level = min(level, value.snr)
    return next((value for value in values if value.snr < threshold - MAX_DROP), None)


class TensorDump:
    """Writes tensors to an .npz file as they come, so that they need no memory. See ``tensor_dump``."""

    def __init__(self, archive: ZipFile):
        self.archive = archive
        self.names: set[str] = set()

    def add(self, name: str, array: np.ndarray) -> None:
        """Write ``array`` as ``name``, or as name#2, name#3 and so on where a package has several of that name."""
        unique, number = name, 1
        while unique in self.names:
            number += 1
            unique = f"{name}#{number}"
        self.names.add(unique)
        with self.archive.open(f"{unique}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, np.ascontiguousarray(array, np.float32), allow_pickle=False)


@contextmanager
def tensor_dump(path: Path) -> Iterator[TensorDump]:
    """A dump whose file exists when the block ends without an error. Raises UserError when it cannot be written."""
    with replacing(path) as temporary, ZipFile(temporary, "w") as archive:
        yield TensorDump(archive)


@dataclass(frozen=True)
class LayerComparison:
    """How values inside a function are compared with modules of the reference.

    Attributes:
        tolerance: absolute error above which an element is counted.
        dump: receives both tensors of every value, as FOLDER/MODULE/reference and FOLDER/MODULE/package; None: none.
        folder: the package and the function.
    """

    tolerance: float = TOLERANCE
    dump: TensorDump | None = None
    folder: str = field(default="")

    def within(self, folder: str) -> "LayerComparison":
        return replace(self, folder=folder)

    def compare(self, name: str, op: str, module: str, expected: np.ndarray, actual: np.ndarray,
                scaled: bool = False) -> ComparedValue:
        """Compare two arrays of the same shape, the second being the package's; ``scaled`` as in ``compare``."""
        value = compare(name, op, expected, actual, scaled)
        actual = actual * np.float32(value.factor)
        error = np.abs(expected.astype(np.float64) - actual)
        elements = ElementErrors(
            expected.shape, TensorSummary.of(expected), TensorSummary.of(actual), float(error.mean()) if error.size
            else 0.0, int((~(error <= self.tolerance)).sum()), error.size, bool(np.array_equal(expected, actual)))
        if self.dump:
            self.dump.add(f"{self.folder}/{module}/reference", expected)
            self.dump.add(f"{self.folder}/{module}/package", actual)
        return replace(value, module=module, elements=elements)
