"""Run the benchmarks one after the other, and put their tables and plots on one page, report.html.

    python -m benchmarks --quick                         proves in minutes that all work, on the embedded voice
    python -m benchmarks --checkpoints /tmp/official --upstream-python ~/upstream-env/bin/python --threads 1,2
    python -m benchmarks --only stream,scale --scale "--chunks 1,4,16 --rounds 2"

Each is a process of its own: one that fails does not stop the others. It is named at the end, and the exit status is 1.
One that cannot run here is left out and named too: quality and samplers without the embedded voice's teacher, flite.
"""

import argparse
import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ane.bundles import add_model_arguments
from ane.system.errors import UserError
from benchmarks import report
from benchmarks.page import write_page
from benchmarks.speaking import model_flags
from benchmarks.upstream import add_upstream_options, counts

Flags = Callable[[argparse.Namespace], list[str]]


@dataclass(frozen=True)
class Benchmark:
    """How one is run.

    Attributes:
        flags: what it is given of the options.
        quick: more flags, for a tiny pass.
        contest: it takes one number of threads, and is run with each.
        lacks: why it cannot run here with these options; None: it can.
    """

    flags: Flags
    quick: str
    contest: bool = False
    lacks: Callable[[argparse.Namespace], str | None] = lambda options: None


def contest_flags(options: argparse.Namespace) -> list[str]:
    """The model, upstream and precisions, as both sides' benchmarks take them."""
    precisions = ["--precisions", options.precisions] if options.precisions else []
    upstream = ["--upstream-python", str(options.upstream_python)] if options.upstream_python else []
    return [*model_flags(options), *upstream, *precisions]


def sentence_flags(options: argparse.Namespace) -> list[str]:
    return [*contest_flags(options), "--threads", ",".join(map(str, options.threads))]


def speaking_flags(options: argparse.Namespace) -> list[str]:
    return [*model_flags(options), "--precision", options.precision, "--threads", str(max(options.threads))]


def memory_flags(options: argparse.Namespace) -> list[str]:
    return [*(model_flags(options) or ["--bundle", "demo"]), "--threads", str(max(options.threads))]


def backends_flags(options: argparse.Namespace) -> list[str]:
    return [*model_flags(options), "--threads", str(max(options.threads))]


def bundle_flags(options: argparse.Namespace) -> list[str]:
    return ["--bundle", options.bundle or "demo"]


def lacks_bundle(options: argparse.Namespace) -> str | None:
    return "it takes a bundle, and --checkpoints were given" if options.checkpoints else None


def lacks_teacher(options: argparse.Namespace) -> str | None:
    if options.bundle or options.checkpoints:
        return "it holds the embedded voice against its teacher"
    named = "--flite" in options.quality + options.samplers
    return None if named or shutil.which("flite") else "its teacher, flite, is not installed"


def lacks_recogniser(options: argparse.Namespace) -> str | None:
    if importlib.util.find_spec("pocketsphinx") is None:
        return "its recogniser is not installed: pip install 'tortoise-ane[test]'"
    return "it listens to a trained bundle" if options.checkpoints else None


BENCHMARKS = {
    "decode": Benchmark(contest_flags, "--precisions fp32 --lanes 1,2 --steps 4 --rounds 1", contest=True),
    "diffusion": Benchmark(contest_flags, "--precisions fp32 --frames 40 --utterances 1 --rounds 1", contest=True),
    "sentence": Benchmark(sentence_flags, "--precisions fp32 --cases one --max-codes 20 --steps 4 --rounds 1"),
    "stream": Benchmark(speaking_flags, "--seconds 5,10 --presets fastest --max-codes 30 --rounds 1"),
    "scale": Benchmark(speaking_flags, "--chunks 2 --lanes 2 --lane-chunks 2 --max-codes 20 --rounds 1"),
    "memory": Benchmark(memory_flags, "--candidates 2 --max-codes 20"),
    "backends": Benchmark(backends_flags, "--precisions fp32 --lanes 1,2 --steps 4 --frames 40 --sound 40 "
                                          "--max-codes 20 --rounds 1"),
    "convert": Benchmark(bundle_flags, "--stages univnet", lacks=lacks_bundle),
    "quality": Benchmark(bundle_flags, "--sentences 2", lacks=lacks_teacher),
    "samplers": Benchmark(bundle_flags, "--sentences 2 --seen 1", lacks=lacks_teacher),
    "windows": Benchmark(bundle_flags, "--sentences 1 --steps 4 --windows 16,64,4", lacks=lacks_recogniser),
}


@dataclass(frozen=True)
class Job:
    """A benchmark that is to be run: its name, where its result goes, and its flags."""

    name: str
    output: Path
    flags: list[str]

    def run(self) -> bool:
        """Whether it went well; its output goes where this one's does."""
        print(f"\n{self.output.stem}: python -m benchmarks.{self.name} {shlex.join(self.flags)}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{self.name}", *self.flags, "--output", str(self.output)]
        return subprocess.run(command).returncode == 0


def jobs(options: argparse.Namespace, names: Sequence[str]) -> list[Job]:
    found = []
    for name in names:
        benchmark = BENCHMARKS[name]
        flags = [*benchmark.flags(options), *(shlex.split(benchmark.quick) if options.quick else []),
                 *shlex.split(getattr(options, name))]
        if not benchmark.contest:
            found.append(Job(name, output_of(options, name), flags))
            continue
        for threads in options.threads:
            output = output_of(options, f"{name}-{threads}-thread{'s' * (threads > 1)}")
            found.append(Job(name, output, [*flags, "--threads", str(threads)]))
    return found


def output_of(options: argparse.Namespace, name: str) -> Path:
    return options.output / f"{name}.json" if options.output else report.default_output(name)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    add_upstream_options(parser)
    add = parser.add_argument
    add("--only", type=lambda text: text.split(","), metavar="NAME,..", help=f"of {', '.join(BENCHMARKS)}")
    add("--quick", action="store_true", help="a tiny pass: proves that they work, its figures say nothing")
    add("--threads", type=counts, default=[report.usable_cores()],
        help="of the contests with upstream, each in turn; of the rest the most of them (default: all cores)")
    add("--precisions", metavar="P,..", help="of the contests with upstream (default: each one's own)")
    add("--precision", default="auto", metavar="P", help="of stream and scale (default auto)")
    add("--output", type=Path, metavar="DIR", help="where results go (default: benchmarks/results/, dated)")
    for name in BENCHMARKS:
        add(f"--{name}", default="", metavar='"FLAGS"', help=f"more flags for {name}; see python -m benchmarks.{name}")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    names = options.only or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise UserError(f"--only {unknown[0]}: there are {', '.join(BENCHMARKS)}")
    lacking = {name: BENCHMARKS[name].lacks(options) for name in names}
    left_out = {name: why for name, why in lacking.items() if why}
    done, failed = [], []
    for job in jobs(options, [name for name in names if name not in left_out]):
        if job.run():
            done.append(job.output)
        else:
            failed.append(job.output.stem)
    page = (options.output or report.RESULTS) / "report.html"
    write_page(page, done, failed, left_out)
    print(f"\n{page}")
    for name, why in left_out.items():
        print(f"{name} was left out: {why}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; what they said stands above")


if __name__ == "__main__":
    report.run(main)
