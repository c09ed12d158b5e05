"""Test the devices of ONNX Runtime: their providers, and which GPU libraries fit, on a stand-in for the library."""

import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail

import ane
from ane.backends.onnx import providers
from ane.backends.onnx.providers import (
    CPU,
    DEVICES,
    IDENTITY,
    GpuVersions,
    choose_onnx_device,
    installed_versions,
    load_libraries,
    make_session,
    onnx_errors,
    version_problem,
)
from ane.system.errors import UserError
from tests.refusals import assert_refused


@pytest.fixture
def with_cuda(monkeypatch):
    """Makes onnxruntime look as if built with CUDA and TensorRT."""
    monkeypatch.setattr(
        providers.onnxruntime_module(),
        "get_available_providers",
        lambda: ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"],
    )


def failing(*names: str):
    return lambda device: "libcudnn.so.9: cannot open shared object file" if device.name in names else ""


def test_plain_onnx_is_cuda_where_it_loads_else_the_cpu_with_a_notice_and_tensorrt_only_when_named(with_cuda, notices):
    assert choose_onnx_device("", failing()).name == "cuda"
    assert choose_onnx_device("tensorrt", failing()).name == "tensorrt"
    assert notices == []
    assert choose_onnx_device("", failing("cuda")).name == "cpu"
    (line,) = notices
    assert "CUDA provider does not load here: libcudnn.so.9: cannot open" in line
    assert "Running on the CPU" in line


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_gpu_that_onnxruntime_is_not_built_for_is_reported(monkeypatch, tmp_path, has_gpu, notices):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755 if has_gpu else 0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(providers.onnxruntime_module(), "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert choose_onnx_device("").name == "cpu"
    assert ["this onnxruntime is built for the CPU only" in line for line in notices] == [True] * has_gpu


def test_a_named_provider_whose_library_is_missing_is_an_error(with_cuda):
    assert_refused(
        r"CUDA does not load \(libcudnn.* an NVIDIA GPU .* backend=onnx:cpu",
        lambda: choose_onnx_device("cuda", check=failing("cuda")),
    )


def test_the_reason_is_the_first_line_of_the_providers_error(with_cuda, monkeypatch):
    def session(*args: Any, **options: Any) -> Any:
        raise RuntimeError("\n libcudart.so.12: cannot open shared object file\nmore")

    monkeypatch.setattr(providers.onnxruntime_module(), "InferenceSession", session)
    assert providers.load_error(DEVICES["cuda"]) == "libcudart.so.12: cannot open shared object file"


def test_a_provider_that_onnx_runtime_silently_leaves_out_is_noticed(with_cuda):
    """This machine's onnxruntime has no CUDA: it warns, and makes a session on the CPU."""
    assert "leaves it out" in providers.load_error(DEVICES["cuda"])
    assert providers.load_error(DEVICES["cpu"]) == ""


def test_without_a_provider_or_onnxruntime_the_error_names_it_or_what_to_install(monkeypatch):
    assert_refused("provider Tensorrt is not part of this onnxruntime", choose_onnx_device, "tensorrt")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert_refused(r"needs onnxruntime: pip install '.\[onnx\]'", choose_onnx_device, "")


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer of size 9", "no memory left"),
        ("CUDA failure 2: out of memory", "no memory left"),
        ("std::bad_alloc", "no memory left"),
        ("CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version", "driver is too old"),
    ],
)
def test_a_lack_of_memory_and_an_old_driver_are_reported_and_other_errors_are_raised_unchanged(message, line):
    with pytest.raises(UserError, match=line), onnx_errors("run it"):
        raise RuntimeError(message)
    with pytest.raises(RuntimeError, match="a bug"), onnx_errors("run it"):
        raise RuntimeError("a bug")


