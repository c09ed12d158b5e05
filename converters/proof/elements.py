"""Compare two arrays that should be equal element by element, for `ane verify --layers`."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ane.system.files import replacing

TOLERANCE = 1e-4  # absolute error beyond which an element is counted
SHOWN = 6  # elements in an excerpt


@dataclass(frozen=True)
class LayerComparison:
    """How the values inside a function are counted and stored.

    Attributes:
        tolerance: Absolute error above which an element is counted.
        kept: Receives both sides of each value, as FOLDER/VALUE/reference and FOLDER/VALUE/package. ``None`` stores
            nothing.
        folder: The package and the function.
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
        """Return three lines with elements from the largest error: the reference, the package, their difference.

        A value that was not stored has no lines.
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


ALONE = LayerComparison()  # for arrays that nobody wants to store


def write_arrays(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Write arrays to an .npz file, which appears when it is complete. Raises UserError if it cannot be written."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
