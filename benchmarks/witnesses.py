"""Compare every function of a bundle's Core ML packages with the PyTorch network, as dB of signal to error.

Two runtimes are compared: the interpreter and, if it is installed, Apple's Core AI in float32. The figures of the
interpreter are those that the conversion recorded: in float32, with the rounding of fp16, and with small numbers
replaced by 0, as on an M1. Next to each figure is the threshold that a function must reach.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from ane.bench.records import BenchRow, Spread
from ane.bundles import open_model
from ane.bundles.opening import DEMO, is_embedded
from ane.commands.packages import cached_packages
from benchmarks.harness import Benchmark, BenchmarkResult, model_name
from converters.proof.parity import FLUSHED, MATHS, ROUNDING, threshold_of
from converters.proof.verify import choose_packages, runner_named, verify


def measure(options: argparse.Namespace) -> BenchmarkResult:
    model = open_model(options.bundle or DEMO)
    model = cached_packages(model, Console(stderr=True)) if is_embedded(model.path) else model
    by_function: dict[tuple[str, str], dict[str, float | None]] = {
        (Path(package.path).stem, name): {
            f"{what} {short}": value
            for key, short in ((MATHS, "fp32"), (ROUNDING, "fp16"), (FLUSHED, "flushed"))
            if key in function.parity
            for what, value in (("interpreter", function.parity[key]), ("threshold", threshold_of(package, name, key)))
        }
        for package in model.packages
        for name, function in package.functions.items()
    }
    if find_spec("coreai"):
        for check in verify(model, choose_packages(model), runner_named("coreai"), progress=print):
            by_function[check.package, check.function]["Core AI fp32"] = check.snr
    rows = [
        BenchRow(
            "interpreter fp16",
            name,
            "dB",
            {"package": package},
            Spread.of([figures["interpreter fp16"]]) if "interpreter fp16" in figures else None,
            figures,
        )
        for (package, name), figures in by_function.items()
    ]
    return BenchmarkResult(rows, {"model": model_name(options)}, more={"tables": [table(by_function)]})


def table(by_function: dict[tuple[str, str], dict[str, float | None]]) -> dict[str, Any]:
    """Make the table that ``docs/generate.py`` writes into the documentation."""
    columns = dict.fromkeys(name for figures in by_function.values() for name in figures)
    return {
        "columns": ["package", "function", *columns],
        "rows": [
            [*names, *("–" if figures.get(column) is None else f"{figures[column]:.1f}" for column in columns)]
            for names, figures in by_function.items()
        ],
    }


BENCHMARK = Benchmark(measure, "exactness of each function on each runtime, in dB", quick=None, uses=("bundle",))
