"""Regulate lengths on the host: turn log durations into repeats, and repeats into the matrix that applies them.

The matrix has zeros and ones, and repeats the encoder's states by one multiplication. Every backend can do this, and it
is exact. Columns after the last frame are zero.
"""

from typing import Literal

import numpy as np

from ane.system.errors import UserError

Rounding = Literal["half_to_even", "half_up"]


def durations(log_durations: np.ndarray) -> np.ndarray:
    """Compute the frames of each symbol at the trained speed, max(exp(y) − 1, 0), without rounding.

    Args:
        log_durations: Log durations y, of any shape.

    Returns:
        The frames, float32 of the same shape.

    Raises:
        UserError: A log duration is NaN or infinite.
    """
    if not np.isfinite(log_durations).all():
        raise UserError(
            "the model predicts durations that are NaN or infinite, because of its weights or the precision: use "
            "precision=fp32, or import the model again"
        )
    with np.errstate(over="ignore"):  # infinite durations exceed every limit on frames
        return np.maximum(np.exp(log_durations.astype(np.float32)) - np.float32(1), np.float32(0))


def repeats(durations: np.ndarray, alpha: float = 1.0, rounding: Rounding = "half_to_even") -> np.ndarray:
    """Compute the whole frames of each symbol: ``durations`` × ``alpha`` in float32, rounded.

    Args:
        durations: Frames of each symbol, of any shape.
        alpha: Factor of the durations. More than 1 is slower.
        rounding: Rounding of exact halves: "half_to_even" as in NVIDIA's PyTorch class, "half_up" as in its TensorRT
            graph.

    Returns:
        The frames, int64 of the same shape.
    """
    scaled = np.minimum(durations.astype(np.float32) * np.float32(alpha), np.float32(1e9))  # fits in int64
    return (np.round(scaled) if rounding == "half_to_even" else np.floor(scaled + np.float32(0.5))).astype(np.int64)


def alignment_matrix(repeats: np.ndarray, frames: int) -> np.ndarray:
    """Make the matrix that repeats states: repeats (B, T) int64 → A (B, T, frames) float32.

    A[b, t, l] is 1 if frame l belongs to symbol t. Frames after ``frames`` are left out. Frames after the last symbol
    are zero.
    """
    ends = np.cumsum(repeats, axis=1)[..., None]
    index = np.arange(frames)
    return ((ends - repeats[..., None] <= index) & (index < ends)).astype(np.float32)


def length_mask(lengths: np.ndarray, length: int) -> np.ndarray:
    """Make a mask from lengths: (B,) whole numbers → (B, length) float32, 1 before each row's length and 0 after."""
    return (np.arange(length) < np.asarray(lengths)[:, None]).astype(np.float32)
