"""Buckets, profiles and the cache of TensorRT's engines. No GPU is needed."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.backends import load_backend
from ane.backends.onnx import tensorrt
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.backends.onnx.sessions import SessionKey
from ane.backends.onnx.tensorrt import (
    BATCHES,
    LENGTHS,
    NvidiaMachine,
    TensorRtEngines,
    TensorRtRecord,
    bucket_range,
    input_axes,
    shape_profile,
)
from ane.cli import main
from ane.system.errors import UserError

A100 = NvidiaMachine("NVIDIA A100, 550.54", (("onnxruntime-gpu", "1.23.0"), ("tensorrt", "10.9.0")))


@given(st.integers(1, 20000), st.sampled_from([BATCHES, LENGTHS]))
def test_a_bucket_is_the_smallest_that_contains_the_size(size, edges):
    low, high = bucket_range(size, edges)
    assert low <= size <= high
    assert bucket_range(low, edges) == bucket_range(high, edges) == (low, high)
    if low > 1:
        assert bucket_range(low - 1, edges)[1] == low - 1


@pytest.mark.parametrize(("size", "expected"), [
    (1, (1, 64)), (64, (1, 64)), (65, (65, 128)), (4096, (2049, 4096)), (4097, (4097, 8192)), (8192, (4097, 8192)),
    (8193, (8193, 16384)), (16384, (8193, 16384)), (16385, (16385, 24576))])
def test_buckets_of_lengths_end_at_their_edges(size, expected):
    assert bucket_range(size, LENGTHS) == expected


@pytest.mark.parametrize(("size", "expected"), [(1, (1, 1)), (2, (2, 2)), (3, (3, 4)), (4, (3, 4)), (128, (65, 128)),
                                                (129, (129, 256))])
def test_buckets_of_counts_end_at_their_edges(size, expected):
    assert bucket_range(size, BATCHES) == expected
    assert shape_profile({"x": ["lanes"]}, {"x": (size,)}).largest == (("x", expected[1:]),)


def test_linked_lengths_stay_linked_at_both_ends():
    axes = {"mel": ["batch", 100, "frames"], "noise": ["batch", 64, "frames_and_10"]}
    profile = shape_profile(axes, {"mel": (1, 100, 300), "noise": (1, 64, 310)})
    assert profile.options() == {"trt_profile_min_shapes": "mel:1x100x257,noise:1x64x267",
                                 "trt_profile_opt_shapes": "mel:1x100x512,noise:1x64x522",
                                 "trt_profile_max_shapes": "mel:1x100x512,noise:1x64x522"}


def test_a_fixed_profile_takes_one_shape_only():
    axes = {"columns": ["lanes", "columns", 64], "mask": ["lanes", "columns", "seen"]}
    profile = shape_profile(axes, {"columns": (3, 1, 64), "mask": (3, 1, 129)}, fixed=True)
    assert profile.smallest == profile.largest == (("columns", (3, 1, 64)), ("mask", (3, 1, 129)))


def options(tmp_path, **changed) -> dict[str, str]:
    given = {"graph": Path("denoise.onnx"), "content": "abc", "precision": "fp16", "machine": A100, "frames": 300}
    given |= changed
    shapes = shape_profile({"x": [1, 100, "frames"]}, {"x": (1, 100, given["frames"])})
    return TensorRtEngines(tmp_path, given["machine"]).options(
        given["graph"], given["content"], given["precision"], shapes)


@pytest.mark.parametrize("changed", [
    {"graph": Path("condition.onnx")}, {"content": "abd"}, {"precision": "fp32"}, {"frames": 600},
    {"machine": NvidiaMachine("NVIDIA L4, 550.54", A100.libraries)},
    {"machine": NvidiaMachine(A100.gpu, (*A100.libraries[:1], ("tensorrt", "10.10.0")))}])
def test_an_engine_is_reused_only_for_what_it_was_built_for(tmp_path, changed):
    kept = options(tmp_path)
    assert options(tmp_path) == kept
    assert options(tmp_path, frames=400) == kept            # of the same bucket
    assert options(tmp_path, **changed)["trt_engine_cache_path"] != kept["trt_engine_cache_path"]


def test_rebuild_deletes_an_engine_once(tmp_path):
    folder = Path(options(tmp_path)["trt_engine_cache_path"])
    (folder / "built.engine").write_bytes(b"engine")
    options(tmp_path)
    assert (folder / "built.engine").exists()
    engines = TensorRtEngines(tmp_path, A100, rebuild=True)
    shapes = shape_profile({"x": [1, 100, "frames"]}, {"x": (1, 100, 300)})
    engines.options(Path("denoise.onnx"), "abc", "fp16", shapes)
    assert not (folder / "built.engine").exists()
    (folder / "built.engine").write_bytes(b"new")
    engines.options(Path("denoise.onnx"), "abc", "fp16", shapes)
    assert (folder / "built.engine").exists()


def test_each_bucket_of_a_stage_has_an_engine(onnx_packages, tmp_path):
    bundle = onnx_packages.bundle("conditioning_encoder")
    requested: list[SessionKey] = []

    def load(one: SessionKey):
        requested.append(one)
        raise UserError("no GPU here")

    backend = OnnxBackend(bundle, DEVICES["tensorrt"], load_backend("torch:cpu", bundle), "fp32",
                         engines=TensorRtEngines(tmp_path, A100), load=load)
    for frames in (100, 90, 300):
        with pytest.raises(UserError, match="no GPU here"):
            backend.run("ar_conditioning", mel=np.zeros((1, 80, frames), np.float32))
    first, again, other = (dict(one.options) for one in requested)
    assert first == again
    assert first["trt_profile_max_shapes"] == "mel:1x80x128"
    assert other["trt_profile_min_shapes"] == "mel:1x80x257"
    assert first["trt_engine_cache_path"] != other["trt_engine_cache_path"]


def test_the_free_axes_of_a_graph_have_names(onnx_packages):
    assert input_axes(onnx_packages.folder / onnx_packages.package("univnet").path / "univnet.onnx") == {
        "mel": ["batch", 100, "frames"], "noise": ["batch", 64, "frames_and_10"]}


def test_the_cache_command_lists_and_clears_engines(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    folder = Path(options(tmp_path / "cache" / "engines")["trt_engine_cache_path"])
    (folder / "built.engine").write_bytes(bytes(5000))
    (tmp_path / "cache" / "engines" / "TensorrtExecutionProvider_cache_sm80.timing").write_bytes(bytes(10))
    assert main(["cache", "list", "--json"]) == 0
    items = {Path(item["path"]).name: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert items[folder.name]["bytes"] > 5000
    assert "for other versions" in items[folder.name]["stale"]
    assert main(["cache", "clear"]) == 0
    assert not folder.exists()


def test_an_engine_is_stale_when_it_was_not_requested_for_long(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    monkeypatch.setattr(tensorrt, "this_machine", lambda: A100)
    folder = tmp_path / "cache" / "engines"
    folders = [Path(options(folder, frames=frames)["trt_engine_cache_path"]) for frames in (100, 300)]
    for engine in folders:
        (engine / "built.engine").write_bytes(b"engine")
        for path in (engine / "engine.json", engine / "built.engine", engine):
            os.utime(path, (1e9, 1e9))
    options(folder, frames=300)
    assert main(["cache", "list", "--json"]) == 0
    stale = {Path(item["path"]).name: item["stale"] for item in json.loads(capsys.readouterr().out)["items"]}
    assert stale == {folders[0].name: "unused for 90 days", folders[1].name: ""}


def test_the_gpu_is_queried_once_for_any_number_of_engines(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    for frames in (100, 300, 600):
        options(tmp_path / "cache" / "engines", frames=frames)
    requested: list[NvidiaMachine] = []
    monkeypatch.setattr(tensorrt, "this_machine", lambda: requested.append(A100) or A100)
    assert main(["cache", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["items"]) == 3
    assert len(requested) == 1


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "{}", "\xff", '{"graph": 1}'])
def test_a_record_that_cannot_be_read_is_written_again(tmp_path, text):
    record = Path(options(tmp_path)["trt_engine_cache_path"]) / "engine.json"
    original = record.read_text()
    record.write_text(text, encoding="latin-1")
    assert TensorRtRecord.read(record.parent) is None
    options(tmp_path)
    assert record.read_text() == original


def test_a_fifo_in_place_of_a_record_does_not_block(tmp_path):
    record = Path(options(tmp_path)["trt_engine_cache_path"]) / "engine.json"
    original = record.read_text()
    record.unlink()
    os.mkfifo(record)
    options(tmp_path)
    assert record.read_text() == original
