"""The compute plan of Core ML itself; the rest of `ane plan` is tested in tests/commands/test_plan.py."""

import sys
from pathlib import Path

import pytest

from ane.backends.mil import Package
from ane.commands.placement import NEURAL_ENGINE, package_placements
from converters.coreml.graph import Style
from converters.coreml.package import load_reference
from converters.tortoise import autoregressive as gpt2
from tests.random_model import RandomModel

pytestmark = pytest.mark.skipif(sys.platform != "darwin",
                                reason="Core ML runs on macOS only; on a Mac (macOS 15 or newer): pytest tests/mac -rA")


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> Package:
    path: Path = tmp_path_factory.mktemp("packages") / "step.mlpackage"
    gpt2.step(load_reference(RandomModel(), "autoregressive"), 32, 64).build(Style()).save(str(path))
    return Package(path)


@pytest.mark.parametrize(("units", "devices"), [("CPU_ONLY", {"CPU"}), ("CPU_AND_GPU", {"CPU", "GPU"}),
                                                ("CPU_AND_NE", {"CPU", NEURAL_ENGINE})])
def test_every_operation_has_a_device_that_was_allowed(step, tmp_path, monkeypatch, units, devices):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    found = package_placements(step, units, ["main"])["main"]
    assert set(found.ops) <= devices
    assert sum(found.ops.values()) + found.unknown == len(step.function().ops)
