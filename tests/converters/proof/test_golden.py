"""The golden probes that a conversion makes of a small model with random weights."""

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from ane.backends.base import MASKED
from ane.backends.packaged.probes import FILE
from ane.bundles.bundle import Bundle
from converters.proof.parity import used_columns
from tests.small_bundle import write_small_bundle


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Bundle:
    return Bundle(write_small_bundle(tmp_path_factory.mktemp("bundles")))


def test_every_function_has_a_probe_that_a_wrong_one_fails(small):
    """Values 5 % too large are 26 dB away."""
    for package in small.packages:
        path = Path(small.path / package.path / FILE)
        with safe_open(path, "np") as file:
            thresholds = {name: float(dB) for name, dB in file.metadata().items()}
        assert set(thresholds) == set(package.functions)
        assert min(thresholds.values()) > 30, package.path
        assert path.stat().st_size < 2_000_000


def test_columns_that_a_decoder_left_unused_are_the_first():
    x, mask = np.zeros((1, 2, 1, 3), np.float16), np.full((1, 1, 3, 5), MASKED, np.float16)
    x[0, :, 0, :2], mask[0, 0, :2, :2] = [[1, 2], [3, 4]], 0
    filled = used_columns({"x": x, "mask": mask})
    np.testing.assert_array_equal(filled["x"][0, :, 0], [[1, 2, 1], [3, 4, 3]])
    np.testing.assert_array_equal(filled["mask"][0, 0, 2], filled["mask"][0, 0, 0])
    assert used_columns({"x": x}).keys() == {"x"}
