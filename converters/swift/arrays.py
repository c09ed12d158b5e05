"""Named float32 arrays in one file, which the Swift package reads, and fingerprints of arrays."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MULTIPLIER, INCREMENT = 1_664_525, 1_013_904_223        # of a linear congruential generator (Numerical Recipes)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Write arrays one after the other, as little-endian float32; return shape and offset (in floats) by name."""
    index, offset = {}, 0
    with path.open("wb") as file:
        for name, array in arrays.items():
            index[name] = {"shape": list(array.shape), "offset": offset}
            file.write(np.ascontiguousarray(array, "<f4").tobytes())
            offset += array.size
    return index


def fingerprint(array: np.ndarray) -> dict[str, Any]:
    """An array in short: its shape, its norm, and its product with fixed pseudo-random numbers from −0.5 to 0.5."""
    values = np.asarray(array, np.float64).ravel()
    powers = np.cumprod(np.full(len(values), MULTIPLIER, np.uint32), dtype=np.uint32)
    sums = np.concatenate((np.ones(1, np.uint32), powers[:-1])).cumsum(dtype=np.uint32)
    weights = (powers + np.uint32(INCREMENT) * sums) / 2 ** 32 - 0.5      # the generator's numbers after 1
    return {"shape": list(array.shape), "norm": float(np.linalg.norm(values)), "product": float(values @ weights)}
