"""Test what only a real Mac answers: MPS, playback, the cache, 4-bit weights, first loads, commands, devices."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ane.backends import load_backend
from ane.backends.mil import Package
from ane.bundles.bundle import Bundle
from ane.commands.placement import NEURAL_ENGINE, function_placement
from ane.system.decibels import snr_db
from converters.conversion import convert
from converters.coreml.coreml_package import CoreMLOptions, load_reference
from converters.coreml.graph import Style
from converters.coreml.merge import merge
from converters.tortoise import autoregressive as gpt2
from tests.arrays import noise
from tests.random_model import random_model, write_random_bundle
from tests.small_bundle import OPTIONS, write_small_bundle

pytestmark = pytest.mark.skipif(
    sys.platform != "darwin", reason="Core ML runs on macOS only; on a Mac (macOS 15 or newer): pytest tests/mac -rA"
)


@pytest.fixture(scope="module")
def four_bit(tmp_path_factory) -> Path:
    """A bundle with HiFi-GAN and CLVP, the latter with 4-bit weights."""
    pytest.importorskip("sklearn", reason="4-bit weights need scikit-learn: pip install '.[palettes]'")
    folder = tmp_path_factory.mktemp("bundles")
    write_random_bundle(folder / "plain")
    return convert(
        Bundle(folder / "plain"), folder / "small", [replace(OPTIONS, precision="4bit")], ["clvp", "hifigan"]
    ).path


@pytest.fixture
def ane(tmp_path, monkeypatch):
    """Run a command, which must succeed: all that it prints on standard output, and on standard error."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))

    def run(*arguments) -> tuple[str, str]:
        command = [sys.executable, "-m", "ane", *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
        if "no sound device" in done.stderr:
            pytest.skip("there is no sound device: connect one, and run `python -m pytest tests/mac` again")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, done.stderr

    return run


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="torch has no MPS here")
def test_torch_on_mps_renders_more_than_2_73_seconds():
    """Before macOS 15.1 MPS refuses rows above 65,536 samples, and the vocoder runs on the CPU."""
    inputs = {"frames": noise(1, 64, 300), "conditioning": noise(1, 64, seed=1)}
    expected, found = (
        load_backend(f"torch:{device}", random_model()).run("hifigan", **inputs) for device in ("cpu", "mps")
    )
    assert expected.shape[-1] > 65536
    assert snr_db(expected, found) > 40


def test_a_first_load_is_announced_once_and_its_compiled_model_is_listed(ane, four_bit):
    printed = [ane("verify", "--bundle", four_bit, "--against", "coreml", "--networks", "hifigan") for _ in range(2)]
    assert ["for the first time" in "".join(both) for both in printed] == [True, False]
    assert re.search(r"compiled models\W+1\b", ane("cache", "list")[0])


def test_a_stream_is_played_without_other_programs(ane, four_bit, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")  # folders without ffmpeg and sox
    ane("say", "Hi.", "--bundle", four_bit, "--preset", "fastest", "--seed", "0", "--stream")


def test_four_bit_weights_are_right_on_this_mac(ane, four_bit):
    """apple/coremltools#2716: crashes, and wrong values."""
    ane("verify", "--bundle", four_bit, "--against", "coreml", "--networks", "clvp")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_small_bundle(tmp_path_factory.mktemp("bundles"))


def test_auto_speaks(ane, small, tmp_path):
    facts = json.loads(
        ane("say", "Hi.", "--bundle", small, "--preset", "fastest", "--seed", "0", "--json", "-o", "hi.wav")[0]
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


def test_every_function_is_measured_on_all_compute_units_and_one_is_chosen(ane, converted):
    what = "--bundle", converted, "--preset", "fastest", "--text", "Hi."
    found = json.loads(ane("bench", "--runs", "3", *what, "-o", "-")[0])
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
