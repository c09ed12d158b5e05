"""Test the comparison of functions with the model and with ONNX graphs, and the probes that packages keep."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors import safe_open

from ane.backends.base import MASKED
from ane.backends.packaged.golden import FILE
from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from ane.bundles.package_records import FunctionRecord, PackageRecord
from ane.cli import main
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from converters.proof.parity import (
    FLUSHED,
    MATHS,
    MAX_SNR,
    ROUNDING,
    called_by_probe,
    check_threshold,
    mean_snr_db,
    reference_backend,
    relative_error,
    threshold_of,
    used_columns,
)
from converters.tortoise.tortoise_probes import prefill
from tests.refusals import assert_refused
from tests.small_bundle import record_again, spoil_onnx, write_small_bundle

# network, kind of function, precision → threshold in dB with fp32 arithmetic, and with fp16 rounding
THRESHOLDS = [
    ("autoregressive", "step", "fp32", 100, 100),
    ("autoregressive", "step", "fp16", 60, 46),
    ("autoregressive", "state", "fp32", 60, 60),
    ("autoregressive", "store", "fp32", 60, 60),
    ("autoregressive", "state", "fp16", 60, 46),
    ("autoregressive", "step", "8bit", 26, 26),
    ("autoregressive", "step", "6bit", 15, 15),
    ("autoregressive", "step", "4bit", 8, 8),
    ("diffusion", "denoise", "fp16", 72, 50),
    ("conditioning_encoder", "ar_conditioning", "fp16", 82, 50),
    ("hifigan", "hifigan", "fp16", 60, 41),
    ("univnet", "univnet", "fp32", 100, 100),
]


def package(network: str, kind: str, precision: str, format: str = "coreml") -> PackageRecord:
    return PackageRecord(
        network, precision, f"packages/{network}", [], {"main": FunctionRecord(kind, {}, {})}, format=format
    )


@pytest.mark.parametrize(("network", "kind", "precision", "maths", "rounding"), THRESHOLDS)
def test_a_function_must_reach_its_threshold(network, kind, precision, maths, rounding):
    record = package(network, kind, precision)
    assert threshold_of(record, "main", MATHS) == maths
    assert threshold_of(record, "main", ROUNDING) == threshold_of(record, "main", None) == rounding
    flushed = min(rounding, 45) if precision != "fp32" else maths
    for arithmetic, threshold in ((MATHS, maths), (ROUNDING, rounding), (FLUSHED, flushed)):
        check_threshold(record, "main", FunctionRecord(kind, {}, {arithmetic: threshold}))
        for short in (threshold - 0.1, float("nan")):
            with pytest.raises(UserError, match=f"below the threshold of {threshold}"):
                check_threshold(record, "main", FunctionRecord(kind, {}, {arithmetic: short}))


@pytest.mark.parametrize(("kind", "precision"), [("step", "2bit"), ("dance", "fp16")])
def test_an_unknown_precision_or_kind_is_reported(kind, precision):
    assert_refused(
        f"{precision} {kind} is not supported",
        lambda: threshold_of(package("autoregressive", kind, precision), "main", MATHS),
    )


def test_a_probe_gets_the_functions_that_it_calls():
    """A state is measured on the slots that it reads, and with its own store."""
    functions = {"prefill_64": FunctionRecord("prefill", {"columns": 64}, {}), "step": FunctionRecord("step", {}, {})}
    for capacity in (448, 2304):
        functions[f"state_{capacity}"] = FunctionRecord("state", {"columns": 8, "slots": 256, "capacity": capacity}, {})
        functions[f"store_{capacity}"] = FunctionRecord("store", {"columns": 64, "capacity": capacity}, {})
    record = PackageRecord("autoregressive", "fp16", "a.mlpackage", [], functions)
    assert called_by_probe(record, "prefill_64") == set(functions)
    assert called_by_probe(record, "step") == {"step"}
    assert called_by_probe(record, "state_2304") == {"state_2304", "store_2304", "prefill_64"}
    assert called_by_probe(record, "store_448") == {"state_448", "store_448", "prefill_64"}


def test_the_mean_is_that_of_the_noise():
    signal = np.array([1.0, 0.0])
    assert mean_snr_db([signal], [signal]) == MAX_SNR
    assert mean_snr_db([signal, signal], [signal, np.array([1.0, 0.1])]) == pytest.approx(20 + 10 * np.log10(2))
    assert mean_snr_db([signal], [signal * np.nan]) < 0


# ONNX

ONNX_THRESHOLDS = [
    ("autoregressive", "step", "fp32", 90),
    ("autoregressive", "step", "fp16", 45),
    ("autoregressive", "step", "int8", 20),
    ("autoregressive", "step", "int4", 8),
    ("univnet", "univnet", "fp32", 80),
]


def check_onnx(record: PackageRecord, snr: float, error: float) -> None:
    check_threshold(record, "main", FunctionRecord(record.functions["main"].kind, {}, {"cpu": snr, "error": error}))


@pytest.mark.parametrize(("network", "kind", "precision", "threshold"), ONNX_THRESHOLDS)
def test_an_onnx_graph_must_reach_its_threshold(network, kind, precision, threshold):
    record = package(network, kind, precision, "onnx")
    check_onnx(record, threshold, 0.0)
    for short in (threshold - 0.1, float("nan")):
        assert_refused(f"below the threshold of {threshold}", check_onnx, record, short, 0.0)


@pytest.mark.parametrize(("network", "kind", "largest"), [("clvp", "clvp_text", 1e-4), ("univnet", "univnet", 2e-3)])
def test_an_fp32_onnx_graph_must_not_have_a_larger_error(network, kind, largest):
    record = package(network, kind, "fp32", "onnx")
    check_onnx(record, 200.0, largest)
    assert_refused("above the threshold of", lambda: check_onnx(record, 200.0, 1.01 * largest))
    check_onnx(package(network, kind, "fp16", "onnx"), 200.0, 1.0)


def test_the_error_of_an_array_is_relative_to_its_own_largest_value():
    references, outputs = [np.array([100.0, 1.0]), np.array([1.0, 0.5])], [np.array([99.0, 1.0]), np.array([1.0, 0.6])]
    assert relative_error(references, outputs) == pytest.approx(0.1)


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


def test_a_prefill_that_stores_wrong_keys_is_noticed():
    model = open_model("demo")
    backend = reference_backend(model, keep=True)
    expected, actual = (
        prefill(each, model, {"columns": 24}, np.random.default_rng(0)) for each in (backend, WithoutKeys(backend))
    )
    same = [np.allclose(*pair, atol=0.01) for pair in zip(expected, actual, strict=True)]
    assert same == [True] * 6 + [False] * 2 + [True] * 2


def test_every_function_has_a_probe_that_a_wrong_one_fails(tmp_path_factory):
    """Values 5 % too large are 26 dB away."""
    small = Bundle(write_small_bundle(tmp_path_factory.mktemp("bundles")))
    for package in small.packages:
        path = Path(small.path / package.path / FILE)
        with safe_open(path, "np") as file:
            thresholds = {name: float(dB) for name, dB in file.metadata().items()}
        assert set(thresholds) == set(package.functions)
        assert 36 <= min(thresholds.values()) <= max(thresholds.values()) <= 60, package.path
        assert path.stat().st_size < 2_000_000


def test_columns_that_a_decoder_left_unused_are_the_first():
    x, mask = np.zeros((1, 2, 1, 3), np.float16), np.full((1, 1, 3, 5), MASKED, np.float16)
    x[0, :, 0, :2], mask[0, 0, :2, :2] = [[1, 2], [3, 4]], 0
    filled = used_columns({"x": x, "mask": mask})
    np.testing.assert_array_equal(filled["x"][0, :, 0], [[1, 2, 1], [3, 4, 3]])
    np.testing.assert_array_equal(filled["mask"][0, 0, 2], filled["mask"][0, 0, 0])
    assert used_columns({"x": x}).keys() == {"x"}


BLOCK = ["ln_1", "attn.c_attn", "attn.c_proj", "attn", "ln_2", "mlp.c_fc", "mlp.act", "mlp.c_proj", "mlp"]
FP32_DB = 85  # required dB of every value inside a float32 graph


@pytest.fixture(scope="module")
def bundle(onnx_packages) -> Bundle:
    return onnx_packages.bundle("autoregressive", "diffusion", full=True)


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
        inside = {f"gpt.h.{layer}.{part}" for layer in range(2) for part in BLOCK}
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
        ("autoregressive", "prefill", "gpt.h.0.mlp.c_fc"),
        ("autoregressive", "step", "gpt.h.1.attn.c_attn"),
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
        assert (value["count"], value["outside"]) == (reference.size, (errors > 1e-6).sum())
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
