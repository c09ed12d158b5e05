"""What every benchmark shares: its options, and how its result is printed and written."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ane.bench.machine import describe_machine
from ane.bench.records import BenchRow, document
from ane.commands.arguments import comma_separated, positive
from ane.commands.messages import print_rows
from ane.system.files import write_json
from ane.system.machine import processor_name, usable_cores

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class BenchmarkResult:
    """What a benchmark measured.

    Attributes:
        settings: those of all rows. more: other keys of the JSON document.
    """

    rows: Sequence[BenchRow]
    settings: Mapping[str, Any]
    notes: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of the command ``python -m benchmarks NAME``.

    Attributes:
        add_options: adds its own options to those that all share.
        quick: options of a short run that tests the benchmark; None: it has none, because it fetches packages.
        uses: the shared options that it takes, of "bundle", "checkpoints", "threads", "precision", "competitors",
            "rounds".
    """

    measure: Callable[[argparse.Namespace], BenchmarkResult]
    help: str
    add_options: Callable[[Callable[..., Any]], None] = lambda add: None
    quick: str | None = ""
    uses: Sequence[str] = ("bundle", "checkpoints", "threads", "precision", "competitors", "rounds")


def add_shared_options(parser: argparse.ArgumentParser, uses: Sequence[str]) -> None:
    add, source = parser.add_argument, parser.add_mutually_exclusive_group()
    if "bundle" in uses:
        source.add_argument("--bundle", metavar="NAME|PATH", help="the model (default: the embedded Tortoise, demo)")
    if "checkpoints" in uses:
        source.add_argument("--checkpoints", type=Path, metavar="DIR", help="the model: official .pth files")
    if "competitors" in uses:
        add("--competitors", type=comma_separated, metavar="NAME,…",
            help="of upstream, torch, onnx, coreml, mil; torch:cuda names a device (default: those that run)")
        add("--upstream-python", type=Path, metavar="PATH",
            help="interpreter of the environment that `python -m benchmarks upstream-env DIR` makes")
    if "precision" in uses:
        add("--precision", type=comma_separated, default=["auto"], metavar="P,…", help="of competitors that have it")
    if "threads" in uses:
        add("--threads", type=positive, default=usable_cores(), metavar="N", help="CPU threads (default: all cores)")
    if "rounds" in uses:
        add("--rounds", type=positive, default=3, metavar="N", help="readings of each value (default: 3)")
    add("-o", "--output", type=Path, metavar="FILE.json", help="result (default: benchmarks/results/, dated)")


def run_benchmark(name: str, benchmark: Benchmark, options: argparse.Namespace) -> Path:
    """Measure, print the table and write JSON; returns its path."""
    chip = re.sub(r"[^a-z0-9]+", "-", processor_name().lower()).strip("-")
    output = options.output or RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{name}-{chip}.json"
    machine = describe_machine()
    result = benchmark.measure(options)
    print_rows(f"{name}: " + ", ".join(f"{key} {value}" for key, value in result.settings.items()), result.rows)
    for note in result.notes:
        print(note)
    write_json(output, document(name, result.settings, result.rows, result.notes, machine=machine, **result.more))
    print(output, file=sys.stderr)
    return output


def model_name(options: argparse.Namespace) -> str:
    return Path(options.bundle or getattr(options, "checkpoints", None) or "demo").name
