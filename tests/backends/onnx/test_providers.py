"""Which provider is chosen, and how its errors are reported. No GPU is needed."""

import sys
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail

from ane.backends import load_backend
from ane.backends.onnx import providers
from ane.backends.onnx.providers import (
    CPU,
    DEVICES,
    choose_onnx_device,
    make_session,
    onnx_errors,
)
from ane.system.errors import UserError


@pytest.fixture
def with_cuda(monkeypatch):
    """Makes onnxruntime look as if built with CUDA and TensorRT."""
    monkeypatch.setattr(providers.onnxruntime_module(), "get_available_providers",
                        lambda: ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"])


def failing(*names: str):
    return lambda device: "libcudnn.so.9: cannot open shared object file" if device.name in names else ""


def test_plain_onnx_is_cuda_where_it_loads(with_cuda):
    assert choose_onnx_device("", check=failing()).name == "cuda"


def test_a_cuda_that_does_not_load_falls_back_to_the_cpu_with_a_notice(with_cuda, notices):
    assert choose_onnx_device("", failing("cuda")).name == "cpu"
    line, = notices
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


def test_tensorrt_is_used_only_when_named(with_cuda):
    assert choose_onnx_device("", check=failing("cuda")).name == "cpu"
    assert choose_onnx_device("tensorrt", check=failing()).name == "tensorrt"


def test_a_named_provider_whose_library_is_missing_is_an_error(with_cuda):
    with pytest.raises(UserError, match=r"CUDA does not load: libcudnn.* needs an NVIDIA GPU .* backend=onnx:cpu"):
        choose_onnx_device("cuda", check=failing("cuda"))


def test_the_reason_is_the_first_line_of_the_providers_error(with_cuda, monkeypatch):
    def session(*args: Any, **options: Any) -> Any:
        raise RuntimeError("\n libcudart.so.12: cannot open shared object file\nmore")

    monkeypatch.setattr(providers.onnxruntime_module(), "InferenceSession", session)
    assert providers.load_error(DEVICES["cuda"]) == "libcudart.so.12: cannot open shared object file"


def test_a_provider_that_onnx_runtime_silently_leaves_out_is_noticed(with_cuda):
    """This machine's onnxruntime has no CUDA: it warns, and makes a session on the CPU."""
    assert "leaves it out" in providers.load_error(DEVICES["cuda"])
    assert providers.load_error(DEVICES["cpu"]) == ""


def test_a_provider_that_this_onnxruntime_lacks_is_an_error(bundle):
    with pytest.raises(UserError, match="provider Tensorrt is not part of this onnxruntime"):
        load_backend("onnx:tensorrt", bundle)


def test_without_onnxruntime_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"needs onnxruntime: pip install 'tortoise-ane\[onnx\]'"):
        choose_onnx_device("")


@pytest.mark.parametrize("message", [
    "[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer of size 9",
    "CUDA failure 2: out of memory", "std::bad_alloc"])
def test_running_out_of_memory_is_reported(message):
    with pytest.raises(UserError, match="no memory left"), onnx_errors("run it"):
        raise RuntimeError(message)


def test_an_old_driver_is_reported():
    with pytest.raises(UserError, match="driver is too old"), onnx_errors("load it"):
        raise RuntimeError("CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version")


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


def test_onnx_runtime_logs_nothing(monkeypatch):
    """Its loggers write to standard error: that of each session, and that of the process, which the providers use."""
    severities: list[int] = []
    monkeypatch.setattr(providers.onnxruntime_module(), "set_default_logger_severity", severities.append)
    assert make_session(gather_graph(), [CPU]).get_session_options().log_severity_level == 4
    assert set(severities) == {4}


def test_a_session_without_its_provider_warns_nobody(recwarn, capfd):
    assert make_session(gather_graph(), ["CUDAExecutionProvider", CPU]).get_providers() == [CPU]
    assert len(recwarn) == 0
    assert capfd.readouterr() == ("", "")


def test_other_errors_are_raised_unchanged():
    with pytest.raises(RuntimeError, match="a bug"), onnx_errors("run it"):
        raise RuntimeError("a bug")
