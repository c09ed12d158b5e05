"""Providers that do not load, sessions that make room, engines that are kept: what is decided, without a GPU."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.backends import load_backend
from ane.backends.onnx import providers
from ane.backends.onnx import sessions as sessions_module
from ane.backends.onnx import tensorrt as engines_module
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES, OutOfMemoryError, choose, engine_errors
from ane.backends.onnx.sessions import Sessions, Wanted, loader
from ane.backends.onnx.tensorrt import BATCHES, LENGTHS, Engines, Machine, axes_of, bucket, profile
from ane.cli import main
from ane.system.errors import UserError

A100 = Machine("NVIDIA A100, 550.54", (("onnxruntime-gpu", "1.23.0"), ("tensorrt", "10.9.0")))


# Providers

@pytest.fixture
def with_cuda(monkeypatch):
    """An onnxruntime that was built with CUDA."""
    monkeypatch.setattr(providers.runtime(), "get_available_providers",
                        lambda: ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"])


def failing(*names: str):
    return lambda device: "libcudnn.so.9: cannot open shared object file" if device.name in names else ""


def test_the_best_that_loads_is_taken(with_cuda):
    assert choose("", fault=failing()).name == "cuda"


def test_a_provider_that_is_there_and_does_not_load_is_told_with_its_cause_and_not_taken(with_cuda):
    said = []
    assert choose("", said.append, failing("cuda")).name == "cpu"
    line, = said
    assert "CUDA provider does not load here: libcudnn.so.9: cannot open" in line
    assert "Running on the CPU" in line


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_that_onnxruntime_is_not_made_for_is_told(monkeypatch, tmp_path, there):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755 if there else 0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(providers.runtime(), "get_available_providers", lambda: ["CPUExecutionProvider"])
    said = []
    assert choose("", said.append).name == "cpu"
    assert [line.startswith("There is an NVIDIA GPU and this onnxruntime is for the CPU") for line in said] == (
        [True] * there)


def test_tensorrt_and_core_ml_are_taken_only_when_asked_for(with_cuda):
    assert choose("", fault=failing("cuda")).name == "cpu"
    assert choose("tensorrt", fault=failing()).name == "tensorrt"


def test_a_provider_whose_library_is_missing_is_told(with_cuda):
    with pytest.raises(UserError, match=r"CUDA does not load: libcudnn.* needs an NVIDIA GPU .* --backend onnx:cpu"):
        choose("cuda", fault=failing("cuda"))


def test_what_a_provider_fails_with_is_its_fault(with_cuda, monkeypatch):
    def session(*args: Any, **options: Any) -> Any:
        raise RuntimeError("\n libcudart.so.12: cannot open shared object file\nmore")

    monkeypatch.setattr(providers.runtime(), "InferenceSession", session)
    assert providers.fault_of(DEVICES["cuda"]) == "libcudart.so.12: cannot open shared object file"


def test_onnx_runtime_computing_elsewhere_without_a_word_is_noticed(with_cuda):
    """This machine's onnxruntime knows no CUDA: it warns, and makes a session on the CPU."""
    assert "leaves it out" in providers.fault_of(DEVICES["cuda"])
    assert providers.fault_of(DEVICES["cpu"]) == ""


def test_a_provider_that_this_onnxruntime_lacks_is_told(bundle):
    with pytest.raises(UserError, match="provider Tensorrt is not part of this onnxruntime"):
        load_backend("onnx:tensorrt", bundle)


def test_without_onnxruntime_it_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"needs onnxruntime: pip install 'tortoise-ane\[onnx\]'"):
        choose("")


@pytest.mark.parametrize("said", ["[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer of size 9",
                                  "CUDA failure 2: out of memory", "std::bad_alloc"])
def test_memory_that_runs_out_is_told(said):
    with pytest.raises(OutOfMemoryError, match="no memory left"), engine_errors("run it"):
        raise RuntimeError(said)


def test_an_old_driver_is_told():
    with pytest.raises(UserError, match="driver is too old"), engine_errors("load it"):
        raise RuntimeError("CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version")


def test_other_errors_stay_bugs():
    with pytest.raises(RuntimeError, match="a bug"), engine_errors("run it"):
        raise RuntimeError("a bug")


# Flags and bundles at fault

@pytest.mark.parametrize(("backend", "options", "fault"), [
    ("onnx:cpu", {"cache": "io"}, "--cache has no effect on --backend onnx"),
    ("onnx:cpu", {"units": "ALL"}, "--compute-units has no effect"),
    ("onnx:cpu", {"afresh": True}, "--force-build has no effect on --backend onnx:cpu"),
    ("torch", {"memory": 4.0}, "--memory has no effect on --backend torch"),
    ("onnx:npu", {}, "no backend is named 'onnx:npu'"),
    ("onnx:cpu", {"precision": "8bit"}, "ONNX packages are in fp32, fp16, int8, int4"),
    ("onnx:cpu", {"precision": "fp16"}, "in fp32, not in fp16"),
])
def test_options_without_effect_and_precisions_that_are_not_there_are_refused(bundle, backend, options, fault):
    with pytest.raises(UserError, match=fault):
        load_backend(backend, bundle, **options)


