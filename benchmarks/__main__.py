"""Measure speed, memory, quality and exactness on this machine.

python -m benchmarks NAME [options]      run one benchmark (python -m benchmarks NAME --help lists its options)
python -m benchmarks --quick             run all benchmarks with tiny sizes, which shows that they work
"""

import argparse
import inspect
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ane.commands.arguments import comma_separated
from ane.system.errors import UserError
from benchmarks import (
    checkpoints,
    embedded,
    engines,
    exactness,
    first_sound,
    memory,
    peers,
    quality,
    server,
    speech,
    steps,
    whisper,
    witnesses,
)
from benchmarks.harness import Benchmark, add_shared_options, run_benchmark

BENCHMARKS: dict[str, Benchmark] = {
    **speech.BENCHMARKS,
    "embedded": embedded.BENCHMARK,
    "engines": engines.BENCHMARK,
    "first-sound": first_sound.BENCHMARK,
    "memory": memory.BENCHMARK,
    "quality": quality.BENCHMARK,
    "server": server.BENCHMARK,
    "exactness": exactness.BENCHMARK,
    "peers": peers.BENCHMARK,
    "steps": steps.BENCHMARK,
    "whisper": whisper.BENCHMARK,
    "witnesses": witnesses.BENCHMARK,
}


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="run all benchmarks with tiny sizes (the figures mean nothing)"
    )
    parser.add_argument("--only", type=comma_separated, metavar="NAME,…", help="with --quick: benchmarks to run")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="with --quick: folder for the JSON results")
    parser.set_defaults(run=run_quick)
    commands = parser.add_subparsers(title="benchmarks and preparations", metavar="NAME", dest="command")
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(
            name,
            help=benchmark.help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            description=inspect.getmodule(benchmark.measure).__doc__,
        )
        add_shared_options(command, benchmark.uses)
        benchmark.add_options(command.add_argument)
        command.set_defaults(
            run=lambda options, name=name: run_benchmark(name, BENCHMARKS[name], options),
            output=None,
            bundle=None,
            checkpoints=None,
        )
    command = commands.add_parser(
        "checkpoints",
        help="write random weights in the official files' layout",
        description=checkpoints.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    checkpoints.add_options(command)
    return parser


def run_quick(options: argparse.Namespace) -> None:
    if not options.quick:
        raise UserError(f"name a benchmark ({', '.join(BENCHMARKS)}), or add --quick to run all with tiny sizes")
    for name in options.only or BENCHMARKS:
        if name not in BENCHMARKS:
            raise UserError(f"--only {name}: choose from {', '.join(BENCHMARKS)}")
        if (flags := BENCHMARKS[name].quick) is not None:
            output = ["-o", str(options.output / f"{name}.json")] if options.output else []
            main([name, *shlex.split(flags), *output])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with these arguments. Raises UserError if the command fails."""
    options = arguments_parser().parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
