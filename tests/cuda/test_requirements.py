"""Test that this folder's other tests skip without an NVIDIA GPU, and fail with one if a package is missing."""

import pytest

from tests.cuda.requirements import ON_ONNX, has_nvidia_gpu, require


def test_a_missing_package_skips_without_a_gpu_and_fails_with_one():
    with pytest.raises(pytest.skip.Exception, match="no onnxruntime-gpu; on a machine with an NVIDIA GPU: pip install"):
        require("no onnxruntime-gpu", ON_ONNX, gpu=False)
    with pytest.raises(pytest.fail.Exception, match=r"no onnxruntime-gpu; .*pytest tests/cuda"):
        require("no onnxruntime-gpu", ON_ONNX, gpu=True)
    require("", ON_ONNX, gpu=True)


@pytest.mark.parametrize(("printed", "expected"), [("GPU 0: NVIDIA H100 (UUID: GPU-1)", True), ("", False)])
def test_a_gpu_is_found_by_its_device_or_by_nvidia_smi(tmp_path, monkeypatch, printed, expected):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{printed}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert has_nvidia_gpu(tmp_path / "nvidia0") == expected
    (tmp_path / "nvidia0").touch()
    assert has_nvidia_gpu(tmp_path / "nvidia0")
