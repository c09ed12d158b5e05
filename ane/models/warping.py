"""Dynamic time warping, by which several models time words."""

import numpy as np


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
