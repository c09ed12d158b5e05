"""Skip the tests of this folder without an NVIDIA GPU. With one, fail if a package that they need is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

ON_TORCH = "on a machine with an NVIDIA GPU: pip install -e '.[test]'; pip install 'torch>=2.11'; pytest tests/cuda -rA"
ON_ONNX = (
    "on a machine with an NVIDIA GPU: pip install -e '.[test,tensorrt]'; pip uninstall -y onnxruntime; "
    "pip install --force-reinstall --no-deps onnxruntime-gpu; pytest tests/cuda -rA"
)


def has_nvidia_gpu(device: Path = Path("/dev/nvidia0")) -> bool:
    """Whether this machine has an NVIDIA GPU, with or without a driver that works."""
    if device.exists():
        return True
    try:
        listed = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return bool(listed) and listed.returncode == 0 and b"GPU" in listed.stdout


def require(problem: str, command: str, gpu: bool | None = None) -> None:
    """Skip the test where ``problem`` is due to a missing GPU, and fail it where there is one (default: looks for it).

    ``problem``: why the test cannot run here; "": it can. ``command``: how to run it.
    """
    if problem:
        stop = pytest.fail if (has_nvidia_gpu() if gpu is None else gpu) else pytest.skip
        stop(f"{problem}; {command}")
