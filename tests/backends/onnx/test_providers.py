"""Which provider is chosen, and how its errors are reported. No GPU is needed."""

import sys
from typing import Any

import pytest

from ane.backends import load_backend
from ane.backends.onnx import providers
from ane.backends.onnx.providers import DEVICES, OutOfMemoryError, choose_onnx_device, onnx_errors
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


def test_a_cuda_that_does_not_load_falls_back_to_the_cpu_with_a_notice(with_cuda):
    notices = []
    assert choose_onnx_device("", notices.append, failing("cuda")).name == "cpu"
    line, = notices
    assert "CUDA provider does not load here: libcudnn.so.9: cannot open" in line
    assert "Running on the CPU" in line


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_gpu_that_onnxruntime_is_not_built_for_is_reported(monkeypatch, tmp_path, has_gpu):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755 if has_gpu else 0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(providers.onnxruntime_module(), "get_available_providers", lambda: ["CPUExecutionProvider"])
    notices = []
    assert choose_onnx_device("", notices.append).name == "cpu"
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
    with pytest.raises(OutOfMemoryError, match="no memory left"), onnx_errors("run it"):
        raise RuntimeError(message)


def test_an_old_driver_is_reported():
    with pytest.raises(UserError, match="driver is too old"), onnx_errors("load it"):
        raise RuntimeError("CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version")


def test_other_errors_are_raised_unchanged():
    with pytest.raises(RuntimeError, match="a bug"), onnx_errors("run it"):
        raise RuntimeError("a bug")