def gather_graph() -> bytes:
    """y = x[i]; an index out of range fails when the graph is run."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name, size in (("x", 2), ("y", 1)))
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [1])
    graph = helper.make_graph([helper.make_node("Gather", ["x", "i"], ["y"])], "gather", [x, i], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def test_a_bound_call_that_really_fails_is_reported_in_one_line():
    """ONNX Runtime raises a plain RuntimeError here, not one of its own classes."""
    session = make_session(gather_graph(), [CPU])
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones(2, np.float32))
    binding.bind_cpu_input("i", np.array([9]))
    binding.bind_output("y", "cpu")
    with pytest.raises(RuntimeError, match=r"^Error in execution: ") as plain:
        session.run_with_iobinding(binding)
    assert type(plain.value) is RuntimeError
    with pytest.raises(UserError, match=r"cannot run it: .* Gather .*backend=torch"), onnx_errors("run it"):
        session.run_with_iobinding(binding)


def test_a_session_whose_provider_fails_does_not_move_to_the_cpu(capfd):
    """By default, ONNX Runtime prints the failure on standard output and computes on the CPU from then on."""

    class FailingSession:
        def __init__(self, real: Any):
            self.real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def run(self, *args: Any) -> None:
            raise EPFail("CUDA failure 700: an illegal memory access was encountered")

    session = make_session(gather_graph(), [CPU])
    session._sess = FailingSession(session._sess)
    feeds = {"x": np.ones(2, np.float32), "i": np.zeros(1, np.int64)}
    with pytest.raises(UserError, match="CUDA failure 700"), onnx_errors("run it"):
        session.run(None, feeds)
    with pytest.raises(EPFail):
        session.run(None, feeds)
    assert capfd.readouterr() == ("", "")


def test_a_session_that_cannot_be_made_is_not_made_on_the_cpu_instead(with_cuda, monkeypatch, capfd):
    def fails(*args: Any) -> None:
        raise RuntimeError("libcublasLt.so.13: cannot open shared object file")

    monkeypatch.setattr(providers.onnxruntime_module().InferenceSession, "_create_inference_session", fails)
    assert providers.load_error(DEVICES["cuda"]) == "libcublasLt.so.13: cannot open shared object file"
    assert capfd.readouterr() == ("", "")


def test_onnx_runtime_logs_nothing_and_a_session_without_its_provider_warns_nobody(monkeypatch, recwarn, capfd):
    """Its loggers write to standard error: that of each session, and that of the process, which the providers use."""
    severities: list[int] = []
    monkeypatch.setattr(providers.onnxruntime_module(), "set_default_logger_severity", severities.append)
    options = make_session(gather_graph(), [CPU]).get_session_options()
    assert options.log_severity_level == 4
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0", "beside others it takes cores"
    assert set(severities) == {4}
    assert make_session(gather_graph(), ["CUDAExecutionProvider", CPU]).get_providers() == [CPU]
    assert len(recwarn) == 0
    assert capfd.readouterr() == ("", "")


FITTING = GpuVersions("1.31.1", "13.0", "2.13.0+cu130", "13.0", "10.16.1.11")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"tensorrt": ""},
        {"tensorrt": "10.14.1.48"},
        {"onnxruntime": "1.26.0", "cuda": "12.8", "torch": "2.10.0+cu128", "torch_cuda": "12.8"},
    ],
)
def test_versions_that_fit_have_no_problem_and_cuda_ignores_that_of_tensorrt(changed):
    assert version_problem("tensorrt", replace(FITTING, **changed)) == ""
    assert version_problem("cuda", replace(FITTING, **changed | {"tensorrt": "11.0.0.114"})) == ""


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"onnxruntime": "1.24.4"}, r"onnxruntime 1.24.4 computes attention on the CPU: pip install --upgrade"),
        (
            {"torch": "2.10.0+cu128", "torch_cuda": "12.8"},
            r"1.31.1 is built for CUDA 13 and torch 2.10.0\+cu128 for CUDA "
            r"12.*onnxruntime-gpu>=1.27 and torch>=2.11",
        ),
        ({"torch": "2.13.0+cpu", "torch_cuda": ""}, r"torch 2.13.0\+cpu for the CPU: install both for the same CUDA"),
        ({"tensorrt": "11.0.0.114"}, r"TensorRT 11.0.0.114 does not fit onnxruntime 1.31.1: pip install"),
        ({"tensorrt": "10.13.3.9"}, r"TensorRT 10.13.3.9 does not fit"),
    ],
)
def test_versions_that_do_not_fit_are_one_line_with_what_to_install(changed, line):
    problem = version_problem("tensorrt", replace(FITTING, **changed))
    assert re.search(line, problem)
    assert "\n" not in problem


def test_the_versions_of_this_machine_are_named():
    versions = installed_versions(onnxruntime)
    assert str(versions).startswith(f"onnxruntime {onnxruntime.__version__} for ")
    assert f"torch {versions.torch} for " in str(versions)


def test_the_extras_install_versions_that_fit():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extras = {name: " ".join(lines) for name, lines in project["optional-dependencies"].items()}
    assert "onnxruntime-gpu[cuda,cudnn]>=1.27" in extras["cuda"]  # version 1.27 is the first for CUDA 13
    assert "torch>=2.11" in extras["cuda"]
    assert "tensorrt-cu13>=10.14,<11" in extras["tensorrt"]


@pytest.fixture
def gpu_wheel(monkeypatch) -> list[str]:
    """Makes onnxruntime look as if it were onnxruntime-gpu, and torch as if built for CUDA; returns what happens, in
    order."""
    happened: list[str] = []

    def record(name: str, returns: Any) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            happened.append(name)
            sys.stdout.write(f"{name}: a line for the user\n")
            return returns

        return call

    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(onnxruntime, "preload_dlls", record("preload", None))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: happened.append("list") or names)
    session = SimpleNamespace(get_providers=lambda: names)
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *args, **options: happened.append("session") or session)
    return happened


def test_cuda_s_libraries_are_loaded_before_all_else_and_the_cpu_loads_none_of_them(gpu_wheel, capfd):
    assert choose_onnx_device("").name == "cuda"
    assert gpu_wheel[:2] == ["preload", "list"]
    assert gpu_wheel[-1] == "session"
    assert capfd.readouterr() == ("", "")
    gpu_wheel.clear()
    assert choose_onnx_device("cpu").name == "cpu"
    assert "preload" not in gpu_wheel


def test_versions_that_do_not_fit_stop_cuda_before_a_session(gpu_wheel, monkeypatch, notices):
    monkeypatch.setattr(providers, "installed_versions", lambda ort: replace(FITTING, onnxruntime="1.24.4"))
    assert_refused(
        r"CUDA does not load \(onnxruntime 1\.24\.4 computes attention on the CPU", choose_onnx_device, "cuda"
    )
    assert "session" not in gpu_wheel
    assert choose_onnx_device("").name == "cpu"
    assert "computes attention on the CPU" in notices[0]


def test_a_library_that_does_not_load_is_the_reason_that_is_given(gpu_wheel, monkeypatch, capfd):
    def preload() -> None:
        sys.stdout.write(
            "Failed to load libcublasLt.so.13: cannot open shared object file\n"
            "Failed to load libcudart.so.13: no\nPlease follow https://onnxruntime.ai/docs/install\n"
        )

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    session = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *args, **options: session)
    reason = "libcublasLt.so.13: cannot open shared object file"
    assert load_libraries(onnxruntime) == reason
    assert providers.load_error(DEVICES["cuda"]) == reason
    assert capfd.readouterr() == ("", "")


def test_the_graph_that_asks_whether_a_device_loads_is_a_valid_copy_of_its_input():
    assert [node.op_type for node in onnx.load_from_string(IDENTITY).graph.node] == ["Identity"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    [copied] = make_session(IDENTITY, ["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_array_equal(copied, x)


def test_the_default_voice_needs_onnx_runtime_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)  # makes "import onnx" fail
    assert choose_onnx_device("cpu").name == "cpu"
    assert ane.load().speak("Hello.").seconds > 0.3
