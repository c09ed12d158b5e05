"""``ane.system.decibels.snr_db``: exact values, and the cases where the formula has none."""

import numpy as np
import pytest
import torch

from ane.system.decibels import snr_db

SIGNAL = np.array([3.0, -4.0])


@pytest.mark.parametrize(("actual", "decibels"), [
    ([3.0, -4.5], 20.0),            # 25 / 0.25
    ([3.0, 1.0], 0.0),              # 25 / 25
    ([3.0, 46.0], -20.0),           # 25 / 2500
])
def test_it_is_the_ratio_of_the_sums_of_squares(actual, decibels):
    assert snr_db(SIGNAL, actual) == pytest.approx(decibels)


def test_the_reference_is_the_signal():
    assert snr_db(SIGNAL, 2 * SIGNAL) == pytest.approx(0)
    assert snr_db(2 * SIGNAL, SIGNAL) == pytest.approx(10 * np.log10(4))


def test_equal_arrays_have_no_noise():
    assert snr_db(SIGNAL, SIGNAL) == np.inf
    assert snr_db([0.0, 0.0], [0.0, 0.0]) == np.inf


@pytest.mark.parametrize(("reference", "actual"), [
    ([0.0, 0.0], [0.0, 1e-9]), ([1.0, 2.0], [1.0, np.nan]), ([1.0, 2.0], [np.inf, 2.0]), ([np.nan, 2.0], [1.0, 2.0])])
def test_no_signal_or_a_number_that_is_not_finite_is_the_worst_ratio(reference, actual):
    assert snr_db(reference, actual) == -np.inf


def test_half_precision_is_summed_in_double():
    reference = np.full(100_000, 200, np.float16)           # a square alone is beyond half precision
    assert snr_db(reference, reference * np.float16(0.5)) == pytest.approx(10 * np.log10(4))


def test_tensors_are_compared_too():
    assert snr_db(torch.tensor([3.0, -4.0]), torch.tensor([3.0, -4.5])) == pytest.approx(20)


def test_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"the same shape, got \(2,\) and \(1,\)"):
        snr_db(SIGNAL, [3.0])
