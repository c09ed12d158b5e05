"""The compute plan of Core ML itself; the rest of `ane plan` is tested in tests/commands/test_plan.py."""

import sys
from pathlib import Path

import pytest

from ane.backends.mil import Package
from ane.commands.placement import NEURAL_ENGINE, function_placement
from converters.coreml.graph import Style
from converters.coreml.merge import merge
from converters.coreml.package import load_reference
from converters.tortoise import autoregressive as gpt2
from tests.random_model import RandomModel

pytestmark = pytest.mark.skipif(sys.platform != "darwin",
                                reason="Core ML runs on macOS only; on a Mac (macOS 15 or newer): pytest tests/mac -rA")


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> Package:
    """Two functions: Core ML plans the default one of a package only."""
    folder: Path = tmp_path_factory.mktemp("packages")
    network = load_reference(RandomModel(), "autoregressive")
    graphs = [gpt2.decoder_graphs(network).step(columns, slots) for columns, slots in ((32, 64), (64, 128))]
    parts = {graph.name: folder / f"{graph.name}.mlpackage" for graph in graphs}
    for graph in graphs:
        graph.build(Style()).save(str(parts[graph.name]))
    merge(parts.items(), folder / "steps.mlpackage")
    return Package(folder / "steps.mlpackage")


@pytest.mark.parametrize(("units", "devices"), [("CPU_ONLY", {"CPU"}), ("CPU_AND_GPU", {"CPU", "GPU"}),
                                                ("CPU_AND_NE", {"CPU", NEURAL_ENGINE})])
def test_every_operation_has_a_device_that_was_allowed(step, tmp_path, monkeypatch, units, devices):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    for name in step.functions:
        found = function_placement(step, units, name)
        assert set(found.ops) <= devices
        assert sum(found.ops.values()) + found.unknown == len(step.function(name).ops)
        assert sum(found.ops.values()) > found.unknown
