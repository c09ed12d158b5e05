"""Measure speed, memory and quality on this machine.

    python -m benchmarks NAME [options]      one benchmark; python -m benchmarks NAME --help lists its options
    python -m benchmarks [options]           all of them, and their results on one page, report.html
    python -m benchmarks --quick             all of them with tiny sizes, which shows that they work

Of all benchmarks, each runs in its own process; if one fails, the others still run and the exit status is 1.
"""

import argparse
import inspect
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ane.bundles import add_model_arguments
from ane.commands.arguments import comma_separated, positive
from ane.system.errors import UserError
from benchmarks import (
    capacity,
    checkpoints,
    convert,
    embedded,
    exactness,
    fastspeech,
    kitten,
    long_texts,
    memory,
    precisions,
    quality,
    samplers,
    server,
    server_load,
    speech,
    stages,
    step_bytes,
    texts,
    whisper_step,
    windows,
    witnesses,
    word_times,
)
from benchmarks.harness import RESULTS, Benchmark, add_shared_options, run_benchmark
from benchmarks.page import write_page
from benchmarks.upstream import make_environment

BENCHMARKS: dict[str, Benchmark] = {
    **stages.BENCHMARKS,
    **speech.BENCHMARKS,
    "memory": memory.BENCHMARK,
    "long-texts": long_texts.BENCHMARK,
    "texts": texts.BENCHMARK,
    "convert": convert.BENCHMARK,
    "embedded": embedded.BENCHMARK,
    "quality": quality.BENCHMARK,
    "precisions": precisions.BENCHMARK,
    "samplers": samplers.BENCHMARK,
    "windows": windows.BENCHMARK,
    "kitten": kitten.BENCHMARK,
    "fastspeech": fastspeech.BENCHMARK,
    "whisper-step": whisper_step.BENCHMARK,
    "witnesses": witnesses.BENCHMARK,
    "words": word_times.BENCHMARK,
    "capacity": capacity.BENCHMARK,
    "server": server.BENCHMARK,
    "server-load": server_load.BENCHMARK,
    "exactness": exactness.BENCHMARK,
    "step-bytes": step_bytes.BENCHMARK,
}


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny sizes, to test the benchmarks; the figures mean nothing")
    add("--only", type=comma_separated, default=list(BENCHMARKS), metavar="NAME,…", help="run only these benchmarks")
    add("--upstream-python", type=Path, metavar="PATH", help="interpreter of upstream's environment")
    add("--precision", metavar="P,…", help="of every competitor that has it (default: each benchmark's own)")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: all cores)")
    add("-o", "--output", type=Path, default=RESULTS, metavar="DIR", help="(default: benchmarks/results)")
    parser.set_defaults(run=run_all)
    commands = parser.add_subparsers(title="benchmarks and preparations", metavar="NAME")
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.help, formatter_class=argparse.RawDescriptionHelpFormatter,
                                      description=inspect.getmodule(benchmark.measure).__doc__)
        add_shared_options(command, benchmark.uses)
        benchmark.add_options(command.add_argument)
        command.set_defaults(run=lambda options, name=name: run_one(name, options), output=None)
    command = commands.add_parser("checkpoints", help="write random weights in the official files' layout",
                                  description=checkpoints.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    checkpoints.add_options(command)
    command = commands.add_parser("upstream-env", help="make the environment of upstream's package, about 1 GB")
    command.add_argument("directory", type=Path, metavar="DIR", help="a new folder")
    command.add_argument("--python", default="python3.11", help="interpreter to make it with (default: python3.11)")
    command.set_defaults(run=lambda options: print(make_environment(options.directory, options.python)))
    return parser


def run_one(name: str, options: argparse.Namespace) -> None:
    for option in ("bundle", "checkpoints", "competitors", "upstream_python"):
        setattr(options, option, getattr(options, option, None))
    why = BENCHMARKS[name].unavailable(options)
    if why:
        raise UserError(why)
    run_benchmark(name, BENCHMARKS[name], options)


def flags_for(benchmark: Benchmark, options: argparse.Namespace) -> list[str]:
    """Flags of one benchmark when all are run: the common options that it takes, and those of a quick run."""
    embedded = "demo" if options.quick and not options.checkpoints else None
    named = {"bundle": options.bundle or embedded, "checkpoints": options.checkpoints, "threads": options.threads,
             "precision": options.precision, "upstream-python": options.upstream_python}
    accepted = {"bundle", *benchmark.uses, *(["upstream-python"] if "competitors" in benchmark.uses else [])}
    flags = shlex.split(benchmark.quick) if options.quick else []
    for name, value in named.items():
        if value is not None and name in accepted:
            flags += [f"--{name}", str(value)]
    return flags


def run_all(options: argparse.Namespace) -> None:
    unknown = [name for name in options.only if name not in BENCHMARKS]
    if unknown:
        raise UserError(f"--only {unknown[0]}: there are {', '.join(BENCHMARKS)}")
    done, failed, skipped = [], [], {}
    for name in options.only:
        benchmark = BENCHMARKS[name]
        why = benchmark.unavailable(options)
        if options.checkpoints and "checkpoints" not in benchmark.uses:
            why = "it measures a bundle, and --checkpoints was given"
        if why:
            skipped[name] = why
            continue
        output, flags = options.output / f"{name}.json", flags_for(benchmark, options)
        print(f"\npython -m benchmarks {name} {shlex.join(flags)}", flush=True)
        command = [sys.executable, "-m", "benchmarks", name, *flags, "-o", str(output)]
        if subprocess.run(command).returncode:
            failed.append(name)
        else:
            done.append(output)
    page = options.output / "report.html"
    write_page(page, done, failed, skipped)
    print(f"\n{page}")
    for name, why in skipped.items():
        print(f"{name} was skipped: {why}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; their messages are above")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Raises UserError."""
    options = arguments_parser().parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
