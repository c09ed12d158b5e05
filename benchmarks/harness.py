"""What every benchmark shares: its options, and how its result is printed and written."""

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ane.bench.machine import describe_machine
from ane.bench.records import BenchRow
from ane.bench.report import document, plot, print_rows
from ane.commands.arguments import comma_separated, positive
from ane.system.errors import UserError
from ane.system.files import write_json
from ane.system.machine import processor_name, usable_cores

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class BenchmarkPlot:
    """A plot of a result: the rows with this ``what`` (None: all), over a setting (None: bars).

    Attributes:
        suffix: added to the file's name when a result has several plots.
    """

    title: str
    what: str | None = None
    x: str | None = None
    suffix: str = ""


@dataclass(frozen=True)
class BenchmarkResult:
    """What a benchmark measured.

    Attributes:
        settings: those of all rows. more: other keys of the JSON document.
    """

    rows: Sequence[BenchRow]
    settings: Mapping[str, Any]
    notes: Sequence[str] = ()
    plots: Sequence[BenchmarkPlot] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of the command ``python -m benchmarks NAME``.

    Attributes:
        add_options: adds its own options to those that all share.
        quick: options of a short run that tests the benchmark.
        unavailable: why it cannot run with these options; None: it can.
        uses: the shared options that it takes, of "checkpoints", "threads", "precision", "competitors", "rounds".
    """

    measure: Callable[[argparse.Namespace], BenchmarkResult]
    help: str
    add_options: Callable[[Callable[..., Any]], None] = lambda add: None
    quick: str = ""
    unavailable: Callable[[argparse.Namespace], str | None] = lambda options: None
    uses: Sequence[str] = ("checkpoints", "threads", "precision", "competitors", "rounds")


def add_shared_options(parser: argparse.ArgumentParser, uses: Sequence[str]) -> None:
    add, source = parser.add_argument, parser.add_mutually_exclusive_group()
    source.add_argument("--bundle", metavar="NAME|PATH", help="the model (default: the embedded bundle)")
    if "checkpoints" in uses:
        source.add_argument("--checkpoints", type=Path, metavar="DIR", help="the model: official .pth files")
    if "competitors" in uses:
        add("--competitors", type=comma_separated, metavar="NAME,…",
            help="of upstream, eager, torch, onnx, coreml, mil; torch:cuda names a device (default: those that run)")
        add("--upstream-python", type=Path, metavar="PATH",
            help="interpreter of the environment that `python -m benchmarks upstream-env DIR` makes")
    if "precision" in uses:
        add("--precision", type=comma_separated, default=["auto"], metavar="P,…", help="of competitors that have it")
    if "threads" in uses:
        add("--threads", type=positive, default=usable_cores(), metavar="N", help="CPU threads (default: all cores)")
    if "rounds" in uses:
        add("--rounds", type=positive, default=3, metavar="N", help="readings of each value (default: 3)")
    add("-o", "--output", type=Path, metavar="FILE.json", help="result, with plots beside it (default: "
        "benchmarks/results/, dated)")


def run_benchmark(name: str, benchmark: Benchmark, options: argparse.Namespace) -> Path:
    """Measure, print the table, write JSON and plots; returns the JSON's path."""
    chip = re.sub(r"[^a-z0-9]+", "-", processor_name().lower()).strip("-")
    output = options.output or RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{name}-{chip}.json"
    machine = describe_machine()
    result = benchmark.measure(options)
    print_rows(f"{name}: " + ", ".join(f"{key} {value}" for key, value in result.settings.items()), result.rows)
    for note in result.notes:
        print(note)
    drawn = []
    if importlib.util.find_spec("matplotlib") is not None:
        for each in result.plots:
            rows = [row for row in result.rows if each.what in (None, row.what) and row.value]
            path = output.with_name(f"{output.stem}{each.suffix}.png")
            if rows:
                plot(path, each.title, rows, each.x)
                drawn.append(path.name)
    write_json(output, document(name, result.settings, result.rows, result.notes, drawn, machine, **result.more))
    print(" ".join([str(output), *drawn]), file=sys.stderr)
    return output


def earlier_rows(output: Path, model: str) -> list[BenchRow]:
    """The rows of an earlier part of a result; none if there is no such file.

    Raises:
        UserError: the file is no result, or was measured with another model or other code, or on another machine.
    """
    if not output.exists():
        return []
    machine = describe_machine()
    try:
        earlier = json.loads(output.read_text(encoding="utf-8"))
        found = {**earlier["machine"], "model": earlier["settings"]["model"]}
        rows = list(map(BenchRow.read, earlier["rows"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"--add: {output} is no result of a benchmark") from error
    for name, now in (*((name, machine[name]) for name in ("chip", "instructions", "packages")), ("model", model),
                      ("commit", machine["commit"])):
        # a result that is committed makes its own checkout differ
        if str(found.get(name)).rstrip("+") != str(now).rstrip("+"):
            raise UserError(f"--add: {output} was measured with a different {name}; name another file with -o")
    return rows


def joined_rows(earlier: Sequence[BenchRow], rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The earlier rows that were not measured again, then ``rows``."""
    again = [(row.competitor, row.what, dict(row.settings)) for row in rows]
    return [*(row for row in earlier if (row.competitor, row.what, row.settings) not in again), *rows]


def model_name(options: argparse.Namespace) -> str:
    return Path(options.bundle or getattr(options, "checkpoints", None) or "demo").name
