"""Test `ane convert --to onnx`, and `ane verify --against onnx`."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from rich.console import Console
from torch import nn

from ane.backends import load_backend
from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from ane.commands.convert import report
from ane.models.tortoise.networks.frames import FrameNorm
from ane.models.tortoise.networks.layers import GroupNorm
from ane.system.decibels import snr_db
from converters.conversion import ROOT, convert
from converters.coreml.coreml_package import CoreMLOptions
from converters.function_table import ONNX_THRESHOLDS, onnx_graphs
from converters.onnx.graph import NetworkCall, OnnxGraph, attention, network_call
from converters.onnx.onnx_package import WEIGHTS_FILE, OnnxOptions, OnnxTarget, load_reference, quantise, write_package
from converters.proof.parity import check_threshold
from converters.tortoise.onnx_graphs import make_traceable
from tests.random_model import write_random_bundle
from tests.refusals import assert_refused

ONNX = OnnxTarget()
SMALL = ["rlg_auto"]


@pytest.fixture
def source(tmp_path: Path) -> Bundle:
    write_random_bundle(tmp_path / "source")
    return Bundle(tmp_path / "source")


def package_of(bundle: Bundle, network: str, precision: str = "fp32"):
    return next(
        package for package in bundle.onnx_packages if (package.network, package.precision) == (network, precision)
    )


def graphs(bundle: Bundle, network: str, precision: str = "fp32") -> dict[str, onnx.ModelProto]:
    package = package_of(bundle, network, precision)
    return {
        name: onnx.load(bundle.path / package.path / f"{name}.onnx", load_external_data=False)
        for name in package.functions
    }


def test_prefill_and_steps_share_one_copy_of_the_weights(decoder_bundle):
    """The file is about as large as the weights of one graph, and all graphs refer to the same ranges of it."""
    ranges: dict[str, dict[tuple[str, str], int]] = {}
    for name, model in graphs(decoder_bundle, "autoregressive").items():
        entries = [
            {entry.key: entry.value for entry in tensor.external_data}
            for tensor in model.graph.initializer
            if tensor.external_data
        ]
        assert {entry["location"] for entry in entries} == {WEIGHTS_FILE}
        ranges[name] = {(entry["offset"], entry["length"]): int(entry["length"]) for entry in entries}
    assert set(ranges) == {"prefill", "step", "step_prefixes"}
    large = [{part for part, size in parts.items() if size > 4096} for parts in ranges.values()]
    assert large[0] == large[1] == large[2]
    weights = sum(ranges["prefill"].values())
    config = decoder_bundle.config("autoregressive")
    assert weights >= 4 * (12 * config.layers * config.model_dim**2 + config.model_dim * config.number_mel_codes)
    file = decoder_bundle.path / package_of(decoder_bundle, "autoregressive").path / WEIGHTS_FILE
    assert file.stat().st_size <= weights + 4096 * (1 + sum(map(len, ranges.values())))
    assert file.stat().st_size < 1.5 * weights


def test_every_network_has_graphs_that_reach_their_threshold_pass_the_checker_and_contain_no_local_path(bundle):
    assert {package.network for package in bundle.onnx_packages} == bundle.networks
    for package in bundle.onnx_packages:
        assert package.functions
        for name, function in package.functions.items():
            assert set(function.parity) == {"cpu", "error"}
            check_threshold(package, name, function)
            path = bundle.path / package.path / f"{name}.onnx"
            onnx.checker.check_model(str(path))
            assert str(ROOT).encode() not in path.read_bytes()


def test_diffusion_graphs_compute_group_norms_in_two_passes(onnx_packages):
    """ONNX's own operators cancel. The graphs' operations do not depend on the weights."""
    package = onnx_packages.folder / onnx_packages.package("diffusion").path
    names = "condition", "denoise"
    graphs = [onnx.load(package / f"{name}.onnx", load_external_data=False).graph.node for name in names]
    network = load_reference(onnx_packages.model, "diffusion", "fp16")
    for nodes in (*graphs, onnx_graphs("diffusion", network, torch.float16)["condition"].export().graph):
        types = {node.op_type for node in nodes}
        assert types & {"ReduceMean"}
        assert not types & {"GroupNormalization", "InstanceNormalization", "BatchNormalization"}


@pytest.mark.parametrize(("dtype", "spread", "least"), [(torch.float32, 0.01, 60), (torch.float16, 0.5, 65)])
@pytest.mark.parametrize(("norm", "shape", "frames"), [(GroupNorm, (2, 64, 9), 2), (FrameNorm, (2, 9, 64), 1)])
def test_group_norms_for_onnx_are_exact_although_their_input_hardly_varies(norm, shape, frames, dtype, spread, least):
    """In fp32, the square of their mean is 1e8 times their variance: a difference of both has no correct digit."""
    layer = norm(64).requires_grad_(False)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = (100 + spread * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
    exported = OnnxGraph(NetworkCall(layer, network_call), {"x": (x, {0: "batch", frames: "frames"})}, ["y"]).export()
    session = onnxruntime.InferenceSession(onnx_ir.to_proto(exported).SerializeToString())
    (actual,) = session.run(None, {"x": x.numpy()})
    assert actual.dtype == x.numpy().dtype
    assert snr_db(layer.double()(x.double()).numpy(), actual.astype(np.float64)) > least


def test_an_export_whose_norms_stay_operators_of_onnx_is_refused(monkeypatch):
    """As those of a torch would, which does not use the translation."""
    monkeypatch.setattr("converters.onnx.graph.ONE_PASS", {"ReduceMean"})
    network = NetworkCall(GroupNorm(64), network_call)
    graph = OnnxGraph(network, {"x": (torch.zeros(2, 64, 9), {0: "batch"})}, ["y"])
    assert_refused(r"torch .* exports inexact group norms to ONNX: update torch", graph.export)


def test_group_norms_are_one_operation_of_what_torch_traces():
    network = nn.Sequential(FrameNorm(64))
    network[0].two_pass = True
    make_traceable(network)
    read = torch.export.export(network, (torch.zeros(2, 9, 64),))
    assert "aten.group_norm.default" in {str(node.target) for node in read.graph.nodes}


def attention_arrays(prefix: int, length: int, shared: bool) -> dict[str, np.ndarray]:
    """Arguments of the attention of 2 lanes, 3 heads and 2 new columns, by name."""
    rng = np.random.default_rng(0)
    of_prefix = (3, prefix, 8) if shared else (4, 3, prefix, 8)
    shapes = dict.fromkeys("qkv", (2, 3, 2, 8)) | {"mask": (2, 2, prefix + length + 2)}
    shapes |= dict.fromkeys(("keys", "values"), (2, 3, length, 8))
    shapes |= dict.fromkeys(("prefix_keys", "prefix_values"), of_prefix)
    arrays = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    return arrays if shared else {**arrays, "prefix_index": np.array([3, 1])}


@pytest.mark.parametrize("shared", [True, False])
def test_attention_to_a_prefix_and_a_cache_of_any_length_is_that_of_torch(shared):
    new, of_lane = {0: "lanes", 2: "columns"}, {0: "lanes", 2: "length"}
    of_prefix = {1: "prefix"} if shared else {0: "prefixes", 2: "prefix"}
    axes = {"q": new, "k": new, "v": new, "mask": {0: "lanes", 1: "columns", 2: "seen"}, "prefix_index": {0: "lanes"}}
    axes |= {"keys": of_lane, "values": of_lane, "prefix_keys": of_prefix, "prefix_values": of_prefix}
    examples = {name: (torch.from_numpy(array), axes[name]) for name, array in attention_arrays(3, 4, shared).items()}
    module = NetworkCall(nn.Identity(), lambda _, q, k, v, *others: attention([], *others, *[None] * shared)(q, k, v))
    exported = onnx_ir.to_proto(OnnxGraph(module, examples, ["y"]).export()).SerializeToString()
    session = onnxruntime.InferenceSession(exported)
    for lengths in ((3, 4), (5, 1), (0, 4), (3, 0), (0, 0)):
        arrays = attention_arrays(*lengths, shared)
        given = {name: torch.from_numpy(array) for name, array in arrays.items()}
        prefixes = [
            part.expand(2, -1, -1, -1) if shared else part[given["prefix_index"]]
            for part in (given["prefix_keys"], given["prefix_values"])
        ]
        keys = torch.cat([prefixes[0], given["keys"], given["k"]], dim=2)
        values = torch.cat([prefixes[1], given["values"], given["v"]], dim=2)
        expected = nn.functional.scaled_dot_product_attention(given["q"], keys, values, given["mask"][:, None])
        np.testing.assert_allclose(session.run(None, arrays)[0], expected.numpy(), atol=1e-5)


def test_a_graph_that_the_checker_refuses_is_named(source, tmp_path, monkeypatch):
    def refuse(path: str, full_check: bool) -> None:
        raise onnx.shape_inference.InferenceError("scale has inconsistent type")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    assert_refused(
        r"rlg_auto, function ar_random, in fp32: ONNX's checker .* inconsistent type",
        lambda: write_package(source, "rlg_auto", OnnxOptions(), tmp_path),
    )


@pytest.mark.parametrize(("precision", "op"), [("int8", "MatMulInteger"), ("int4", "MatMulNBits")])
def test_every_weight_of_a_quantised_decoder_is_quantised(decoder_bundle, precision, op):
    assert len(graphs(decoder_bundle, "autoregressive", precision)) == 3
    for model in graphs(decoder_bundle, "autoregressive", precision).values():
        weights = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) > 1}
        products = [node for node in model.graph.node if node.op_type == "MatMul" and weights & set(node.input)]
        assert not products
        layers = decoder_bundle.config("autoregressive").layers
        assert sum(node.op_type == op for node in model.graph.node) == 4 * layers + 1
    full, narrow = (
        sum(
            file.bytes for file in package_of(decoder_bundle, "autoregressive", each).files if WEIGHTS_FILE in file.file
        )
        for each in ("fp32", precision)
    )
    assert narrow < 0.4 * full


def test_products_of_whisper_keep_small_values_beside_large_ones(tmp_path):
    """As those of its trained networks, of which one scale for all leaves too few of 8 bits."""
    rng = np.random.default_rng(0)
    weight, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 32), (10, 64)))
    x[:, 3] *= 1000
    weight[:32] = 0
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", "weight"], ["y"], "product")],
            "main",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (10, 32))],
            [onnx.numpy_helper.from_array(weight, "weight")],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 20)],
        ir_version=10,
    )
    found = {}
    for network in ("autoregressive", "encoder"):
        model = onnx_ir.to_proto(quantise(onnx_ir.from_proto(proto), network, "int8", 8))
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        found[network] = snr_db(x @ weight, session.run(None, {"x": x})[0])
    assert found["encoder"] > 25 > found["autoregressive"]


def test_a_bundle_may_have_core_ml_and_onnx_packages(source, tmp_path):
    first = convert(source, tmp_path / "out", [CoreMLOptions()], SMALL)
    both = convert(first, tmp_path / "out", [OnnxOptions()], SMALL, overwrite=True, target=ONNX)
    assert ([package.format for package in both.packages], [package.format for package in both.onnx_packages]) == (
        ["coreml"],
        ["onnx"],
    )
    both.verify()
    noise = np.ones((1, 64), np.float32)
    expected, *actual = (
        load_backend(name, both, threads=1).run("ar_random", noise=noise) for name in ("torch:cpu", "mil", "onnx:cpu")
    )
    assert all(np.abs(expected - each).max() < 0.01 for each in actual)
    stated = json.loads((both.path / "bundle.json").read_text())
    assert stated["coreml"]["packages"][0]["path"] == "packages/rlg_auto-fp16.mlpackage"
    third = convert(both, tmp_path / "out", [CoreMLOptions()], SMALL, overwrite=True)
    assert len(third.onnx_packages) == 1  # the package was copied with the bundle


def test_unfinished_files_of_a_killed_conversion_are_removed(source, tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("converters.onnx.onnx_package.measure_parity", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert(source, tmp_path / "out", [OnnxOptions()], SMALL, target=ONNX)
    left = tmp_path / "out.converting" / "packages" / ".rlg_auto-fp32.onnx.x.partial"
    left.mkdir(parents=True)
    (left / "weights.bin").write_bytes(b"half")
    convert(source, tmp_path / "out", [OnnxOptions()], SMALL, target=ONNX)
    assert [path.name for path in (tmp_path / "out" / "packages").iterdir()] == ["rlg_auto-fp32.onnx"]


def test_a_graph_below_its_threshold_is_not_published(source, tmp_path, monkeypatch):
    monkeypatch.setitem(ONNX_THRESHOLDS, "fp32", 500.0)
    assert_refused(
        r"rlg_auto, function ar_random, in fp32 .* below the threshold of 500",
        lambda: convert(source, tmp_path / "out", [OnnxOptions()], SMALL, target=ONNX),
    )
    assert not (tmp_path / "out").exists()


def test_a_published_package_is_reported_without_measurements(capsys):
    report(Console(width=120), open_model("heart"), "onnx")
    [row] = [line for line in capsys.readouterr().out.splitlines() if "hibari" in line]
    assert re.findall(r"[^│\s]+", row)[2:] == ["3", "7.9", "–", "–"]


def test_flags_without_effect_are_refused(source, tmp_path, complain):
    for flags, message in {
        "--precision 8bit": "with --to onnx must be fp32 or fp16 or int8 or int4, got 8bit: use int8",
        "--lanes 2": "--lanes has no effect with --to onnx",
        "--cache io": "--cache has no effect with --to onnx",
        "--networks whisperer": "no such network",
    }.items():
        assert message in complain("convert", source.path, "--to", "onnx", "-o", tmp_path / "out", *flags.split())


def test_networks_without_a_package_run_on_torch(onnx_packages):
    backend = load_backend("onnx:cpu", onnx_packages.bundle("rlg_auto"), threads=1)
    assert backend.name == "onnx:cpu fp32, on torch: autoregressive, clvp, diffusion, hifigan, univnet"
    assert backend.run("diffusion_random", noise=np.ones((1, 80), np.float32)).shape == (1, 80)
