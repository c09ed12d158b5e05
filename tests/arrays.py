"""Draw random arrays, and compare lists of arrays whose shapes differ."""

from collections.abc import Iterable

import numpy as np


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def assert_equal(expected: Iterable[np.ndarray], actual: Iterable[np.ndarray]) -> None:
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(one, other)
