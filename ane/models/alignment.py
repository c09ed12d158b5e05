"""Align text with sound: join tokens into words, and find the path on which attention moves along the text."""

from collections.abc import Iterable, Iterator

import numpy as np


def joined_pieces(pieces: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, int, int]]:
    """Join pieces of text, such as tokens, into words.

    Args:
        pieces: The pieces in order. A piece is a pair: its text, and whether it is spoken (punctuation is not). A piece
            that is empty or has only spaces ends a word.

    Returns:
        A triple for each word: the word without punctuation, the index of its first piece, and the index after its last
        piece.
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
    """Find the cheapest path through a matrix of costs, from its first cell to its last cell.

    A step of the path goes to the next row, to the next column, or to both. As in openai-whisper, costs are summed in
    float32, and the step to the next column wins a tie. All cells of a diagonal are computed together, with NumPy.

    Args:
        cost: Cost of each cell, (R, C) float64.

    Returns:
        The rows and the columns of the path's cells, both int64.
    """
    rows, columns = cost.shape
    diagonals = rows + columns - 1
    # Row d of this array is diagonal d of the matrix: its column r is the cell (r, d − r). The padding makes a row of
    # the matrix one longer than a row of the reshaped array, so each row is shifted by one more than the row before.
    along = np.pad(cost, ((0, 0), (0, rows))).ravel()[: rows * diagonals].reshape(rows, diagonals).T.copy()
    total = np.full(
        (diagonals + 2, rows + 1), np.inf, np.float32
    )  # cost of the best path to each cell; diagonal d is row d + 2
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
    # The last step to each cell: 0 means to the next row and column, 1 to the next row, 2 to the next column.
    moves = np.where((both < down) & (both < right), 0, np.where((down < both) & (down < right), 1, 2))
    path, row, column = [], rows - 1, columns - 1
    while row >= 0:
        path.append((row, column))
        move = moves[row + column, row]
        row, column = row - (move != 2), column - (move != 1)
    cells = np.array(path[::-1], np.int64)
    return cells[:, 0], cells[:, 1]
