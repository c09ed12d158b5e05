"""Dynamic time warping, against brute force."""

import numpy as np
import pytest

from ane.speech.words import warping_path


def all_paths(rows: int, columns: int, row: int = 0, column: int = 0):
    """Every path to the last cell whose steps go to the next row, the next column or both."""
    if (row, column) == (rows - 1, columns - 1):
        yield [(row, column)]
    for down, right in ((0, 1), (1, 0), (1, 1)):
        if row + down < rows and column + right < columns:
            yield from ([(row, column), *rest] for rest in all_paths(rows, columns, row + down, column + right))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (5, 1), (3, 4), (4, 4), (5, 3)])
def test_no_path_costs_less(rows, columns):
    for seed in range(20):
        cost = np.random.default_rng(seed).standard_normal((rows, columns))
        found = list(zip(*warping_path(cost), strict=True))
        cheapest = min(all_paths(rows, columns), key=lambda path: sum(cost[cell] for cell in path))
        assert found == cheapest


def test_of_equal_paths_that_with_the_next_column_is_taken_as_in_openai_whisper():
    rows, columns = warping_path(np.zeros((3, 3)))
    assert (rows.tolist(), columns.tolist()) == ([0, 1, 2, 2, 2], [0, 0, 0, 1, 2])
