"""Compiles ane/backends/torch/cpp to libkernels.so next to that folder; a wheel contains it.

Only for Linux on x86-64, and only where g++ 11 or later is found (or the command in ``CXX``): without the library the
package computes with torch's own kernels. Another compiler's OpenMP would have threads of its own beside torch's.
"""

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("ane", "backends", "torch", "cpp")
# no contraction: a product and a sum stay two roundings wherever the compiler puts them
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-mf16c",
    "-mfma",
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mavx512vnni",
    "-mavx512bf16",
    "-mamx-tile",
    "-mamx-int8",
    "-mamx-bf16",
)


def checksum(sources: Path) -> int:
    """As kernels.py computes it."""
    files = sorted(file for file in sources.iterdir() if file.suffix in (".h", ".cpp"))
    return zlib.crc32(b"".join(file.read_bytes() for file in files))


class KernelsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if sys.platform != "linux" or platform.machine() != "x86_64":
            return
        sources = Path(self.root) / SOURCES
        library, partial = sources.with_name("libkernels.so"), sources.with_name("libkernels.partial")
        command = [
            *shlex.split(os.environ.get("CXX", "g++")),
            *FLAGS,
            f"-DANE_CHECKSUM={checksum(sources)}u",
            str(sources / "kernels.cpp"),
            "-o",
            str(partial),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
            partial.replace(library)
        except (OSError, subprocess.CalledProcessError) as error:
            library.unlink(missing_ok=True)
            lines = (getattr(error, "stderr", "") or str(error)).splitlines()
            self.app.display_warning(f"kernels were not compiled, torch's own kernels are used: {lines[0]}")
            return
        build_data["artifacts"].append(library.relative_to(self.root).as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
