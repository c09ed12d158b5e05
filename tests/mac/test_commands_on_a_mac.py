"""Test commands on a real Mac."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ane.backends.mil import Package
from ane.bundles.bundle import Bundle
from ane.commands.placement import NEURAL_ENGINE, function_placement
from converters.conversion import convert
from converters.coreml.coreml_package import CoreMLOptions, load_reference
from converters.coreml.graph import Style
from converters.coreml.merge import merge
from converters.tortoise import autoregressive as gpt2
from tests.random_model import random_model
from tests.small_bundle import write_small_bundle

pytestmark = pytest.mark.skipif(
    sys.platform != "darwin", reason="Core ML runs on macOS only; on a Mac (macOS 15 or newer): pytest tests/mac -rA"
)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_small_bundle(tmp_path_factory.mktemp("bundles"))


@pytest.fixture
def ane(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))

    def run(*arguments) -> str:
        result = subprocess.run(
            [sys.executable, "-m", "ane", *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def test_auto_speaks(ane, small, tmp_path):
    facts = json.loads(
        ane("say", "Hi.", "--bundle", small, "--preset", "fastest", "--seed", "0", "--json", "-o", "hi.wav")
    )
    assert facts["backend"].startswith("coreml")
    assert not {"autoregressive", "hifigan"} & set(re.findall(r"\w+", facts["backend"])), "some moved to torch"
    assert (tmp_path / "hi.wav").stat().st_size > 1000


@pytest.fixture(scope="module")
def converted(random_bundle, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "converted"
    buckets = {"prefill": (64,), "step": (1088,), "clvp_text": (64,), "clvp_speech": (128,)}
    convert(Bundle(random_bundle), path, [CoreMLOptions(lanes=(2,), buckets=buckets)], ["autoregressive", "clvp"])
    return path


def test_every_function_is_measured_on_all_compute_units_and_one_is_chosen(converted, tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))

    def run(*arguments) -> str:
        result = subprocess.run(
            [sys.executable, "-m", "ane", *arguments, "--bundle", str(converted)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    found = json.loads(run("bench", "--runs", "3", "--preset", "fastest", "--text", "Hi.", "-o", "-"))
    core_ml = [row for row in found["rows"] if row["competitor"] == "coreml" and row["what"] != "sentence"]
    assert {row["settings"]["compute_units"] for row in core_ml} == {"CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE"}
    on_cpu = [row for row in core_ml if row["settings"]["compute_units"] == "CPU_ONLY"]
    assert all(row["error"] is None and row["value"]["median"] > 0 for row in on_cpu)
    spoken = [row["competitor"] for row in found["rows"] if row["what"] == "sentence"]
    assert {re.split("[:, ]", competitor)[0] for competitor in spoken} == {"coreml", "torch"}
    assert found["chosen"]["backend"].partition(":")[0] in ("coreml", "torch")


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> Package:
    """Two functions: Core ML plans the default one of a package only."""
    folder: Path = tmp_path_factory.mktemp("packages")
    network = load_reference(random_model(), "autoregressive")
    graphs = [gpt2.decoder_graphs(network).step(columns, slots) for columns, slots in ((32, 64), (64, 128))]
    parts = {graph.name: folder / f"{graph.name}.mlpackage" for graph in graphs}
    for graph in graphs:
        graph.build(Style(), parts[graph.name])
    merge(parts.items(), folder / "steps.mlpackage")
    return Package(folder / "steps.mlpackage")


@pytest.mark.parametrize(
    ("units", "devices"),
    [("CPU_ONLY", {"CPU"}), ("CPU_AND_GPU", {"CPU", "GPU"}), ("CPU_AND_NE", {"CPU", NEURAL_ENGINE})],
)
def test_every_operation_has_a_device_that_was_allowed(step, tmp_path, monkeypatch, units, devices):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    for name in step.functions:
        found = function_placement(step, units, name)
        assert set(found.ops) <= devices
        assert sum(found.ops.values()) + found.unknown == len(step.function(name).ops)
        assert sum(found.ops.values()) > found.unknown
