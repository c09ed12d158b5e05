"""``ane verify --package``: run a function of any Core ML package on arrays of a file, and compare its outputs."""

import argparse
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ane.commands.messages import notice, output_console
from ane.commands.tables import plain_table
from ane.commands.verify_report import by_loss, decibels, summary
from ane.system.errors import UserError
from ane.system.files import check_output_file, replacing, write_json

if TYPE_CHECKING:       # torch is imported in the handler, so that --help is quick
    from collections.abc import Sequence

    from converters.proof.package_run import PackageRun, RunValue

BUNDLE_FLAGS = ("bundle", "networks", "tolerance", "repair")       # without effect on a single package


def verify_package(args: argparse.Namespace) -> int:
    """Run, print, write. Raises UserError when an output is below the threshold, after everything is written."""
    from converters.proof.comparison import tensor_dump
    from converters.proof.package_run import THRESHOLD, read_arrays, run_package
    from converters.proof.verify import RUNNERS, package_runner

    for flag in BUNDLE_FLAGS:
        if getattr(args, flag):
            raise UserError(f"--{flag} has no effect with --package: it is for bundles")
    if args.against not in RUNNERS:
        raise UserError(f"--against {args.against} runs ONNX packages, and --package is a Core ML package")
    if not args.inputs:
        raise UserError(f"--package needs --inputs FILE.npz: {signature(args)}")
    if args.threshold is not None and not args.expect:
        raise UserError("--threshold has no effect without --expect")
    if args.output:
        if args.output.suffix != ".npz":
            raise UserError(f"--output {args.output}: the file must end in .npz")
        check_output_file(args.output)
    expected = read_arrays(args.expect) if args.expect else {}
    calls = [read_arrays(path) for path in args.inputs]
    runner = package_runner(args.against, args.narrow_norms, args.compute_units, notice)
    with tensor_dump(args.dump) if args.dump else nullcontext() as dump:
        run = run_package(args.package, args.function, runner, calls, expected, args.layers, dump)
    if args.output:
        write_arrays(args, run)
    if args.json:
        write_json(args.json, run_json(args, run, runner.name))
    if args.json != "-":
        print_run(run, runner.name)
    check_threshold(run, THRESHOLD if args.threshold is None else args.threshold)
    return 0


def signature(args: argparse.Namespace) -> str:
    """What the function takes and returns, for the message that inputs are missing."""
    from ane.backends.mil.package import Package

    function = Package(args.package).function(args.function)
    parts = (("takes", function.inputs), ("has the state", function.states), ("returns", function.outputs))
    return f"function {function.name!r} " + "; ".join(
        f"{verb} " + ", ".join(f"{name} {type}" for name, type in types.items()) for verb, types in parts if types)


def write_arrays(args: argparse.Namespace, run: "PackageRun") -> None:
    import numpy as np

    with replacing(args.output) as temporary, temporary.open("wb") as file:
        np.savez(file, **run.outputs)


def run_json(args: argparse.Namespace, run: "PackageRun", runner: str) -> dict[str, Any]:
    return {"package": str(args.package), "function": run.function, "against": runner,
            "values": [asdict(value) for value in run.values], "layers": [asdict(value) for value in run.layers],
            "operations": [asdict(value) for value in run.operations]}


def print_run(run: "PackageRun", runner: str) -> None:
    console = output_console()
    console.print(value_table(f"{run.function} on {runner}", run.values))
    if run.layers:
        console.print(value_table("Inside, in program order", run.layers))
    if run.operations:
        table = plain_table("Compared with the interpreter in float32, most loss first", "value", "operation", "dB",
                            "dB lost", numbers=(2, 3))
        for value in by_loss(run.operations):
            table.add_row(value.name, value.op, decibels(value.snr), decibels(value.lost))
        console.print(table)


def value_table(title: str, values: "Sequence[RunValue]") -> Table:
    table = plain_table(title, "value", "operation", "shape", "mean", "smallest", "largest", "dB", "largest error",
                        numbers=(4, 5, 6, 7))
    for value in values:
        compared = value.compared
        table.add_row(value.name, value.op or "–", " × ".join(map(str, value.shape)) or "1", summary(value.summary),
                      f"{value.summary.smallest:.3g}", f"{value.summary.largest:.3g}",
                      decibels(compared and compared.snr), f"{compared.error:.1e}" if compared else "–",
                      style=None if value.finite else "red")
    return table


def check_threshold(run: "PackageRun", threshold: float) -> None:
    """Raise UserError that names the first value below the threshold, in program order."""
    compared = {value.name: value.compared for value in (*run.layers, *run.values)}     # an output is also inside
    values = [value for value in compared.values() if value]
    below = [value for value in values if value.snr < threshold]
    if below:
        first = below[0]
        name = f"{first.op} {first.name}" if first.op else first.name
        raise UserError(f"{len(below)} of {len(values)} values are below {threshold:g} dB; the first is {name}: "
                        f"{first.snr:.1f} dB, largest error {first.error:.1e}")
