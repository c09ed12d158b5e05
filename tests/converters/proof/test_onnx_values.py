"""Test `ane verify --layers` inside ONNX graphs: it compares every module, and names a wrong weight first."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from ane.bundles.bundle import Bundle
from ane.cli import main
from ane.system.decibels import snr_db
from converters.onnx.onnx_package import OnnxOptions, OnnxTarget
from tests.conversions import converted
from tests.random_model import write_random_bundle
from tests.small_bundle import record_again, spoil_onnx

BLOCK = ["ln_1", "attn.c_attn", "attn.c_proj", "attn", "ln_2", "mlp.c_fc", "mlp.act", "mlp.c_proj", "mlp"]
FP32_DB = 85  # required dB of every value inside a float32 graph


@pytest.fixture(scope="module")
def bundle(shared, tmp_path_factory) -> Bundle:
    write_random_bundle(source := tmp_path_factory.mktemp("source") / "random")
    return converted(shared, Bundle(source), [OnnxOptions()], ["autoregressive", "diffusion"], OnnxTarget())


def verified(path: Path, tmp_path: Path, *flags: str, status: int = 0) -> dict[str, dict]:
    """The functions of `ane verify --layers`, by package and name."""
    output = tmp_path / "report.json"
    command = ["verify", "--bundle", str(path), "--against", "onnx:cpu", "--layers", "--json", str(output), *flags]
    assert main(command) == status
    return {f"{one['package']}/{one['function']}": one for one in json.loads(output.read_text())["functions"]}


def test_each_module_of_the_decoder_and_of_the_denoiser_is_compared(bundle, tmp_path):
    found = verified(bundle.path, tmp_path)
    for graph in ("prefill", "step", "step_prefixes"):
        modules = [value["module"] for value in found[f"autoregressive-fp32/{graph}"]["values"]]
        inside = {f"gpt.h.{layer}.{part}" for layer in range(3) for part in BLOCK}
        assert set(modules) >= inside | {"gpt.ln_f", "final_norm"}
        assert modules.index("gpt.h.0.mlp.c_fc") < modules.index("gpt.h.0.mlp") < modules.index("gpt.h.1.ln_1")
    denoiser = {value["module"] for value in found["diffusion-fp32/denoise"]["values"]}
    assert denoiser >= {
        "integrating_conv",
        "layers.0.resblk.in_layers.2",
        "layers.0.attn.qkv",
        "layers.1.attn.proj_out",
        "layers.4",
        "out.2",
    }
    for name, one in found.items():
        assert one["passed"]
        if name.partition("/")[0].endswith("fp32"):
            assert one["drift"] is None
            assert min(value["snr"] for value in one["values"]) >= FP32_DB


@pytest.mark.parametrize(
    ("network", "graph", "weight"),
    [
        ("autoregressive", "prefill", "gpt.h.1.mlp.c_fc"),
        ("autoregressive", "step", "gpt.h.2.attn.c_attn"),
        ("autoregressive", "step", "mel_head"),
        ("diffusion", "denoise", "layers.1.resblk.out_layers.3"),
    ],
)
def test_a_changed_weight_is_the_first_that_drifts(bundle, tmp_path, capsys, network, graph, weight):
    path = Path(shutil.copytree(bundle.path, tmp_path / "copy"))
    spoil_onnx(path, f"packages/{network}-fp32.onnx", graph, weight)
    found = verified(path, tmp_path, "--function", graph, "--networks", network, status=1)
    one = found[f"{network}-fp32/{graph}"]
    assert not one["passed"]
    drifting = next(value for value in one["values"] if value["name"] == one["drift"])
    assert drifting["module"] == weight
    assert drifting["outside"] > 0
    assert f"{network}-fp32, {graph}: {weight} drifts first;" in " ".join(capsys.readouterr().out.split())


def test_the_numbers_are_those_of_the_arrays_that_are_kept_and_shown(bundle, tmp_path, capsys):
    dump = tmp_path / "values.npz"
    found = verified(
        bundle.path,
        tmp_path,
        "--networks",
        "diffusion",
        "--function",
        "denoise",
        "--tolerance",
        "1e-6",
        "--dump",
        str(dump),
        "--show",
    )["diffusion-fp32/denoise"]
    kept, out = np.load(dump), capsys.readouterr().out
    assert len(kept.files) == 2 * len(found["values"])
    for value in found["values"]:
        where = f"diffusion-fp32/denoise/{value['module']}"
        reference, package = kept[f"{where}/reference"], kept[f"{where}/package"]
        errors = np.abs(reference.astype(np.float64) - package)
        assert value["count"] == reference.size
        assert value["outside"] == (errors > 1e-6).sum()
        assert value["identical"] == np.array_equal(reference, package)
        assert value["error"] == errors.max()
        assert value["snr"] == pytest.approx(min(snr_db(reference, package), 200), abs=0.01)
    assert "beyond 1e-06" in out
    place = int(np.abs(reference.astype(np.float64) - package).argmax())
    begin = min(place, reference.size - 6)
    assert f"torch [{begin}:{begin + 6}] {reference.ravel()[begin]:.6g}" in out
    assert out.count("difference [") == len(found["values"])


def test_a_graph_that_does_not_state_its_modules_is_a_problem_of_one_line(bundle, tmp_path, capsys):
    path = Path(shutil.copytree(bundle.path, tmp_path / "copy"))
    file = path / "packages/diffusion-fp32.onnx/denoise.onnx"
    model = onnx.load(file, load_external_data=False)
    for node in model.graph.node:
        del node.metadata_props[:]
    file.unlink()
    file.write_bytes(model.SerializeToString())
    record_again(path, file)
    [found] = verified(path, tmp_path, "--networks", "diffusion", "--function", "denoise", status=1).values()
    assert "does not name the modules of its values: convert the model again" in found["problem"]
