"""NVIDIA's libraries for ONNX Runtime: which versions fit together, and loading those that pip has installed.

The versions are those of the published wheels: CUDA's ``Attention`` (opset 23) came with onnxruntime-gpu 1.25
(microsoft/onnxruntime#28025 shows 1.24 computing it on the CPU), wheels for CUDA 13 with 1.27, and they link
TensorRT 10.
"""

import contextlib
import importlib
import io
import re
import warnings
from dataclasses import dataclass
from importlib import metadata
from typing import Any

OLDEST_ONNXRUNTIME = (1, 25)
OLDEST_TENSORRT, FIRST_UNFIT_TENSORRT = (10, 14), (11,)
TENSORRT_PACKAGES = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")


@dataclass(frozen=True)
class GpuVersions:
    """Versions that must fit together; "" where something is missing.

    Attributes:
        cuda: that onnxruntime is built for; "": for the CPU only. torch_cuda: that torch is built for.
        tensorrt: of the Python package; "" also where TensorRT was installed without pip.
    """

    onnxruntime: str
    cuda: str = ""
    torch: str = ""
    torch_cuda: str = ""
    tensorrt: str = ""

    def __str__(self) -> str:
        built = [f"{name} {version} for {f'CUDA {cuda}' if cuda else 'the CPU'}" for name, version, cuda in (
            ("onnxruntime", self.onnxruntime, self.cuda), ("torch", self.torch, self.torch_cuda))]
        return ", ".join([*built, *([f"TensorRT {self.tensorrt}"] if self.tensorrt else [])])


def installed_versions(ort: Any) -> GpuVersions:
    """The versions on this machine; ``ort`` is the module onnxruntime."""
    import torch

    tensorrt = next(filter(None, map(_version, TENSORRT_PACKAGES)), "")
    return GpuVersions(ort.__version__, getattr(ort, "cuda_version", "") or "", torch.__version__,
                       torch.version.cuda or "", tensorrt)


def version_problem(device: str, versions: GpuVersions) -> str:
    """Why these versions cannot compute on ``device`` ("cuda" or "tensorrt"), and what to install; "" when they can."""
    if _numbers(versions.onnxruntime) < OLDEST_ONNXRUNTIME:
        return (f"onnxruntime {versions.onnxruntime} computes attention on the CPU: "
                "pip install --upgrade 'tortoise-ane[cuda]'")
    ours, torchs = versions.cuda.partition(".")[0], versions.torch_cuda.partition(".")[0]
    if ours and torchs and ours != torchs:
        return (f"onnxruntime {versions.onnxruntime} is built for CUDA {ours} and torch {versions.torch} for CUDA "
                f"{torchs}, and one process can load one cuDNN only: install both for the same CUDA (for CUDA 13 "
                "onnxruntime-gpu>=1.27 and torch>=2.11)")
    if device == "tensorrt" and versions.tensorrt and not (
            OLDEST_TENSORRT <= _numbers(versions.tensorrt) < FIRST_UNFIT_TENSORRT):
        return (f"TensorRT {versions.tensorrt} does not fit onnxruntime {versions.onnxruntime}: "
                "pip install 'tortoise-ane[tensorrt]'")
    return ""


def load_libraries(ort: Any, tensorrt: bool = False) -> str:
    """Load CUDA, cuDNN and, if asked, TensorRT from the packages that pip has installed, before the first session.

    The system's loader does not look there. Loading them again has no effect.

    Returns:
        The first library that does not load and the reason, in one line; "".
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():        # standard output may be the speech
        warnings.simplefilter("ignore")
        if getattr(ort, "cuda_version", "") and hasattr(ort, "preload_dlls"):       # from 1.21 on
            import torch  # noqa: F401  (a torch for CUDA loads its own libraries, which serve both)

            ort.preload_dlls()
        if tensorrt:
            with contextlib.suppress(ImportError, OSError):
                importlib.import_module("tensorrt")         # which loads its libraries
    failed = re.search(r"^Failed to load (.+)$", printed.getvalue(), re.MULTILINE)
    return failed[1].strip()[:200] if failed else ""


def _version(package: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
