"""Test the durations of symbols, and time warping."""

import numpy as np
import pytest

from ane.models.alignment import warping_path
from ane.models.durations import alignment_matrix, durations, length_mask, repeats


def test_durations_are_never_negative():
    values = durations(np.array([-9.0, 0.0, np.log(3.0)], np.float32))
    np.testing.assert_allclose(values, [0, 0, 2], atol=1e-6)


@pytest.mark.parametrize(("rounding", "expected"), [("half_to_even", [0, 2, 2, 4]), ("half_up", [1, 2, 3, 4])])
def test_halves(rounding, expected):
    assert repeats(np.array([0.5, 1.5, 2.5, 3.5], np.float32), rounding=rounding).tolist() == expected


def test_an_immense_duration_stays_a_number():
    assert repeats(durations(np.array([1000.0], np.float32)))[0] >= 10**9


def test_the_matrix_repeats_each_row_and_ends_in_zeros():
    matrix = alignment_matrix(np.array([[0, 2, 3]]), 7)
    rows = np.array([[[1.0, 2.0], [4.0, 5.0], [7.0, 8.0]]], np.float32)
    assert (matrix.transpose(0, 2, 1) @ rows)[0].tolist() == [[4, 5]] * 2 + [[7, 8]] * 3 + [[0, 0]] * 2


def test_columns_beyond_the_end_are_left_out():
    assert alignment_matrix(np.array([[2, 10]]), 4).sum(axis=2).tolist() == [[2, 2]]


def test_masks():
    assert length_mask(np.array([0, 2]), 3).tolist() == [[0, 0, 0], [1, 1, 0]]


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
