"""Compute how many frames each symbol lasts, and a matrix that repeats each symbol's state for its frames.

This is FastSpeech's length regulator. The matrix has only zeros and ones. To repeat the encoder's states, a network
multiplies them by the matrix. Every backend supports this product, and the product is exact.
"""

from typing import Literal

import numpy as np

from ane.system.errors import UserError

Rounding = Literal["half_to_even", "half_up"]


def durations(log_durations: np.ndarray) -> np.ndarray:
    """Compute how many frames each symbol lasts at the trained speed: max(exp(y) − 1, 0), without rounding.

    Args:
        log_durations: Logarithms y that the network predicts, of any shape.

    Returns:
        The numbers of frames, float32 of the same shape.

    Raises:
        UserError: A log duration is NaN or infinite.
    """
    if not np.isfinite(log_durations).all():
        raise UserError(
            "the model predicts durations that are NaN or infinite, because its weights are damaged or the precision "
            "is too low: use precision=fp32, or import the model again"
        )
    with np.errstate(over="ignore"):  # an overflow to infinity is fine, because it exceeds every limit on frames
        return np.maximum(np.exp(log_durations.astype(np.float32)) - np.float32(1), np.float32(0))


def repeats(durations: np.ndarray, alpha: float = 1.0, rounding: Rounding = "half_to_even") -> np.ndarray:
    """Round the durations of symbols to whole frames: ``durations`` × ``alpha`` in float32, rounded.

    Args:
        durations: Duration of each symbol in frames, of any shape.
        alpha: Factor of the durations. A factor above 1 makes speech slower.
        rounding: Rule for an exact half: "half_to_even" as in NVIDIA's PyTorch class, or "half_up" as in its TensorRT
            graph.

    Returns:
        The numbers of frames, int64 of the same shape.
    """
    scaled = np.minimum(durations.astype(np.float32) * np.float32(alpha), np.float32(1e9))  # fits in int64
    return (np.round(scaled) if rounding == "half_to_even" else np.floor(scaled + np.float32(0.5))).astype(np.int64)


def alignment_matrix(repeats: np.ndarray, frames: int) -> np.ndarray:
    """Make the matrix A (B, T, frames) float32 that repeats the states of symbols.

    A[b, t, l] is 1 if frame l belongs to symbol t, and otherwise 0. After the last symbol's frames, A is 0.

    Args:
        repeats: Number of frames of each symbol, (B, T) int64.
        frames: Number of frames in the matrix. If the symbols have more frames, the rest is left out.
    """
    ends = np.cumsum(repeats, axis=1)[..., None]
    index = np.arange(frames)
    return ((ends - repeats[..., None] <= index) & (index < ends)).astype(np.float32)


def length_mask(lengths: np.ndarray, length: int) -> np.ndarray:
    """Make a mask (B, length) float32. Row b has ones at its first ``lengths[b]`` positions and zeros after them."""
    return (np.arange(length) < np.asarray(lengths)[:, None]).astype(np.float32)
