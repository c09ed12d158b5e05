"""The sessions of a package share its weights, as on CUDA. The CPU does it here."""

import gc
import weakref
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ane.backends import load_backend
from ane.backends.onnx import shared_weights
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import CPU, DEVICES, make_session
from ane.backends.onnx.shared_weights import SharedWeights, shareable_weights, upload
from converters.proof.parity import UnpublishedModel, run_probe

GRAPHS = ("prefill", "step", "step_prefixes")       # of the decoder


class CountedUploads:
    """``upload``, with every value multiplied by ``factor``."""

    def __init__(self, factor: int = 1):
        self.factor, self.arrays, self.values = factor, [], weakref.WeakSet()

    def __call__(self, device: Any, arrays: list[np.ndarray]) -> list[Any]:
        self.arrays += arrays
        values = upload(device, [(array * self.factor).astype(array.dtype) for array in arrays])
        self.values.update(values)
        return values


@pytest.fixture
def uploads(monkeypatch) -> CountedUploads:
    counted = CountedUploads()
    monkeypatch.setattr(shared_weights, "upload", counted)
    return counted


@pytest.fixture(scope="module")
def torch(bundle):
    return load_backend("torch:cpu", bundle, "fp32", threads=1, keep=True)


def make_backend(bundle, torch, **options: Any) -> OnnxBackend:
    return OnnxBackend(bundle, DEVICES["cpu"], torch, "fp32", threads=1, as_on_cuda=True, **options)


def columns(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, 32), dtype=np.float32)


def run_decoder(backend: OnnxBackend) -> dict[str, list[np.ndarray]]:
    """What each of its graphs returns."""
    decoder = backend.decoder(2, 8, 2, 6)
    prefilled = [array for index in range(2) for array in decoder.prefill(columns(index, 6), index)]
    return dict(zip(GRAPHS, (prefilled, decoder.step(columns(2, 2, 1), np.zeros(2, np.int64)),
                             decoder.step(columns(3, 2, 1), np.ones(2, np.int64), 0, np.arange(2))), strict=True))


def test_all_sessions_of_a_package_use_one_copy_of_each_weight(bundle, torch, uploads):
    backend = make_backend(bundle, torch)
    run_decoder(backend)
    package = bundle.path / backend.packages["autoregressive"].path
    stored = {weight for name in GRAPHS for weight in shareable_weights(package / f"{name}.onnx").values()}
    assert len(backend.sessions) == len(GRAPHS)
    assert len(uploads.arrays) == len(uploads.values) == len(stored)
    total = sum(array.nbytes for array in uploads.arrays)
    assert total > 0.8 * sum(tensor.nbytes for tensor in map(numpy_helper.to_array, large_tensors(package)))


def large_tensors(package) -> list[onnx.TensorProto]:
    tensors = onnx.load(package / "prefill.onnx").graph.initializer
    return [tensor for tensor in tensors if len(tensor.raw_data) >= 4096]


def test_sessions_compute_with_the_shared_values(bundle, torch, uploads):
    """With other values than the package's, every graph returns something else."""
    expected = run_decoder(make_backend(bundle, torch))
    uploads.factor = 2
    actual = run_decoder(make_backend(bundle, torch))
    for name in GRAPHS:
        assert not any(np.allclose(one, other) for one, other in zip(expected[name], actual[name], strict=True)), name


def test_the_memory_is_freed_with_the_last_session_that_uses_it(bundle, torch, uploads):
    backend = make_backend(bundle, torch)
    run_decoder(backend)
    decoder = list(backend.sessions._loaded)
    own = len(uploads.values)
    backend.load("clvp")
    others = len(uploads.values) - own
    assert others > 0
    for key in decoder[1:]:
        del backend.sessions._loaded[key]
    gc.collect()
    assert len(uploads.values) == others + len(set(shareable_weights(decoder[0].path).values()))
    backend.release("autoregressive")
    gc.collect()
    assert len(uploads.values) == others
    backend.sessions.unload()
    gc.collect()
    assert len(uploads.values) == 0


def test_a_package_of_one_graph_shares_nothing(bundle, torch, uploads):
    make_backend(bundle, torch).run("ar_random", noise=np.ones((1, bundle.widths[0]), np.float32))
    assert uploads.arrays == []


def test_a_session_that_does_not_load_keeps_nothing(tmp_path, uploads):
    weight = np.ones((64, 64), np.float32)
    write_graph(tmp_path, weight)
    shared = SharedWeights(DEVICES["cpu"])
    shared.initializers(tmp_path / "graph.onnx")
    gc.collect()
    assert len(uploads.arrays) == 1
    assert len(shared) == 0


def write_graph(folder, weight: np.ndarray, node: str = "MatMul") -> None:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 64]) for name in "xy")
    nodes = [helper.make_node(node, ["x", "weight"], ["y"])]
    graph = helper.make_graph(nodes, "graph", [x], [y], [numpy_helper.from_array(weight, "weight")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, folder / "graph.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)


@pytest.mark.parametrize(("node", "shared"), [("MatMul", True), ("Add", False)])
def test_weights_that_onnx_runtime_may_transpose_are_not_shared(tmp_path, node, shared):
    write_graph(tmp_path, np.ones((64, 64), np.float32), node)
    assert bool(shareable_weights(tmp_path / "graph.onnx")) == shared


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_uploaded_values_outlive_the_sessions_that_made_them(dtype):
    arrays = [np.arange(24).reshape(shape).astype(dtype) for shape in ((24,), (4, 6), (2, 3, 4))]
    values = upload(DEVICES["cpu"], arrays)
    gc.collect()
    assert len({value.data_ptr() for value in values} | {array.ctypes.data for array in arrays}) == 6
    for value, array in zip(values, arrays, strict=True):
        assert value.numpy().dtype == dtype
        np.testing.assert_array_equal(value.numpy(), array)


def test_a_session_uses_an_uploaded_value(tmp_path):
    write_graph(tmp_path, np.ones((64, 64), np.float32))
    value, = upload(DEVICES["cpu"], [np.eye(64, dtype=np.float32)])
    session = make_session(tmp_path / "graph.onnx", [CPU], initializers={"weight": value})
    del value
    gc.collect()
    x = np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)


def test_every_graph_gives_the_same_bits_with_shared_weights(bundle, torch, uploads):
    for package in bundle.onnx_packages:
        model = UnpublishedModel(bundle, bundle.path, [package], torch)
        ways = [OnnxBackend(model, DEVICES["cpu"], torch, threads=1, as_on_cuda=way) for way in (False, True)]
        for name, function in package.functions.items():
            for one, other in zip(*(run_probe(way, model, package, function.kind) for way in ways), strict=True):
                np.testing.assert_array_equal(one, other, err_msg=f"{package.path} {name}")
    assert uploads.arrays
