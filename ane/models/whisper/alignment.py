"""Alignment of a window's text with its sound by dynamic time warping (openai/whisper timing.py).

The attention of a few heads moves along the sound as the text goes on. The path through it that is attended to most
gives each token the time at which it begins.
"""

import numpy as np

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


def warping_path(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The path from the first to the last cell of ``cost`` (R, C) float64 with the lowest sum.

    A step goes to the next row, the next column, or both. The sums are float32 and ties are broken as in
    openai-whisper: the next column wins. All cells of a diagonal are computed at once.

    Returns:
        Rows and columns of the path's cells, int64.
    """
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)        # of the best path to each cell
    total[0, 0] = 0
    moves = np.full((rows + 1, columns + 1), 2, np.int8)                # 0: both, 1: next row, 2: next column
    for diagonal in range(2, rows + columns + 1):
        row = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        column = diagonal - row
        both, down, right = total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]
        move = np.where((both < down) & (both < right), 0, np.where((down < both) & (down < right), 1, 2))
        moves[row, column] = move
        total[row, column] = cost[row - 1, column - 1] + np.choose(move, (both, down, right)).astype(np.float64)
    path, row, column = [], rows, columns
    while row > 0:
        path.append((row - 1, column - 1))
        move = moves[row, column]
        row, column = row - (move != 2), column - (move != 1)
    found = np.array(path[::-1], np.int64)
    return found[:, 0], found[:, 1]
