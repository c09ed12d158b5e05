"""Which device torch computes on, and the reason if CUDA is not available."""

import os
import platform
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ane.system.errors import UserError

# part of torch's message when CUDA does not start → cause, and what to do
CUDA_PROBLEMS = {
    "not compiled with CUDA": "this torch was built without CUDA: install one built with it "
                              "(https://pytorch.org/get-started/locally)",
    "driver on your system is too old": "the NVIDIA driver is too old for this torch, which is built for CUDA "
                                        "{built}: update the driver, or install a torch built for an older CUDA "
                                        "(https://pytorch.org/get-started/previous-versions)",
    "no NVIDIA driver": "this machine has no NVIDIA driver: if it has an NVIDIA GPU, install the driver",
    "no kernel image": "this torch has no kernels for this GPU: install a torch built for GPUs of its generation "
                       "(https://pytorch.org/get-started/previous-versions)",
    "No CUDA GPUs": "torch finds no NVIDIA GPU{hidden}: `nvidia-smi` lists those that the driver finds",
}
EXPECTED_PROBLEMS = ("not compiled with CUDA", "no NVIDIA driver", "No CUDA GPUs")      # without an NVIDIA GPU


@dataclass(frozen=True)
class CudaProblem:
    """Why torch cannot use CUDA.

    Attributes:
        message: the cause and what to do, in one line.
        unexpected: whether the machine seems to have an NVIDIA GPU, so that the user should know.
    """

    message: str
    unexpected: bool


def cuda_problem() -> CudaProblem | None:
    """Why torch cannot compute on CUDA here; None: it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")             # torch also warns of the problem
        try:
            torch.cuda.init()
            torch.ones(1, device="cuda").neg_()     # a GPU can be listed and yet not supported
            return None
        except (AssertionError, RuntimeError, torch.cuda.DeferredCudaCallError) as error:
            text = str(error)
    for part, meaning in CUDA_PROBLEMS.items():
        if part in text:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
            message = meaning.format(built=torch.version.cuda, hidden=hidden)
            return CudaProblem(message, part not in EXPECTED_PROBLEMS or shutil.which("nvidia-smi") is not None)
    return CudaProblem(f"CUDA does not start: {text.strip().partition(chr(10))[0]}", True)


def choose_device(name: str, notice: Callable[[str], None] = lambda line: None) -> torch.device:
    """The device of that name; "auto" is CUDA, else MPS, else the CPU.

    ``notice`` is called when "auto" cannot use an NVIDIA GPU that the machine seems to have.

    Raises:
        UserError: this machine lacks the device, or torch cannot use it.
    """
    kind, colon, number = name.partition(":")
    mps = torch.backends.mps.is_available()
    problem = cuda_problem() if kind in ("auto", "cuda") else None
    if name == "auto":
        chosen = "cuda" if problem is None else "mps" if mps else "cpu"
        if problem is not None and problem.unexpected:
            notice(f"using {chosen} instead of CUDA: {problem.message}")
        return torch.device(chosen)
    others = " or ".join(["torch:mps"] * (mps and kind != "mps") + ["torch:cpu"])
    if kind == "cuda" and problem is not None:
        raise UserError(f"backend=torch:{name}: {problem.message}; or use {others}")
    count = torch.cuda.device_count() if kind == "cuda" else 1 if kind == "cpu" or (kind == "mps" and mps) else 0
    if not count or (colon and number not in map(str, range(count))):
        numbers = f"; it has {count} of kind {kind}, numbered from 0" if count else ""
        raise UserError(f"this machine has no {name!r} device for torch{numbers}; use {others}")
    return torch.device(name)


def refuses_long_rows(device: torch.device) -> bool:
    """Whether a convolution with an axis above 65,536 fails: on MPS before macOS 15.1 (torch's Convolution.mm).

    A vocoder's rows are longer from 2.73 s of sound on.
    """
    if device.type != "mps":
        return False
    version = [int(part) for part in platform.mac_ver()[0].split(".")[:2] if part.isdigit()]
    return version < [15, 1]


def native_bf16(device: torch.device) -> bool:
    """Whether a CUDA device computes in bfloat16: NVIDIA GPUs do from compute capability 8.0 (Ampere)."""
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)
