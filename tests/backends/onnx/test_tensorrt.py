"""Test the buckets, the profiles and the cache of TensorRT's engines. This needs no GPU."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.backends import load_backend
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.decoder import GROWTH
from ane.backends.onnx.engines import (
    BATCHES,
    LENGTHS,
    TensorRTOptions,
    bucket_range,
    engine_options,
    input_axes,
    shape_profile,
)
from ane.backends.onnx.providers import DEVICES
from ane.backends.onnx.sessions import SessionKey, session_loader
from ane.cli import main
from ane.system.errors import UserError
from tests.backends import decoder_steps
from tests.refusals import assert_refused

columns = partial(decoder_steps.columns, width=32)
A100 = "NVIDIA A100, 550.54, onnxruntime-gpu 1.27.0, tensorrt 10.14.0"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    return tmp_path


@given(st.integers(1, 20000), st.sampled_from([BATCHES, LENGTHS]))
def test_a_bucket_is_the_smallest_that_contains_the_size(size, edges):
    low, high = bucket_range(size, edges)
    assert low <= size <= high
    assert bucket_range(low, edges) == bucket_range(high, edges) == (low, high)
    if low > 1:
        assert bucket_range(low - 1, edges)[1] == low - 1


@pytest.mark.parametrize(
    ("edges", "size", "expected"),
    [
        *(
            (LENGTHS, size, expected)
            for size, expected in (
                (64, (1, 64)),
                (65, (65, 128)),
                (4096, (2049, 4096)),
                (4097, (4097, 8192)),
                (8193, (8193, 16384)),
                (16384, (8193, 16384)),
                (16385, (16385, 24576)),
            )
        ),
        *(
            (BATCHES, size, expected)
            for size, expected in ((1, (1, 1)), (2, (2, 2)), (3, (3, 4)), (128, (65, 128)), (129, (129, 256)))
        ),
    ],
)
def test_buckets_end_at_their_edges(edges, size, expected):
    assert bucket_range(size, edges) == expected
    if edges is BATCHES:
        assert shape_profile({"x": ["lanes"]}, {"x": (size,)})["trt_profile_max_shapes"] == f"x:{expected[1]}"


def test_linked_lengths_stay_linked_at_both_ends_and_the_profile_of_a_step_takes_all_lengths():
    axes = {"mel": ["batch", 100, "frames"], "noise": ["batch", 64, "frames_and_10"]}
    assert shape_profile(axes, {"mel": (1, 100, 300), "noise": (1, 64, 310)}) == {
        "trt_profile_min_shapes": "mel:1x100x257,noise:1x64x267",
        "trt_profile_opt_shapes": "mel:1x100x512,noise:1x64x522",
        "trt_profile_max_shapes": "mel:1x100x512,noise:1x64x522",
    }
    axes = {"columns": ["lanes", "columns", 64], "mask": ["lanes", "columns", "seen"], "keys": ["lanes", "length", 8]}
    shapes = {"columns": (3, 1, 64), "mask": (3, 1, 64 + 128 + 1), "keys": (3, 128, 8)}
    assert shape_profile(axes, shapes, lane_lengths=(1, 512)) == {
        "trt_profile_min_shapes": "columns:3x1x64,mask:3x1x66,keys:3x1x8",
        "trt_profile_opt_shapes": "columns:3x1x64,mask:3x1x577,keys:3x512x8",
        "trt_profile_max_shapes": "columns:3x1x64,mask:3x1x577,keys:3x512x8",
    }


def options(**changed) -> dict[str, str]:
    given = {"machine": A100, "graph": "denoise.onnx", "content": "abc", "precision": "fp16", "frames": 300} | changed
    shapes = {"x": (1, 100, given.pop("frames"))}
    return engine_options(**given, axes={"x": [1, 100, "frames"]}, shapes=shapes)


@pytest.mark.parametrize(
    "changed",
    [
        {"graph": "condition.onnx"},
        {"content": "abd"},
        {"precision": "fp32"},
        {"frames": 600},
        {"machine": A100.replace("A100", "L4")},
        {"machine": A100.replace("10.14", "10.15")},
    ],
)
def test_an_engine_is_reused_only_for_what_it_was_built_for(changed):
    kept = options()
    assert options() == kept
    assert options(frames=400) == kept  # 400 frames belong to the same bucket
    assert options(**changed)["trt_engine_cache_path"] != kept["trt_engine_cache_path"]


def test_each_bucket_of_a_stage_has_an_engine(onnx_packages):
    bundle = onnx_packages.bundle("conditioning_encoder")
    requested: list[SessionKey] = []

    def load(one: SessionKey):
        requested.append(one)
        raise UserError("no GPU here")

    backend = OnnxBackend(bundle, DEVICES["tensorrt"], load_backend("torch:cpu", bundle), "fp32", load=load)
    for frames in (100, 90, 300):
        with pytest.raises(UserError, match="no GPU here"):
            backend.run("ar_conditioning", mel=np.zeros((1, 80, frames), np.float32))
    first, again, other = (dict(one.options) for one in requested)
    assert first == again
    assert first["trt_profile_max_shapes"] == "mel:1x80x128"
    assert other["trt_profile_min_shapes"] == "mel:1x80x257"
    assert first["trt_engine_cache_path"] != other["trt_engine_cache_path"]


def test_ranges_batch_fp16_and_workspace_are_those_that_the_options_state():
    """A call takes the engine with the least padding: the smallest range that has room for it."""

    def engine(symbols: int, **fields) -> dict[str, str]:
        return engine_options(
            A100,
            "mel.onnx",
            "abc",
            "fp32",
            {"x": ["batch", "symbols", "frames"]},
            {"x": (3, symbols, 300)},
            options=TensorRTOptions(**fields),
        )

    ranges = {"engine_symbols": (128, 32, 64), "engine_frames": (256, 512), "engine_batch": 8}
    found = {symbols: engine(symbols, **ranges) for symbols in (1, 32, 33, 64, 65)}
    assert [found[symbols]["trt_profile_max_shapes"] for symbols in found] == [
        f"x:8x{end}x512" for end in (32, 32, 64, 64, 128)
    ]
    assert found[65]["trt_profile_min_shapes"] == "x:1x65x257"
    assert len({one["trt_engine_cache_path"] for one in found.values()}) == 3
    assert found[1]["trt_fp16_enable"] == "0"
    assert "trt_max_workspace_size" not in found[1]
    other = engine(1, **ranges, engine_fp16=True, engine_workspace=0.5)
    assert (other["trt_fp16_enable"], other["trt_max_workspace_size"]) == ("1", str(2**29))
    assert other["trt_engine_cache_path"] != found[1]["trt_engine_cache_path"]


@pytest.mark.parametrize("rebuild", [False, True])
def test_engines_are_built_again_on_demand_and_once(onnx_packages, rebuild):
    """A stand-in for ONNX Runtime, which builds an engine into its folder unless it finds one there."""
    bundle = onnx_packages.bundle("conditioning_encoder")
    built: list[Path] = []

    def load(key: SessionKey):
        engine = Path(dict(key.options)["trt_engine_cache_path"]) / "graph.engine"
        if not engine.exists():
            engine.write_text("an engine")
            built.append(engine)
        return session_loader(DEVICES["cpu"])(SessionKey(key.path))

    for options, builds in ((TensorRTOptions(), 1), (TensorRTOptions(rebuild_engines=rebuild), 1 + rebuild)):
        backend = OnnxBackend(
            bundle,
            DEVICES["tensorrt"],
            load_backend("torch:cpu", bundle),
            "fp32",
            load=load,
            machine=A100,
            options=options,
        )
        for frames in (100, 90):
            backend.run("ar_conditioning", mel=np.zeros((1, 80, frames), np.float32))
            backend.sessions.unload()
        assert len(built) == builds
    assert len(set(built)) == 1


def test_the_options_of_engines_are_refused_elsewhere_by_name(onnx_packages):
    bundle = onnx_packages.bundle("conditioning_encoder")
    for field, value in (
        ("engine_batch", 2),
        ("engine_symbols", (64,)),
        ("engine_frames", (512,)),
        ("engine_fp16", True),
        ("engine_workspace", 2.0),
        ("rebuild_engines", True),
    ):
        for backend in ("onnx:cpu", "torch:cpu"):
            assert_refused(
                rf"{field} has no effect .*{backend}: it is for onnx:tensorrt",
                load_backend,
                backend,
                bundle,
                **{field: value},
            )


def test_a_decoder_has_one_engine_for_steps_of_all_lengths(decoder_bundle):
    """ONNX Runtime on the CPU, with the options that TensorRT would get."""
    requested: set[SessionKey] = set()

    def load(key: SessionKey):
        requested.add(key)
        return session_loader(DEVICES["cpu"])(SessionKey(key.path))

    backend = OnnxBackend(
        decoder_bundle,
        replace(DEVICES["tensorrt"], memory="cpu"),
        load_backend("torch:cpu", decoder_bundle),
        "fp32",
        load=load,
    )
    decoder, lengths = backend.decoder(2, 3 * GROWTH), set()
    decoder.prefill(columns(0, 6))
    for length in range(0, 3 * GROWTH, GROWTH - 1):
        decoder.step(columns(length, 2, 1), np.full(2, length))
        lengths.add(decoder.lane_caches[0].shape[3])
    assert lengths == {GROWTH, 2 * GROWTH, 3 * GROWTH}
    [step] = [dict(key.options) for key in requested if key.path.stem == "step"]
    assert ",mask:2x1x66,keys_0:2x4x1x8," in step["trt_profile_min_shapes"]
    assert ",mask:2x1x321,keys_0:2x4x256x8," in step["trt_profile_max_shapes"]


def test_the_free_axes_of_a_graph_have_names(onnx_packages):
    assert input_axes(onnx_packages.folder / onnx_packages.package("univnet").path / "univnet.onnx") == {
        "mel": ["batch", 100, "frames"],
        "noise": ["batch", 64, "frames_and_10"],
    }


def test_the_cache_command_lists_and_clears_engines(home, capsys):
    folder = Path(options(frames=100)["trt_engine_cache_path"])
    (folder / "built.engine").write_bytes(bytes(5000))
    (home / "cache" / "engines" / "TensorrtExecutionProvider_cache_sm80.timing").write_bytes(bytes(10))
    assert main(["cache", "list"]) == 0
    [row] = [line.split("\t") for line in capsys.readouterr().out.splitlines() if "TensorRT engines" in line]
    assert row[1] == "2", "the engine, and the timings of all"
    assert main(["cache", "clear"]) == 0
    assert not folder.exists()


def test_a_cache_that_cannot_be_written_is_one_line(home):
    (home / "cache").write_text("a file")
    assert_refused(r"cannot write .*set ANE_HOME", options)
