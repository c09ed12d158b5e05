"""Which device torch computes on, and why CUDA is not to be had where it is not."""

import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ane.system.errors import UserError

# what torch says when CUDA does not start → what that means, and what to do
TROUBLES = {
    "not compiled with CUDA": "this torch was built without CUDA: install one built with it "
                              "(https://pytorch.org/get-started/locally)",
    "driver on your system is too old": "the NVIDIA driver is too old for this torch, which is built for CUDA "
                                        "{built}: update the driver, or install a torch built for an older CUDA "
                                        "(https://pytorch.org/get-started/previous-versions)",
    "no NVIDIA driver": "this machine has no NVIDIA driver: install it where there is an NVIDIA GPU",
    "no kernel image": "this torch has nothing compiled for this GPU: install a torch built for GPUs of its age "
                       "(https://pytorch.org/get-started/previous-versions)",
    "No CUDA GPUs": "torch finds no NVIDIA GPU{hidden}: `nvidia-smi` lists those that the driver knows",
}
USUAL = ("not compiled with CUDA", "no NVIDIA driver", "No CUDA GPUs")      # where there is no NVIDIA GPU


@dataclass(frozen=True)
class Trouble:
    """Why CUDA does not start.

    Attributes:
        says: the cause and what to do, in a line.
        surprising: whether the machine shows signs of an NVIDIA GPU, which one would expect to be used.
    """

    says: str
    surprising: bool


def cuda_problem() -> Trouble | None:
    """Why torch cannot compute on CUDA here; None: it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")             # which would say the same once more, in torch's words
        try:
            torch.cuda.init()
            torch.ones(1, device="cuda").neg_()     # a GPU may be known and yet not served
            return None
        except (AssertionError, RuntimeError, torch.cuda.DeferredCudaCallError) as error:
            said = str(error)
    for words, meaning in TROUBLES.items():
        if words in said:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
            says = meaning.format(built=torch.version.cuda, hidden=hidden)
            return Trouble(says, words not in USUAL or shutil.which("nvidia-smi") is not None)
    return Trouble(f"CUDA does not start: {said.strip().partition(chr(10))[0]}", True)


def choose_device(name: str, notice: Callable[[str], None] = lambda line: None) -> torch.device:
    """The device of that name; "auto" is CUDA, else MPS, else the CPU.

    ``notice`` is told when "auto" must do without an NVIDIA GPU that seems to be there. Where nothing is missed,
    nothing is said.

    Raises:
        UserError: this machine lacks the device, or torch cannot use it.
    """
    kind, colon, number = name.partition(":")
    mps = torch.backends.mps.is_available()
    trouble = cuda_problem() if kind in ("auto", "cuda") else None
    if name == "auto":
        chosen = "cuda" if trouble is None else "mps" if mps else "cpu"
        if trouble is not None and trouble.surprising:
            notice(f"not on CUDA but on {chosen}: {trouble.says}")
        return torch.device(chosen)
    others = " or ".join(["torch:mps"] * (mps and kind != "mps") + ["torch:cpu"])
    if kind == "cuda" and trouble is not None:
        raise UserError(f"--backend torch:{name}: {trouble.says}; or use {others}")
    count = torch.cuda.device_count() if kind == "cuda" else 1 if kind == "cpu" or (kind == "mps" and mps) else 0
    if not count or (colon and number not in map(str, range(count))):
        numbered = f"; of kind {kind} there are {count}, numbered from 0" if count else ""
        raise UserError(f"this machine has no {name} device for torch{numbered}; use {others}")
    return torch.device(name)


def native_bf16(device: torch.device) -> bool:
    """Whether a CUDA device computes in bfloat16 itself: NVIDIA's do from compute capability 8.0, Ampere."""
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)
