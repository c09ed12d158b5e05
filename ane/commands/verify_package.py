"""Run `ane verify --package`: call a function of one Core ML package, from any program, on the user's arrays."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ane.commands.messages import decibels, exponent, output_console, plain_table
from ane.system.errors import NoEffectError, UserError
from ane.system.files import replacing, write_json

if TYPE_CHECKING:  # torch is imported in the handler, so that --help is quick
    from converters.proof.package_run import PackageRun, RunValue


def verify_package(args: argparse.Namespace) -> int:
    """Run a package's function on arrays from files, and print a report.

    Then raise UserError if an output is below the threshold.
    """
    import numpy as np

    from converters.proof.package_run import THRESHOLD, read_arrays, run_package
    from converters.proof.verify import runner_named

    if args.against.startswith("onnx"):
        raise UserError(f"--against {args.against} runs ONNX packages, but --package is a Core ML package: use mil")
    if not args.inputs:
        raise UserError(f"--package needs --inputs FILE.npz: {signature(args)}")
    if args.threshold is not None and not args.expect:
        raise NoEffectError("threshold", "without --expect")
    expected = read_arrays(args.expect) if args.expect else {}
    calls = [read_arrays(path) for path in args.inputs]
    runner = runner_named(args.against, args.compute_units)
    run = run_package(args.package, args.function, runner, calls, expected, args.layers)
    if args.output:
        with replacing(args.output) as temporary, temporary.open("wb") as file:
            np.savez(file, **run.outputs)
    if args.json:
        write_json(args.json, run_json(args.package, run, runner.name))
    if args.json != "-":
        print_run(output_console(), run, runner.name)
    check_threshold(run, THRESHOLD if args.threshold is None else args.threshold)
    return 0


def signature(args: argparse.Namespace) -> str:
    """Describe the inputs, states and outputs of a package's function, for the message about missing inputs."""
    from ane.backends.mil.package import Package

    function = Package(args.package).function(args.function)
    parts = (("takes", function.inputs), ("has the state", function.states), ("returns", function.outputs))
    return f"function {function.name!r} " + "; ".join(
        f"{verb} " + ", ".join(f"{name} {type}" for name, type in types.items()) for verb, types in parts if types
    )


def check_threshold(run: "PackageRun", threshold: float) -> None:
    """Raise UserError if a value is below the threshold. The message names the first such value in program order."""
    compared = {value.name: value.compared for value in (*run.layers, *run.values)}  # layers include the outputs
    values = [value for value in compared.values() if value]
    below = [value for value in values if value.snr < threshold]
    if below:
        first = below[0]
        name = f"{first.op} {first.name}" if first.op else first.name
        raise UserError(
            f"{len(below)} of {len(values)} values are below {threshold:g} dB. The first is {name}: "
            f"{first.snr:.1f} dB, largest error {first.error:.1e}"
        )


def run_json(package: Path, run: "PackageRun", runner: str) -> dict[str, Any]:
    return {
        "package": str(package),
        "function": run.function,
        "against": runner,
        "values": [asdict(value) for value in run.values],
        "layers": [asdict(value) for value in run.layers],
    }


def print_run(console: Console, run: "PackageRun", runner: str) -> None:
    console.print(run_table(f"{run.function} on {runner}", run.values))
    if run.layers:
        console.print(run_table("Inside, in program order", run.layers))


def run_table(title: str, values: "Sequence[RunValue]") -> Table:
    table = plain_table(
        title, "value", "operation", "shape", "mean", "smallest", "largest", "dB", "largest error", numbers=(4, 5, 6, 7)
    )
    for value in values:
        compared = value.compared
        table.add_row(
            value.name,
            value.op or "–",
            " × ".join(map(str, value.shape)) or "1",
            f"{value.mean:.3g} ± {value.deviation:.3g}",
            f"{value.smallest:.3g}",
            f"{value.largest:.3g}",
            decibels(compared and compared.snr),
            exponent(compared and compared.error),
            style=None if value.finite else "red",
        )
    return table
