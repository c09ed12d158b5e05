"""Count, store and show the differences of two arrays element by element, for `ane verify --layers`."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

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


def write_arrays(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Write arrays to an .npz file, which appears when it is complete. Raises UserError if it cannot be written."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
