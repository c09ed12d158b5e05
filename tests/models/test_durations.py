"""Durations to repeats and to the alignment; golden values are in tests/parity/test_fastspeech.py."""

import numpy as np
import pytest

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
