"""Golden probes: what is stored of them, and what they find."""

import numpy as np
import pytest

from ane.backends.packaged.probes import MOST_VALUES, SAMPLES, FunctionProbe, samples, write_probes

DECLARED = {"step": {"x": ((2, 3), "float32"), "keys": ((4, 2**18), "float32")}}
X, KEYS = np.arange(6, dtype=np.float16).reshape(2, 3), np.tile(np.float16([1, 2]), (4, 2**17))


@pytest.fixture
def probe() -> FunctionProbe:
    return FunctionProbe([("step", {"x": X, "keys": KEYS})], {"y": samples(X + KEYS.mean())}, 40.0)


def test_a_probe_is_read_as_it_was_written_and_its_file_is_small(tmp_path, probe):
    write_probes(tmp_path, {"step": probe})
    read = FunctionProbe.read(tmp_path, "step", DECLARED)
    assert read.threshold == 40.0
    [(called, inputs)] = read.calls
    assert called == "step"
    for name, array in (("x", X), ("keys", KEYS)):
        np.testing.assert_array_equal(inputs[name], array)
        assert inputs[name].dtype == np.float32
    np.testing.assert_array_equal(read.expected["y"], probe.expected["y"])
    assert (tmp_path / "probes.safetensors").stat().st_size < 2 * MOST_VALUES + 10_000
    assert FunctionProbe.read(tmp_path, "other", DECLARED) is None
    assert FunctionProbe.read(tmp_path / "none", "step", DECLARED) is None


@pytest.mark.parametrize("shape", [(5,), (3, 4096), (64, 1, 4096), (7, 11, 13, 17)])
def test_samples_are_few_and_spread_over_every_axis(shape):
    found = samples(np.arange(np.prod(shape)).reshape(shape))
    assert len(found) <= SAMPLES
    for axis, size in enumerate(shape):
        assert len(set(np.unravel_index(found.astype(int), shape)[axis])) == size or size > SAMPLES / 2


class CacheMeanEngine:
    """Returns x plus the mean of the cache, as ``fault`` has it: the cache of this call, and of the one before."""

    def __init__(self, fault=lambda number, cache, before: cache):
        self.fault, self.number, self.before = fault, 0, None

    def predict(self, function):
        def call(inputs, state):
            self.number += 1
            cache, self.before = self.fault(self.number, inputs["keys"], self.before), inputs["keys"]
            return {"y": inputs["x"] + cache.mean()}

        return call


@pytest.mark.parametrize(("fault", "passes"), [
    (lambda number, cache, before: cache, True),
    (lambda number, cache, before: cache * 1.05, False),
    (lambda number, cache, before: cache if number < 100 else before, False),
    (lambda number, cache, before: cache if number != 150 else cache * np.nan, False)])
def test_a_cache_that_goes_wrong_at_any_of_two_hundred_steps_is_found(probe, fault, passes):
    engine = CacheMeanEngine(fault)
    assert (probe.repeat(engine.predict, lambda: None) >= probe.threshold) == passes
    assert engine.number == 200 or not passes
