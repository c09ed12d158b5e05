"""Every function of a bundle's Core ML packages, run by three witnesses of its graph.

The reference is the PyTorch network in float32. Two runtimes that share no code compute the saved program: the
interpreter (its parity was recorded at conversion) and Apple's Core AI, in float32 and, for the smallest function of
each kind, in fp16. Values are signal-to-noise ratios in dB against the reference, with the inputs of `ane verify`.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ane.backends.coreai.assets import coreai_version
from ane.bench.records import BenchRow, Spread
from ane.bundles import open_model
from ane.bundles.packages import PackageRecord
from ane.commands.packages import with_packages
from benchmarks.harness import Benchmark, BenchmarkResult, model_name
from converters.proof.verify import UnverifiedBundle, choose_packages, package_runner, smallest_functions, verify

Check = Mapping[str, Any]       # a function of the JSON of `ane verify`


def measure(options: argparse.Namespace) -> BenchmarkResult:
    model = UnverifiedBundle(with_packages(open_model(options.bundle), "coreai", Console(stderr=True)).path)
    chosen = choose_packages(model, function=options.function)
    smallest = [(package, [name for name in names if name in smallest_functions(package)])
                for package, names in chosen]
    exact = verify(model, chosen, package_runner("coreai"))
    rounded = verify(model, smallest, package_runner("coreai:fp16"))
    packages = {Path(package.path).stem: package for package, _ in chosen}
    return result([vars(one) for one in exact], [vars(one) for one in rounded], packages, model_name(options))


def result(exact: Sequence[Check], rounded: Sequence[Check], packages: Mapping[str, PackageRecord],
           model: str) -> BenchmarkResult:
    """``exact``, ``rounded``: the checks on Core AI in float32 and in fp16. ``packages``: by name."""
    fp16 = {(one["package"], one["function"]): one["snr"] for one in rounded}
    rows, cells = [], []
    for one in exact:
        parity = packages[one["package"]].functions[one["function"]].parity
        figures = {"interpreter fp32": parity.get("fp32 maths"), "interpreter fp16": parity.get("fp16 rounding"),
                   "Core AI fp16": fp16.get((one["package"], one["function"]))}
        rows.append(BenchRow("Core AI fp32", one["function"], "dB", {"package": one["package"]},
                             Spread.of([one["snr"]]), {key: value for key, value in figures.items() if value}))
        cells.append([one["package"], one["function"], *(decibels(figures[key]) for key in (
            "interpreter fp32", "interpreter fp16")), decibels(one["snr"]), decibels(figures["Core AI fp16"])])
    columns = ["package", "function", "interpreter fp32", "interpreter fp16", "Core AI fp32", "Core AI fp16"]
    return BenchmarkResult(rows, {"model": model}, more={"tables": [{"columns": columns, "rows": cells}]})


def decibels(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def unavailable(options: argparse.Namespace) -> str | None:
    return None if coreai_version() else "Core AI is not installed: pip install 'tortoise-ane[coreai]'"


def add_options(add: Callable[..., Any]) -> None:
    add("--function", metavar="NAME", help="only this one, such as step_1_512")


BENCHMARK = Benchmark(measure, "the three witnesses of each graph", add_options, "--function ar_random", unavailable,
                      uses=())
