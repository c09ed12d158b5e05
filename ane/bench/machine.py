"""Description of the machine, its software and the checkout, without which no figure can be interpreted."""

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ane.system.machine import memory_bytes, printed, processor_name, system_version, usable_cores

PACKAGES = ("tortoise-ane", "coremltools", "torch", "numpy", "onnxruntime", "onnxruntime-gpu")


def describe_machine() -> dict[str, Any]:
    """Machine, chip, instructions, cores, memory_bytes, accelerator, os, python, packages, commit, date, load_average.
    """
    return {
        "machine": platform.machine(), "chip": processor_name(), "instructions": instructions(),
        "cores": usable_cores(), "memory_bytes": memory_bytes(), "accelerator": accelerator(), "os": system_version(),
        "python": platform.python_version(), "packages": installed_versions(), "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def instructions() -> str:
    """The instructions that kernels are chosen by, "AVX512 VNNI bf16 AMX": the chip's name does not state them."""
    import torch

    return " ".join([torch.backends.cpu.get_cpu_capability(), *["VNNI"] * torch.cpu._is_vnni_supported(),
                     *["bf16"] * torch.cpu._is_avx512_bf16_supported(), *["AMX"] * torch.cpu._is_amx_tile_supported()])


def accelerator() -> str | None:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def installed_versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Short hash of the checked-out commit, with ``+`` when tracked files differ; None outside a checkout."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return None
    head = printed("git", "-C", str(checkout), "rev-parse", "--short", "HEAD")
    changed = printed("git", "-C", str(checkout), "status", "--porcelain", "-uno")
    return f"{head}{'+' if changed else ''}" if head else None
