"""Provide the code that all benchmarks share: options, competitors, and output of results as a table and as JSON.

A competitor is an engine that a benchmark measures. ``upstream`` is the unchanged package of upstream, in a separate
environment (``upstream.txt``). ``torch``, ``onnx``, ``coreml`` and ``mil`` are engines of this package, as `ane say
--backend` runs them.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ane.backends import load_backend
from ane.backends.base import Backend
from ane.bench.records import BenchRow, describe_machine, document
from ane.bundles import Bundle, open_model
from ane.bundles.opening import DEMO
from ane.commands.arguments import comma_separated, positive
from ane.commands.messages import print_rows
from ane.system.errors import UserError
from ane.system.files import write_json
from ane.system.machine import processor_name, usable_cores
from benchmarks.imports import imported

RESULTS = Path(__file__).parent / "results"
ENGINES = ("upstream", "torch", "onnx", "coreml", "mil")


@dataclass(frozen=True)
class BenchmarkResult:
    """The measurements of a benchmark.

    Attributes:
        rows: Rows of the table.
        settings: Settings that are the same for all rows.
        notes: Lines that are printed below the table.
        more: Additional keys of the JSON document.
    """

    rows: Sequence[BenchRow]
    settings: Mapping[str, Any]
    notes: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, which ``python -m benchmarks NAME`` runs.

    Attributes:
        measure: Function that runs the benchmark.
        help: Help text of the subcommand.
        add_options: Function that adds the benchmark's own options to the shared options.
        quick: Options of a short run that shows that the benchmark works. ``None`` means that there is no such run,
            because the benchmark fetches packages.
        uses: Shared options that the benchmark takes: "bundle", "checkpoints", "threads", "precision", "competitors",
            "rounds".
    """

    measure: Callable[[argparse.Namespace], BenchmarkResult]
    help: str
    add_options: Callable[[Callable[..., Any]], None] = lambda add: None
    quick: str | None = ""
    uses: Sequence[str] = ("bundle", "checkpoints", "threads", "precision", "competitors", "rounds")


def add_shared_options(parser: argparse.ArgumentParser, uses: Sequence[str]) -> None:
    add = parser.add_argument
    # argparse cannot show the help of a group without options
    source = parser.add_mutually_exclusive_group() if {"bundle", "checkpoints"} & set(uses) else parser
    if "bundle" in uses:
        source.add_argument("--bundle", metavar="NAME|PATH", help="bundle to measure (default: demo, a Tortoise)")
    if "checkpoints" in uses:
        source.add_argument(
            "--checkpoints",
            type=Path,
            metavar="DIR",
            help="folder of official .pth files to measure. upstream reads them, and ane imports them into DIR.bundle",
        )
    if "competitors" in uses:
        add(
            "--competitors",
            type=comma_separated,
            metavar="NAME,…",
            help=f"engines to compare, from {', '.join(ENGINES)}. torch:cuda also names a device (default: torch, onnx "
            "if the bundle has ONNX packages, and upstream if you give --upstream-python)",
        )
        add(
            "--upstream-python",
            type=Path,
            metavar="PATH",
            help="Python interpreter of upstream's environment (docs/benchmarks.md)",
        )
    if "precision" in uses:
        add(
            "--precision",
            type=comma_separated,
            default=["auto"],
            metavar="P,…",
            help="precisions to measure every competitor in, except upstream (default: auto)",
        )
    if "threads" in uses:
        add("--threads", type=positive, default=usable_cores(), metavar="N", help="CPU threads (default: all cores)")
    if "rounds" in uses:
        add("--rounds", type=positive, default=3, metavar="N", help="number of readings of each figure (default: 3)")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.json",
        help="JSON file to write (default: a file with the date in benchmarks/results/)",
    )


def run_benchmark(name: str, benchmark: Benchmark, options: argparse.Namespace) -> Path:
    """Run a benchmark, print its table, and write its JSON document. Return the path of the document."""
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


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Run ``count`` other programs until the block, or this process, ends. Each keeps one core busy."""
    program = f"import os\nwhile os.getppid() == {os.getpid()}:\n for _ in range(10**7): pass"
    programs = [subprocess.Popen([sys.executable, "-c", program], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def model_name(options: argparse.Namespace) -> str:
    return Path(options.bundle or getattr(options, "checkpoints", None) or "demo").name


@dataclass(frozen=True)
class Competitor:
    """An engine on a device, in a precision.

    Attributes:
        spec: The engine as for ``--backend``, such as "torch:cpu", or "upstream".
        precision: Precision, as for ``--precision``.
    """

    spec: str
    precision: str

    @property
    def engine(self) -> str:
        return self.spec.partition(":")[0]

    @property
    def name(self) -> str:
        return self.spec if self.precision == "auto" else f"{self.spec} {self.precision}"

    def backend(self, model: Bundle, threads: int) -> Backend:
        """Load the backend. Raises UserError if the engine lacks the precision, or the model lacks its packages."""
        return load_backend(self.spec, model, self.precision, threads, keep=True)


def chosen_competitors(options: argparse.Namespace) -> tuple[Bundle, list[Competitor]]:
    """Open the model, and return it with one competitor per engine and precision. upstream runs only in fp32.

    Raises:
        UserError: An engine is unknown, or upstream is requested without its interpreter or without official files.
    """
    model = imported(options.checkpoints) if options.checkpoints else open_model(options.bundle or DEMO)
    names = options.competitors or [
        *(["upstream"] if options.upstream_python else []),
        "torch",
        *(["onnx"] if model.onnx_packages else []),
    ]
    check_names("--competitors", names, ENGINES, lambda name: name.partition(":")[0])
    if "upstream" in names and not (options.upstream_python and options.checkpoints):
        raise UserError("upstream reads only official files: add --upstream-python and --checkpoints")
    return model, [
        Competitor(name if ":" in name or name not in ("torch", "onnx") else f"{name}:cpu", precision)
        for name in names
        for precision in (["fp32"] if name == "upstream" else options.precision)
    ]


def check_names(flag: str, names: Sequence[str], known: Iterable[str], key: Callable[[str], str] = str) -> None:
    """Raise UserError if ``key`` of a name is not in ``known``. ``flag`` is the flag that the message names."""
    for name in names:
        if key(name) not in known:
            raise UserError(f"{flag} {name}: choose from {', '.join(known)}")
