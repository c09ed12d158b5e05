"""The length regulator on the host: log durations to repeats, and repeats to the matrix that applies them.

A matrix of zeros and ones repeats the encoder's states by one multiplication, which every backend has and which is
exact. Columns beyond the last frame are zero.
"""

from typing import Literal

import numpy as np

from ane.system.errors import UserError

Rounding = Literal["half_to_even", "half_up"]


def durations(log_durations: np.ndarray) -> np.ndarray:
    """Frames of each symbol at the trained speed, not rounded: max(exp(y) − 1, 0), float32 of the same shape. Raises
    UserError: they are NaN or infinite.
    """
    if not np.isfinite(log_durations).all():
        raise UserError(
            "the model predicts durations that are NaN or infinite: its weights or the precision is the "
            "cause; use precision=fp32, or import the model again"
        )
    with np.errstate(over="ignore"):  # infinite durations exceed every limit on frames
        return np.maximum(np.exp(log_durations.astype(np.float32)) - np.float32(1), np.float32(0))


def repeats(durations: np.ndarray, alpha: float = 1.0, rounding: Rounding = "half_to_even") -> np.ndarray:
    """Whole frames of each symbol: ``durations`` × ``alpha``, computed in float32 and rounded; int64, same shape.

    Args:
        alpha: above 1 slower, below 1 faster.
        rounding: of exact halves: "half_to_even" as NVIDIA's PyTorch class, "half_up" as its TensorRT graph.
    """
    scaled = np.minimum(durations.astype(np.float32) * np.float32(alpha), np.float32(1e9))  # fits in int64
    return (np.round(scaled) if rounding == "half_to_even" else np.floor(scaled + np.float32(0.5))).astype(np.int64)


def alignment_matrix(repeats: np.ndarray, frames: int) -> np.ndarray:
    """A[b, t, l] = 1 where frame l is symbol t's: repeats (B, T) int64 → (B, T, frames) float32.

    Frames beyond ``frames`` are left out, and those after the last symbol are zero.
    """
    ends = np.cumsum(repeats, axis=1)[..., None]
    index = np.arange(frames)
    return ((ends - repeats[..., None] <= index) & (index < ends)).astype(np.float32)


def length_mask(lengths: np.ndarray, length: int) -> np.ndarray:
    """(B,) whole numbers → (B, length) float32: 1 before each row's length, 0 from it on."""
    return (np.arange(length) < np.asarray(lengths)[:, None]).astype(np.float32)