def test_a_bundle_without_onnx_packages_is_told(capsys):
    assert main(["say", "Hello.", "--backend", "onnx:cpu", "-o", "/dev/null/no.wav"]) != 0
    assert main(["verify", "--against", "onnx"]) == 1
    assert "holds no ONNX packages: make them with `ane convert" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("said", ["nan", "inf", "0", "-1", "much"])
def test_memory_that_is_no_size_is_refused_in_one_line(capsys, said):
    with pytest.raises(SystemExit):
        main(["say", "Hello.", "--memory", said])
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "--memory" in line
    assert said in line


# Sessions

class Stand:
    """A stand-in for a session; ``room`` bytes are all the memory there is."""

    def __init__(self, room: int = 10**9):
        self.room, self.sessions, self.made = room, None, []

    def __call__(self, wanted: Wanted) -> str:
        if self.sessions.used + wanted.size > self.room:
            raise OutOfMemoryError("no memory left")
        self.made.append(wanted.path.name)
        return wanted.path.name


def sessions(budget: int | None = None, room: int = 10**9) -> tuple[Sessions, Stand]:
    load = Stand(room)
    load.sessions = Sessions(load, budget)
    return load.sessions, load


def wanted(name: str, size: int = 10) -> Wanted:
    return Wanted(Path("folder") / name, size)


def test_the_least_recently_used_make_room_within_the_budget():
    kept, load = sessions(budget=25)
    for name in ("a", "b", "a", "c"):
        kept.get(wanted(name))
    assert [wanted(name) in kept for name in "abc"] == [True, False, True]
    assert load.made == ["a", "b", "c"]


def test_one_that_exceeds_the_budget_alone_is_still_loaded():
    kept, _ = sessions(budget=25)
    kept.get(wanted("a"))
    assert kept.get(wanted("large", 100)) == "large"
    assert len(kept) == 1


def test_sessions_go_rather_than_the_program_when_memory_runs_out():
    kept, _ = sessions(room=25)
    for name in "abcd":
        kept.get(wanted(name))
    assert kept.used <= 25
    with pytest.raises(OutOfMemoryError):
        kept.get(wanted("large", 30))


def test_a_run_that_finds_no_memory_is_tried_again_alone():
    kept, _ = sessions()
    kept.get(wanted("a"))

    def run(session: str) -> str:
        if len(kept) > 1:
            raise OutOfMemoryError("no memory left")
        return f"{session} ran"

    assert kept.relieved(wanted("b"), run) == "b ran"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.just(10)), max_size=30), st.integers(10, 60))
def test_a_budget_is_never_exceeded(uses, budget):
    kept, _ = sessions(budget=budget)
    for name, size in uses:
        kept.get(wanted(name, size))
        assert kept.used <= budget
        assert wanted(name, size) in kept


def test_a_budget_changes_nothing_of_what_is_said(bundle):
    noise = np.ones((1, bundle.widths[0]), np.float32)
    small = load_backend("onnx:cpu", bundle, "fp32", threads=1, memory=1e-6, keep=True)
    for stage in ("ar_random", "diffusion_random", "ar_random"):
        small.run(stage, noise=noise)
    assert len(small.sessions) == 1


@pytest.mark.parametrize(("name", "own"), [("cuda", {"enable_cuda_graph": "1"}), ("tensorrt", {})])
def test_float32_on_a_gpu_is_not_cut_to_tf32(monkeypatch, name, own):
    asked: list[Any] = []

    def session(path: str, options: Any, providers: list[Any]) -> Any:
        asked.extend(providers)
        return SimpleNamespace(get_providers=lambda: [DEVICES[name].provider])

    monkeypatch.setattr(sessions_module, "runtime", lambda: SimpleNamespace(InferenceSession=session))
    loader(DEVICES[name])(Wanted(Path("step.onnx"), 1, tuple(own.items())))
    assert ("CUDAExecutionProvider", {"use_tf32": "0", **own}) in asked


# Engines

@given(st.integers(1, 20000), st.sampled_from([BATCHES, LENGTHS]))
def test_a_bucket_holds_its_size_and_no_smaller_one_does(size, edges):
    low, high = bucket(size, edges)
    assert low <= size <= high
    assert bucket(low, edges) == bucket(high, edges) == (low, high)
    if low > 1:
        assert bucket(low - 1, edges)[1] == low - 1


def test_linked_lengths_stay_linked_at_either_end():
    axes = {"mel": ["batch", 100, "frames"], "noise": ["batch", 64, "frames_and_10"]}
    made = profile(axes, {"mel": (1, 100, 300), "noise": (1, 64, 310)})
    assert made.options() == {"trt_profile_min_shapes": "mel:1x100x257,noise:1x64x267",
                              "trt_profile_opt_shapes": "mel:1x100x512,noise:1x64x522",
                              "trt_profile_max_shapes": "mel:1x100x512,noise:1x64x522"}


