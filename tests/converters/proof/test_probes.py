"""The probes notice what a function computes for later calls, not only what it returns."""

import numpy as np
import pytest

from ane.bundles import open_model
from converters.proof.parity import reference_backend
from converters.tortoise.probes import prefill


class WithoutKeys:
    """A backend whose decoder returns the right outputs for a prefix, and stores another prefix's keys and values."""

    def __init__(self, backend):
        self.backend = backend

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def decoder(self, lanes: int, capacity: int):
        decoder = self.backend.decoder(lanes, capacity)
        store = decoder.prefill

        def prefill_and_forget(columns: np.ndarray):
            outputs = store(columns)
            store(np.zeros_like(columns))
            return outputs

        decoder.prefill = prefill_and_forget
        return decoder


@pytest.fixture(scope="module")
def model():
    return open_model("demo")


def test_a_prefill_that_stores_wrong_keys_is_noticed(model):
    backend = reference_backend(model, keep=True)
    expected, actual = (prefill(each, model, {"columns": 24}, np.random.default_rng(0))
                        for each in (backend, WithoutKeys(backend)))
    same = [np.allclose(*pair, atol=0.01) for pair in zip(expected, actual, strict=True)]
    assert same == [True] * 6 + [False] * 2 + [True] * 2
