"""What ``python -m benchmarks step-bytes`` counts as handed over is what Core ML's binding is handed."""

# ruff: noqa: F811  fixtures are imported

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ane.backends.coreml.runtime import CoreMLRuntime
from ane.backends.mil import Interpreter
from ane.backends.packaged.functions import PackageFunction
from benchmarks.step_bytes import CODES, LANES, decode, decoder_functions
from converters.coreml.merge import merge
from tests.backends.coreml import native
from tests.backends.coreml.mac_fixtures import mac, unguarded_mac  # noqa: F401
from tests.random_model import CONFIGS

CONFIG = replace(CONFIGS["autoregressive"], layers=1)       # with the buckets of the official decoder


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[PackageFunction], Counter]:
    """Functions that count what they are handed, and the counts. Beside them lies a package of all of them."""
    folder, counts = tmp_path_factory.mktemp("functions"), Counter()
    counted = decoder_functions(CONFIG, folder, counts)
    merge([(one.name, one.package) for one in counted], folder / "all.mlpackage")
    return counted, counts


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", ["step", "state"])
def test_the_bytes_handed_over_are_those_of_the_binding(mac, monkeypatch, functions, kind, lanes):
    """At every number of codes of the benchmark. The binding is handed float32, 4 of the 6 bytes of each value."""
    counted, counts = functions
    handed = Counter()

    def note(self: native.StandIn, line: str) -> None:
        what, _, amount = line.partition(" ")
        handed[what] += int(amount) if what == "moved" else 1

    def zeros(self: Interpreter, inputs: dict, state: object = None) -> dict[str, np.ndarray]:
        return {name: np.zeros(type.shape, np.float32) for name, type in self.function.outputs.items()}

    monkeypatch.setattr(native.StandIn, "note", note)
    monkeypatch.setattr(Interpreter, "predict", zeros)      # what it would compute counts no bytes
    runtime = CoreMLRuntime()
    real = [PackageFunction(runtime, one.package.with_name("all.mlpackage"), one.name, one.bucket, "CPU_ONLY", one.kind)
            for one in counted]
    expected = decode(counted, kind, lanes, CONFIG, counts, CODES)
    found = decode(real, kind, lanes, CONFIG, handed, CODES)
    assert set(found) == set(expected)
    assert {codes for codes, _ in found} == set(CODES)
    for cell, binding in found.items():
        assert binding["predict"] == expected[cell]["calls"]
        assert binding["moved"] == pytest.approx(expected[cell]["handed over"] / 6 * 4 + expected[cell]["integers"])
