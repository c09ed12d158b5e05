"""Compute the signal-to-noise ratio of two arrays, which says how close they are."""

from typing import Any

import numpy as np


def snr_db(reference: Any, actual: Any) -> float:
    """Compute the signal-to-noise ratio 10·log10(Σ reference² / Σ (reference − actual)²) in float64.

    Args:
        reference, actual: Arrays, or CPU tensors, of the same shape.

    Returns:
        The signal-to-noise ratio in dB. It is ∞ if both arrays are equal. It is −∞ if ``reference`` is all zeros and
            ``actual`` is not, or if any number is NaN or infinite.

    Raises:
        ValueError: The shapes differ.
    """
    reference, actual = np.asarray(reference, np.float64), np.asarray(actual, np.float64)
    if reference.shape != actual.shape:
        raise ValueError(f"reference and actual must have the same shape, got {reference.shape} and {actual.shape}")
    if not (np.isfinite(reference).all() and np.isfinite(actual).all()):
        return -np.inf
    signal, noise = np.square(reference).sum(), np.square(reference - actual).sum()
    if not noise:
        return np.inf
    return float(10 * np.log10(signal / noise)) if signal else -np.inf
