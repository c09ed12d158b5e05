"""Upstream's package in a separate environment, and its process that speaks on request.

Its pinned dependencies conflict with recent ones, so it cannot share an environment with this package.
"""

import os
import subprocess
from pathlib import Path

from ane.system.errors import UserError
from ane.system.json_process import JsonProcess

FILES = ("autoregressive.pth", "diffusion_decoder.pth", "clvp2.pth", "vocoder.pth")
PYTHON = "3.11"                       # the newest that tokenizers 0.13.3 has wheels for
REQUIREMENTS = (
    "torch==2.13.0",                  # the newest that this package was run with: both are timed on the same torch
    "transformers==4.31.0",           # upstream's pin: its GPT-2 wrapper needs this version's generate() and caches
    "tokenizers==0.13.3",             # transformers 4.31 refuses 0.14
    "huggingface-hub<1",              # transformers 4.31 imports names that 1.0 removed
    "numpy",                          # any version: it is not on the timed path
    "einops",                         # imported by upstream's arch_util
    "inflect", "unidecode", "scipy", "tqdm",      # imported by upstream's api
)
PACKAGE = "tortoise-tts==3.0.0"       # without its dependencies: an old librosa, CUDA wheels and a compiler


def make_environment(directory: Path, python: str) -> Path:
    """Create the virtual environment and return its interpreter.

    Raises:
        UserError: the interpreter is not Python 3.11, the folder is not empty, or an installation failed.
    """
    try:
        version = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                                 capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        version = None
    if version != PYTHON:
        raise UserError(f"{python} is {f'Python {version}' if version else 'no interpreter'}; upstream's pins need "
                        f"Python {PYTHON}: name one with --python")
    if directory.exists() and any(directory.iterdir()):
        raise UserError(f"{directory} is not empty: name a new folder")
    interpreter = directory / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [str(interpreter), "-m", "pip", "install", "--disable-pip-version-check"]
    for step in ([python, "-m", "venv", str(directory)], [*pip, *REQUIREMENTS], [*pip, "--no-deps", PACKAGE]):
        if subprocess.run(step).returncode:
            raise UserError(f"making {directory} failed at: {' '.join(step)}")
    return interpreter


class UpstreamProcess(JsonProcess):
    """``upstream_worker.py`` in upstream's environment."""

    def __init__(self, python: Path, checkpoints: Path, threads: int):
        for file in FILES:
            if not (checkpoints / file).is_file():
                raise UserError(f"{checkpoints} has no {file}: upstream loads official checkpoints")
        script = Path(__file__).with_name("upstream_worker.py")
        super().__init__([str(python), str(script), str(checkpoints), "--threads", str(threads)],
                         {"OMP_NUM_THREADS": str(threads)},
                         "make its environment with python -m benchmarks upstream-env DIR")