def test_buffers_that_do_not_move_have_an_engine_of_their_shapes_alone():
    axes = {"columns": ["lanes", "columns", 64], "mask": ["lanes", "columns", "seen"]}
    made = profile(axes, {"columns": (3, 1, 64), "mask": (3, 1, 129)}, fixed=True)
    assert made.least == made.most == (("columns", (3, 1, 64)), ("mask", (3, 1, 129)))


def options(tmp_path, **changed) -> dict[str, str]:
    given = {"graph": Path("denoise.onnx"), "content": "abc", "precision": "fp16", "machine": A100, "frames": 300}
    given |= changed
    shapes = profile({"x": [1, 100, "frames"]}, {"x": (1, 100, given["frames"])})
    return Engines(tmp_path, given["machine"], given.get("afresh", False)).options(
        given["graph"], given["content"], given["precision"], shapes)


@pytest.mark.parametrize("changed", [
    {"graph": Path("condition.onnx")}, {"content": "abd"}, {"precision": "fp32"}, {"frames": 600},
    {"machine": Machine("NVIDIA L4, 550.54", A100.libraries)},
    {"machine": Machine(A100.gpu, (*A100.libraries[:1], ("tensorrt", "10.10.0")))}])
def test_an_engine_is_met_by_what_it_was_built_for_alone(tmp_path, changed):
    kept = options(tmp_path)
    assert options(tmp_path) == kept
    assert options(tmp_path, frames=400) == kept            # of the same bucket
    assert options(tmp_path, **changed)["trt_engine_cache_path"] != kept["trt_engine_cache_path"]


def test_force_build_throws_an_engine_away_once(tmp_path):
    place = Path(options(tmp_path)["trt_engine_cache_path"])
    (place / "built.engine").write_bytes(b"engine")
    options(tmp_path)
    assert (place / "built.engine").exists()
    engines, shapes = Engines(tmp_path, A100, afresh=True), profile({"x": [1, 100, "frames"]}, {"x": (1, 100, 300)})
    engines.options(Path("denoise.onnx"), "abc", "fp16", shapes)
    assert not (place / "built.engine").exists()
    (place / "built.engine").write_bytes(b"new")
    engines.options(Path("denoise.onnx"), "abc", "fp16", shapes)
    assert (place / "built.engine").exists()


def test_tensorrt_is_given_an_engine_for_each_bucket_of_a_stage(bundle, tmp_path, monkeypatch):
    asked: list[Wanted] = []

    def load(one: Wanted):
        asked.append(one)
        raise UserError("no GPU here")

    backend = OnnxBackend(bundle, DEVICES["tensorrt"], load_backend("torch:cpu", bundle), "fp32",
                         engines=Engines(tmp_path, A100), load=load)
    for frames in (100, 90, 300):
        with pytest.raises(UserError, match="no GPU here"):
            backend.run("ar_conditioning", mel=np.zeros((1, 80, frames), np.float32))
    first, again, other = (dict(one.options) for one in asked)
    assert first == again
    assert first["trt_profile_max_shapes"] == "mel:1x80x128"
    assert other["trt_profile_min_shapes"] == "mel:1x80x257"
    assert first["trt_engine_cache_path"] != other["trt_engine_cache_path"]


def test_the_axes_of_a_graph_have_names(bundle):
    package = next(package for package in bundle.onnx_packages if package.network == "univnet")
    assert axes_of(bundle.path / package.path / "univnet.onnx") == {
        "mel": ["batch", 100, "frames"], "noise": ["batch", 64, "frames_and_10"]}


def test_the_cache_knows_the_engines(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    place = Path(options(tmp_path / "cache" / "engines")["trt_engine_cache_path"])
    (place / "built.engine").write_bytes(bytes(5000))
    (tmp_path / "cache" / "engines" / "TensorrtExecutionProvider_cache_sm80.timing").write_bytes(bytes(10))
    assert main(["cache", "list", "--json"]) == 0
    items = {Path(item["path"]).name: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert items[place.name]["bytes"] > 5000
    assert "for other versions" in items[place.name]["stale"]
    assert main(["cache", "clear"]) == 0
    assert not place.exists()


def test_an_engine_is_unused_since_it_was_last_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    monkeypatch.setattr(engines_module, "this_machine", lambda: A100)
    folder = tmp_path / "cache" / "engines"
    places = [Path(options(folder, frames=frames)["trt_engine_cache_path"]) for frames in (100, 300)]
    for place in places:
        (place / "built.engine").write_bytes(b"engine")
        for path in (place / "engine.json", place / "built.engine", place):
            os.utime(path, (1e9, 1e9))
    options(folder, frames=300)
    assert main(["cache", "list", "--json"]) == 0
    stale = {Path(item["path"]).name: item["stale"] for item in json.loads(capsys.readouterr().out)["items"]}
    assert stale == {places[0].name: "unused for 90 days", places[1].name: ""}


def test_the_gpu_is_asked_for_once_whatever_number_of_engines_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    for frames in (100, 300, 600):
        options(tmp_path / "cache" / "engines", frames=frames)
    asked: list[Machine] = []
    monkeypatch.setattr(engines_module, "this_machine", lambda: asked.append(A100) or A100)
    assert main(["cache", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["items"]) == 3
    assert len(asked) == 1
