"""What a figure is worth nothing without: the machine, its system, versions, the checkout, the date."""

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ane.backends.tuning import cores, here

VERSIONS = ("tortoise-ane", "coremltools", "torch", "numpy", "onnxruntime", "onnxruntime-gpu")


def described() -> dict[str, Any]:
    """As the module ``report`` documents it under "machine". Raises UserError when macOS cannot be asked."""
    chip, os_build = here()
    return {
        "machine": platform.machine(), "chip": chip, "cores": cores(), "memory_bytes": memory(),
        "os": platform.platform(), "os_build": os_build, "python": platform.python_version(), "packages": versions(),
        "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def memory() -> int | None:
    """Bytes of physical memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def versions() -> dict[str, str]:
    found = {}
    for package in VERSIONS:
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
    head = _output("git", "-C", str(checkout), "rev-parse", "--short", "HEAD")
    return head and head + ("+" if _output("git", "-C", str(checkout), "status", "--porcelain", "-uno") else "")


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
