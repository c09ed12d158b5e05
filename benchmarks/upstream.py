"""Upstream's package in an environment of its own, and processes there that decode, denoise or speak on request.

    python -m benchmarks.upstream --make-env ~/upstream-env                                   once; about 1 GB
    python -m benchmarks.upstream --upstream-python ~/upstream-env/bin/python --checkpoints DIR --lanes 1,4

Its pins conflict with everything recent, so it never shares an environment with this package.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ane.backends.torch.backend import PRECISIONS
from ane.system.errors import UserError
from benchmarks import report
from benchmarks.process import Process

WORKERS = {"autoregressive.pth": "upstream_decode.py", "diffusion_decoder.pth": "upstream_denoise.py"}
SPEAKS_WITH = ("autoregressive.pth", "diffusion_decoder.pth", "clvp2.pth", "vocoder.pth")
MAKE_ONE = "make one with --make-env"
PYTHON = "3.11"                       # the newest that tokenizers 0.13.3 has wheels for
REQUIREMENTS = (
    "torch==2.13.0",                  # the newest that this package has run; both sides are timed on the same torch
    "transformers==4.31.0",           # upstream's pin: its GPT-2 wrapper needs the generate() and cache tuples of then
    "tokenizers==0.13.3",             # transformers 4.31 refuses 0.14
    "huggingface-hub<1",              # transformers 4.31 imports names that 1.0 removed
    "numpy",                          # any: nothing of it is on the timed path
    "einops",                         # imported by upstream's arch_util
    "inflect", "unidecode", "scipy", "tqdm",      # imported by upstream's api: numbers in words, ASCII, WAV, bars
)
PACKAGE = "tortoise-tts==3.0.0"       # without its dependencies: they want old librosa, CUDA wheels and a compiler


def make_environment(directory: Path, python: str) -> Path:
    """Create the virtual environment and return its interpreter.

    Raises:
        UserError: the interpreter is not Python 3.11, the folder is taken, or an installation failed.
    """
    version = report.output_of(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if version != PYTHON:
        raise UserError(f"{python} is {f'Python {version}' if version else 'no interpreter'}; upstream's pins need "
                        f"Python {PYTHON}: name one with --python")
    if directory.exists() and any(directory.iterdir()):
        raise UserError(f"{directory} is not empty: name a new folder for --make-env")
    interpreter = directory / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [str(interpreter), "-m", "pip", "install", "--disable-pip-version-check"]
    for step in ([python, "-m", "venv", str(directory)], [*pip, *REQUIREMENTS], [*pip, "--no-deps", PACKAGE]):
        if subprocess.run(step).returncode:
            raise UserError(f"making {directory} failed at: {' '.join(step)}")
    return interpreter


class Upstream(Process):
    """A running upstream with one network loaded, that of ``file``. Use as a context manager."""

    name = "upstream"

    def __init__(self, python: Path, checkpoints: Path, *, file: str = "autoregressive.pth", heads: int = 16,
                 threads: int = 1, device: str = "cpu"):
        """Raises UserError when the interpreter, the checkpoint or upstream itself does not load."""
        need(checkpoints, file)
        super().__init__([*script(python, WORKERS[file]), str(checkpoints), "--heads", str(heads), "--threads",
                          str(threads), "--device", device], one_count(threads), MAKE_ONE)

    def decode(self, lanes: int, prefix: int, steps: int) -> dict:
        """Prefill ``prefix`` positions, then ``steps`` steps: {prefill_ms, step_ms: [..], token_ms}, milliseconds."""
        return self.ask({"lanes": lanes, "prefix": prefix, "steps": steps})

    def denoise(self, frames: int) -> dict:
        """A guided step, two calls of the network: {step_ms}, milliseconds."""
        return self.ask({"frames": frames})


class UpstreamSpeaker(Process):
    """A running upstream with everything loaded that its ``tts`` takes. Use as a context manager."""

    name = "upstream"

    def __init__(self, python: Path, checkpoints: Path, threads: int):
        """Raises UserError when the interpreter, a checkpoint or upstream itself does not load."""
        for file in SPEAKS_WITH:
            need(checkpoints, file)
        super().__init__([*script(python, "upstream_sentence.py"), str(checkpoints), "--threads", str(threads)],
                         one_count(threads), MAKE_ONE)


def script(python: Path, name: str) -> list[str]:
    return [str(python), str(Path(__file__).with_name(name))]


def one_count(threads: int) -> dict[str, str]:
    """The environment that holds every library to so many threads."""
    return {"OMP_NUM_THREADS": str(threads)}


def need(checkpoints: Path, file: str) -> None:
    if not (checkpoints / file).is_file():
        raise UserError(f"{checkpoints} has no {file}: upstream loads official checkpoints")


def counts(text: str) -> list[int]:
    """``1,4,16`` → [1, 4, 16], for argparse."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("counts begin at 1")
    return numbers


def add_upstream_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--upstream-python", type=Path, metavar="PATH",
                        help="interpreter of an environment made with python -m benchmarks.upstream --make-env")


def add_output_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE.json",
                        help="where the result goes, and beside it plots (default: benchmarks/results/, dated)")


def add_contest_options(parser: argparse.ArgumentParser) -> None:
    """What every benchmark takes that lets this package and upstream take turns."""
    add_upstream_options(parser)
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=["fp32", "bf16"],
                        help=f"of {', '.join(PRECISIONS)}; int8 on the CPU (default fp32,bf16)")
    parser.add_argument("--rounds", type=int, default=5, help="readings of each figure (default 5)")
    parser.add_argument("--threads", type=int, default=report.usable_cores(),
                        help="CPU threads of either side (default: all cores)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps (default cpu)")
    add_output_option(parser)


def hold_together(options: argparse.Namespace) -> None:
    """Raises UserError when the options of a contest do not fit each other."""
    unknown = [name for name in options.precisions if name not in PRECISIONS]
    if unknown:
        raise UserError(f"--precisions {unknown[0]}: there are {', '.join(PRECISIONS)}")
    if options.upstream_python and not options.checkpoints:
        raise UserError("--upstream-python needs --checkpoints: upstream reads official files alone")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream", description=__doc__.splitlines()[0])
    parser.add_argument("--make-env", type=Path, metavar="DIR", help="make upstream's environment there and stop")
    parser.add_argument("--python", default=sys.executable, metavar="PATH",
                        help=f"a Python {PYTHON} to make it with (default: this one)")
    add_upstream_options(parser)
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="folder with the official autoregressive.pth")
    parser.add_argument("--lanes", type=counts, default=[1], help="lanes, e.g. 1,4 (default 1)")
    parser.add_argument("--heads", type=int, default=16, help="attention heads of that checkpoint (default 16)")
    parser.add_argument("--prefix", type=int, default=44, help="positions before the first code (default 44)")
    parser.add_argument("--steps", type=int, default=24, help="codes decoded per reading (default 24)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    options = parser.parse_args(arguments)
    if options.make_env:
        print(make_environment(options.make_env, options.python))
        return
    if not (options.upstream_python and options.checkpoints):
        parser.error("give --make-env, or both --upstream-python and --checkpoints")
    with Upstream(options.upstream_python, options.checkpoints, heads=options.heads, threads=options.threads) as worker:
        for lanes in options.lanes:
            print(json.dumps(worker.decode(lanes, options.prefix, options.steps)))


if __name__ == "__main__":
    report.run(main)
