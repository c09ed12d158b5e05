"""Versions of ONNX Runtime, torch and NVIDIA's libraries that fit together, and loading them. No GPU is needed."""

import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
import torch

from ane.backends.onnx import providers
from ane.backends.onnx.providers import (
    DEVICES,
    GpuVersions,
    choose_onnx_device,
    installed_versions,
    load_libraries,
    version_problem,
)
from ane.system.errors import UserError

FITTING = GpuVersions("1.31.1", "13.0", "2.13.0+cu130", "13.0", "10.16.1.11")


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
@pytest.mark.parametrize("changed", [
    {}, {"tensorrt": ""}, {"tensorrt": "10.14.1.48"},
    {"onnxruntime": "1.26.0", "cuda": "12.8", "torch": "2.10.0+cu128", "torch_cuda": "12.8"}])
def test_versions_that_fit_have_no_problem(device, changed):
    assert version_problem(device, replace(FITTING, **changed)) == ""


@pytest.mark.parametrize(("changed", "line"), [
    ({"onnxruntime": "1.24.4"}, r"onnxruntime 1.24.4 computes attention on the CPU: pip install --upgrade"),
    ({"torch": "2.10.0+cu128", "torch_cuda": "12.8"}, r"1.31.1 is built for CUDA 13 and torch 2.10.0\+cu128 for CUDA "
                                                      r"12.*onnxruntime-gpu>=1.27 and torch>=2.11"),
    ({"torch": "2.13.0+cpu", "torch_cuda": ""}, r"torch 2.13.0\+cpu for the CPU: install both for the same CUDA"),
    ({"tensorrt": "11.0.0.114"}, r"TensorRT 11.0.0.114 does not fit onnxruntime 1.31.1: pip install"),
    ({"tensorrt": "10.13.3.9"}, r"TensorRT 10.13.3.9 does not fit"),
])
def test_versions_that_do_not_fit_are_one_line_with_what_to_install(changed, line):
    problem = version_problem("tensorrt", replace(FITTING, **changed))
    assert re.search(line, problem)
    assert "\n" not in problem


def test_cuda_ignores_the_version_of_tensorrt():
    assert version_problem("cuda", replace(FITTING, tensorrt="11.0.0.114")) == ""


def test_the_versions_of_this_machine_are_named():
    versions = installed_versions(onnxruntime)
    assert str(versions).startswith(f"onnxruntime {onnxruntime.__version__} for ")
    assert f"torch {versions.torch} for " in str(versions)


def test_the_extras_install_versions_that_fit():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extras = {name: " ".join(lines) for name, lines in project["optional-dependencies"].items()}
    assert "onnxruntime-gpu[cuda,cudnn]>=1.27" in extras["cuda"]        # 1.27: the first for CUDA 13
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


def test_cuda_s_libraries_are_loaded_before_the_providers_are_listed_and_the_first_session(gpu_wheel, capfd):
    assert choose_onnx_device("").name == "cuda"
    assert gpu_wheel[:2] == ["preload", "list"]
    assert gpu_wheel[-1] == "session"
    assert capfd.readouterr() == ("", "")


def test_the_cpu_loads_none_of_them(gpu_wheel):
    assert choose_onnx_device("cpu").name == "cpu"
    assert "preload" not in gpu_wheel


def test_versions_that_do_not_fit_stop_cuda_before_a_session(gpu_wheel, monkeypatch, notices):
    monkeypatch.setattr(providers, "installed_versions", lambda ort: replace(FITTING, onnxruntime="1.24.4"))
    with pytest.raises(UserError, match=r"CUDA does not load: onnxruntime 1\.24\.4 computes attention on the CPU"):
        choose_onnx_device("cuda")
    assert "session" not in gpu_wheel
    assert choose_onnx_device("").name == "cpu"
    assert "computes attention on the CPU" in notices[0]


def test_a_library_that_does_not_load_is_the_reason_that_is_given(gpu_wheel, monkeypatch, capfd):
    def preload() -> None:
        sys.stdout.write("Failed to load libcublasLt.so.13: cannot open shared object file\n"
                         "Failed to load libcudart.so.13: no\nPlease follow https://onnxruntime.ai/docs/install\n")

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    session = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *args, **options: session)
    reason = "libcublasLt.so.13: cannot open shared object file"
    assert load_libraries(onnxruntime) == reason
    assert providers.load_error(DEVICES["cuda"]) == reason
    assert capfd.readouterr() == ("", "")
