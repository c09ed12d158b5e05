"""Text aligned with sound: the words that pieces join to, and the path along which attention follows them."""

from collections.abc import Iterable, Iterator

import numpy as np


def joined_pieces(pieces: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, int, int]]:
    """The words that pieces join to, each with its first piece and the one after its last, without punctuation.

    Args:
        pieces: text, of which a space or nothing ends a word, and whether it is spoken, unlike punctuation.
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
    """The path from the first to the last cell of ``cost`` (R, C) float64 with the lowest sum.

    A step goes to the next row, the next column, or both. The sums are float32 and ties are broken as in
    openai-whisper: the next column wins. All cells of a diagonal are computed at once.

    Returns:
        Rows and columns of the path's cells, int64.
    """
    rows, columns = cost.shape
    diagonals = rows + columns - 1
    # Row d, column r + 1 belongs to the cell (r, d − r): each row of the matrix is one longer than its diagonals, and
    # so moves on by one where the next begins.
    along = np.pad(cost, ((0, 0), (0, rows))).ravel()[: rows * diagonals].reshape(rows, diagonals).T.copy()
    total = np.full((diagonals + 2, rows + 1), np.inf, np.float32)  # of the best path to a cell, two rows later
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
    found = np.array(path[::-1], np.int64)
    return found[:, 0], found[:, 1]
