"""Alignment of a window's text with its sound by dynamic time warping (openai/whisper timing.py).

The attention of a few heads moves along the sound as the text goes on. The path through it that is attended to most
gives each token the time at which it begins.
"""

import numpy as np

from ane.models.warping import warping_path

MEDIAN_WIDTH = 7        # positions of the median filter along time


def token_times(scores: np.ndarray, first: int) -> np.ndarray:
    """Positions in the memory at which tokens begin: (T − first − 1,) int64, never decreasing.

    Args:
        scores: (heads, T, N) float32, cross-attention before the softmax; only the positions of sound.
        first: index of the token that stands for the beginning; the last token is the end token, which is left out.
    """
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    deviation = weights.std(axis=1, keepdims=True)
    weights = (weights - weights.mean(axis=1, keepdims=True)) / np.where(deviation == 0, np.float32(1), deviation)
    matrix = np.mean([median_filter(head, MEDIAN_WIDTH) for head in weights], axis=0)
    rows, positions = warping_path(-matrix[first:-1].astype(np.float64))
    return positions[np.diff(rows, prepend=-1) > 0]


def median_filter(x: np.ndarray, width: int) -> np.ndarray:
    """The median of ``width`` (odd) neighbours along the last axis of x (…, N), its ends mirrored.

    As in openai-whisper, x is returned as it is when it is too short to be mirrored.
    """
    half = width // 2
    if x.shape[-1] <= half:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1)
    return np.sort(windows, axis=-1)[..., half]
