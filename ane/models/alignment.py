"""Align text with sound: join pieces into words, and find the path along which attention follows them."""

from collections.abc import Iterable, Iterator

import numpy as np


def joined_pieces(pieces: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, int, int]]:
    """Join pieces of text into words.

    Args:
        pieces: Pieces in order. Each has its text, and whether it is spoken (punctuation is not). A piece of spaces or
            without text ends a word.

    Returns:
        The words without punctuation, with the index of their first piece and of the piece after their last.
    """
    word, first, last = "", 0, 0
    for index, (piece, spoken) in enumerate([*pieces, (" ", False)]):
        if piece.isspace() or not piece:
            if word:
                yield word, first, last
            word = ""
        elif word or spoken:
            first = first if word else index
            word, last = word + piece, index + 1 if spoken else last


def warping_path(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the path with the lowest sum from the first to the last cell of a matrix.

    A step goes to the next row, the next column, or both. As in openai-whisper, the sums are float32, and the next
    column wins a tie. All cells of a diagonal are computed at once.

    Args:
        cost: Cost of each cell, (R, C) float64.

    Returns:
        Rows and columns of the path's cells, int64.
    """
    rows, columns = cost.shape
    diagonals = rows + columns - 1
    # Row d, column r + 1 is the cell (r, d − r). Padding makes each row of the matrix one longer than a diagonal, so
    # each next row is shifted by one.
    along = np.pad(cost, ((0, 0), (0, rows))).ravel()[: rows * diagonals].reshape(rows, diagonals).T.copy()
    total = np.full((diagonals + 2, rows + 1), np.inf, np.float32)  # sum of the best path to a cell, two rows later
    total[0, 0] = 0
    for diagonal in range(diagonals):
        first, last = max(0, diagonal - columns + 1), min(rows, diagonal + 1)
        both, down, right = (
            total[diagonal, first:last],
            total[diagonal + 1, first:last],
            total[diagonal + 1, first + 1 : last + 1],
        )
        best = np.minimum(both, down)
        np.copyto(best, np.inf, where=both == down)
        np.minimum(best, right, out=best)
        np.add(along[diagonal, first:last], best, out=total[diagonal + 2, first + 1 : last + 1], casting="same_kind")
    both, down, right = total[:-2, :-1], total[1:-1, :-1], total[1:-1, 1:]
    # 0: both, 1: next row, 2: next column
    moves = np.where((both < down) & (both < right), 0, np.where((down < both) & (down < right), 1, 2))
    path, row, column = [], rows - 1, columns - 1
    while row >= 0:
        path.append((row, column))
        move = moves[row + column, row]
        row, column = row - (move != 2), column - (move != 1)
    cells = np.array(path[::-1], np.int64)
    return cells[:, 0], cells[:, 1]
