"""How codes are sampled: the defaults, the limits of each parameter, and the shares of codes."""

import numpy as np
import pytest

from ane.models.tortoise.sampling import InverseCdfSampler, Sampling, top_p, typical
from ane.system.errors import UserError


def test_the_defaults_are_upstreams():
    assert Sampling() == Sampling(temperature=0.8, repetition_penalty=2.0, top_k=50, top_p=0.8, typical_mass=None,
                                  max_codes=500)


@pytest.mark.parametrize(("parameter", "allowed", "refused"), [
    ("temperature", [0.01, 100], [0.0099, 100.1, 0, -1, np.nan, np.inf]),
    ("repetition_penalty", [0.01, 1, 100], [0.0099, 100.1, 0, np.nan]),
    ("top_p", [0.001, 1], [0, 1.001, -0.1, np.nan]),
    ("typical_mass", [None, 0.001, 0.999], [0, 1, np.nan]),
    ("top_k", [1, 10**6], [0, -1])])
def test_each_parameter_has_limits_on_both_sides(parameter, allowed, refused):
    for value in allowed:
        assert getattr(Sampling(**{parameter: value}), parameter) == value
    for value in refused:
        with pytest.raises(UserError, match=f"^{parameter} must be .*got {value}$"):
            Sampling(**{parameter: value})


def test_top_p_drops_codes_whose_probability_together_is_exactly_the_rest():
    """As transformers 4.31 does: cumulative ≤ 1 − p."""
    assert np.isfinite(top_p(np.zeros(2, np.float32), 0.5)).tolist() == [False, True]


def test_typical_sampling_keeps_no_more_codes_than_reach_the_mass():
    assert np.isfinite(typical(np.zeros(4, np.float32), 0.5)).tolist() == [True, True, False, False]


def test_the_most_likely_code_stays_however_small_top_p_is():
    kept = top_p(np.array([3, 9, 1, 8], np.float32), 1e-9)
    np.testing.assert_array_equal(kept, np.array([-np.inf, 9, -np.inf, -np.inf], np.float32))


def test_codes_are_sampled_as_often_as_they_are_probable():
    sample = InverseCdfSampler(np.random.default_rng(0))
    ids, probabilities = np.array([3, 5, 11]), np.array([0.2, 0.5, 0.3], dtype=np.float32)
    sampled = [sample(ids, probabilities) for _ in range(4000)]
    shares = [sampled.count(code) / len(sampled) for code in ids]
    np.testing.assert_allclose(shares, probabilities, atol=0.03)


def test_the_largest_random_number_samples_the_last_code():
    class LargestNumber:
        def random(self) -> float:
            return 1.0 - 2**-53

    assert InverseCdfSampler(LargestNumber())(np.array([4, 9]), np.array([0.5, 0.5], dtype=np.float32)) == 9
