"""Run ``ane verify``: compare a bundle's packages with its networks on torch, or run one package of any origin.

The comparison goes function by function, and value by value inside functions. The output starts with one sentence per
network, followed by tables that fit 100 columns.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ane.backends import NAMES
from ane.bundles.package_records import COMPUTE_UNITS
from ane.commands import arguments
from ane.commands.defaults import left_out
from ane.commands.file_flags import check_files
from ane.commands.messages import message_console, output_console, plain_table, status_display
from ane.commands.packages import with_packages
from ane.system.errors import UserError
from ane.system.files import check_output_file, replacing, write_json

if TYPE_CHECKING:  # torch is imported in the handler, so that --help is quick
    from ane.bundles.bundle import Bundle
    from converters.proof.activations import ComparedValue
    from converters.proof.elements import LayerComparison
    from converters.proof.package_run import PackageRun, RunValue
    from converters.proof.verify import FunctionCheck, Runner


CORE_ML_RUNNERS = ("mil", "mil:fp16", "mil:flush", "coreml", "coreai")
BUNDLE_FLAGS = ("bundle", "networks", "tolerance", "show", "dump")
PACKAGE_FLAGS = ("inputs", "expect", "threshold", "output")
ONNX_RUNNERS = tuple(name for name in NAMES if name.startswith("onnx"))
DESCRIPTION = """
Compare the Core ML or ONNX packages of a bundle with its networks on float32 torch. Each function gets the same inputs
as in `ane convert`. The exit status is 1 if a function is below its threshold.

--layers also compares every value that a module of the network returns, and names the first value that drifts. It
converts each function of a Core ML package again, and names the first operation that differs. With --against coreml it
searches only functions that fail, and compares them with the interpreter, because looking inside compiles models.

With --package it runs a function of any Core ML package on the arrays of --inputs, on any machine. The package may come
from another program.
"""


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "verify", help="compare packages with the PyTorch reference", description=DESCRIPTION
    )
    parser.add_argument("--bundle", metavar="NAME|PATH", help="bundle to verify (default: the embedded demo)")
    parser.add_argument(
        "--package",
        metavar="FILE.mlpackage",
        type=arguments.path,
        help="package of any model, to run on --inputs instead of verifying a bundle",
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE.npz",
        type=arguments.path,
        nargs="+",
        help="with --package: file with the inputs by name. Several files are successive calls on one state",
    )
    parser.add_argument(
        "--expect",
        metavar="FILE.npz",
        type=arguments.path,
        help="with --package: file with the expected outputs of the last call. With --layers it may also have values "
        "inside the function, by name",
    )
    parser.add_argument(
        "--threshold", metavar="DB", type=float, help="with --expect: dB that every array must reach (default: 40)"
    )
    parser.add_argument(
        "--output",
        metavar="FILE.npz",
        type=arguments.path,
        help="with --package: file to write with the outputs and states after the last call",
    )
    parser.add_argument(
        "--networks",
        type=arguments.comma_separated,
        metavar="NETWORK,…",
        help="verify only the packages of these networks, such as diffusion",
    )
    parser.add_argument("--function", metavar="NAME", help="verify only this function, such as step_16_4928")
    parser.add_argument(
        "--against",
        choices=(*CORE_ML_RUNNERS, *ONNX_RUNNERS),
        default="mil",
        help="engine that runs the packages. mil: the interpreter in float32 (default). mil:fp16: with the rounding of "
        "fp16. mil:flush: with numbers below 6e-5 as 0 too, as on an M1. coreml: Core ML on a Mac. coreai: Apple's "
        "Core AI. onnx, onnx:cuda and so on: ONNX Runtime, for ONNX packages",
    )
    parser.add_argument(
        "--compute-units",
        choices=COMPUTE_UNITS,
        metavar="UNITS",
        help=f"with coreml: processors to run on: {', '.join(COMPUTE_UNITS)} (default: the bundle's choice)",
    )
    parser.add_argument("--layers", action="store_true", help="compare the values inside functions too")
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="X",
        help="with --layers: largest absolute error of an element that is not counted (default: 1e-4)",
    )
    parser.add_argument(
        "--show",
        action="store_true",
        help="with --layers: print elements of each value, starting at its largest error, from both sides, and their "
        "difference",
    )
    parser.add_argument(
        "--dump",
        metavar="FILE.npz",
        type=arguments.path,
        help="with --layers: file to write with both sides of every value",
    )
    parser.add_argument("--json", metavar="FILE", help="JSON file to write with the results. '-' is standard output")
    parser.set_defaults(handler=verify_command)


def verify_command(args: argparse.Namespace) -> int:
    """Verify a bundle or run a package, and report. Raises UserError if a function fails, after the report."""
    for flag in BUNDLE_FLAGS if args.package else PACKAGE_FLAGS:
        where = f"{'with' if args.package else 'without'} --package"
        if getattr(args, flag) and not left_out(args, flag, where):
            raise UserError(f"--{flag} has no effect {where}")
    for flag in ("tolerance", "show", "dump"):
        if getattr(args, flag) and not args.layers:
            raise UserError(f"--{flag} has no effect without --layers")
    if args.tolerance is not None and not args.tolerance >= 0:
        raise UserError(f"--tolerance must be at least 0, got {args.tolerance:g}")
    check_files(
        args,
        {"output": args.output, "json": args.json, "dump": args.dump},
        ("package", "inputs", "expect"),
        models=("bundle",),
    )
    for flag in ("output", "dump"):
        if file := getattr(args, flag):
            if file.suffix != ".npz":
                raise UserError(f"--{flag} {file}: the file must end in .npz")
            check_output_file(file)
    if args.json:
        check_output_file(args.json)
    return verify_package(args) if args.package else verify_bundle(args)


def verify_bundle(args: argparse.Namespace) -> int:
    from converters.proof.elements import TOLERANCE, LayerComparison, write_arrays
    from converters.proof.verify import choose_packages, runner_named, verify

    runner = runner_named(args.against, args.compute_units)
    console = message_console(args)
    model = open_bundle(args, console)
    chosen = choose_packages(model, args.networks, args.function, "onnx" if args.against in ONNX_RUNNERS else "coreml")
    layers = (
        LayerComparison(TOLERANCE if args.tolerance is None else args.tolerance, {} if args.show or args.dump else None)
        if args.layers
        else None
    )
    with status_display(console, "verifying") as show:
        results = verify(model, chosen, runner, layers, show)
    if layers and args.dump:
        write_arrays(layers.kept or {}, args.dump)
    if args.json:
        write_json(args.json, results_json(model, runner, results))
    if args.json != "-":
        print_results(output_console(), results, runner, layers, args.show)
    raise_failures(results)
    return 0


def open_bundle(args: argparse.Namespace, console: Console) -> "Bundle":
    """Open a bundle by name or path. For Core ML packages of the embedded bundle, open its cached copy."""
    from ane.bundles.opening import DEMO, find_bundle, is_embedded, open_model
    from converters.proof.verify import UnverifiedBundle

    folder = find_bundle(args.bundle or DEMO)
    if is_embedded(folder) and args.against in CORE_ML_RUNNERS:
        folder = with_packages(open_model(args.bundle or DEMO), "mil", console).path
    return UnverifiedBundle(folder)


def raise_failures(results: "Sequence[FunctionCheck]") -> None:
    """Raise UserError if a function failed. The message has the number of failures and the first one."""
    failed = [result for result in results if not result.passed]
    if not failed:
        return
    first = failed[0]
    if first.snr is None:
        problem = first.problem
    else:
        value, cause = first.difference or first.drift, ""
        if value:
            cause = (
                f", starting at the operation {value.op} {value.name}"
                if first.difference
                else f", drifting since {label(value)}"
            )
        problem = f"{first.snr} dB, below the threshold of {first.required:g}{cause}"
    count = f"{len(failed)} of {len(results)} functions failed" if len(results) > 1 else "it failed"
    raise UserError(f"{count}: {first.package}, {first.function}: {problem}")


# One package


def verify_package(args: argparse.Namespace) -> int:
    """Run a function on arrays from files. Raises UserError if an output is below the threshold, after the report."""
    import numpy as np

    from converters.proof.package_run import THRESHOLD, read_arrays, run_package
    from converters.proof.verify import runner_named

    if args.against in ONNX_RUNNERS:
        raise UserError(f"--against {args.against} runs ONNX packages, but --package is a Core ML package: use mil")
    if not args.inputs:
        raise UserError(f"--package needs --inputs FILE.npz: {signature(args)}")
    if args.threshold is not None and not args.expect:
        raise UserError("--threshold has no effect without --expect")
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
    """Describe the inputs, states and outputs of a function, for the message about missing inputs."""
    from ane.backends.mil.package import Package

    function = Package(args.package).function(args.function)
    parts = (("takes", function.inputs), ("has the state", function.states), ("returns", function.outputs))
    return f"function {function.name!r} " + "; ".join(
        f"{verb} " + ", ".join(f"{name} {type}" for name, type in types.items()) for verb, types in parts if types
    )


def check_threshold(run: "PackageRun", threshold: float) -> None:
    """Raise UserError if a value is below the threshold. The message names the first one in program order."""
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


WIDTH = 100
COLUMNS = """\
dB: signal-to-noise ratio of a function's outputs, for the inputs of `ane convert`. threshold: the dB that `ane \
convert` requires for this kind of function in this precision (the table FUNCTIONS of converters/*/*_functions.py), or \
a little less than the dB that it recorded, if that is more. On Core ML the threshold is 12 dB lower, but at least 36. \
largest error: the largest absolute difference."""


def results_json(model: "Bundle", runner: "Runner", results: "Sequence[FunctionCheck]") -> dict[str, Any]:
    functions = [
        asdict(one)
        | {
            "required": one.required,
            "passed": one.passed,
            "drift": one.drift and one.drift.name,
            "worst": one.worst and one.worst.name,
        }
        for one in results
    ]
    return {"bundle": str(model.path), "against": runner.name, "functions": functions}


def print_results(
    console: Console, results: "Sequence[FunctionCheck]", runner: "Runner", layers: "LayerComparison | None", show: bool
) -> None:
    from converters.function_table import speech_lines

    narrow = min(console.width, WIDTH)
    for network in dict.fromkeys(one.network for one in results):
        console.print(
            f"{network}: {summary([one for one in results if one.network == network])}", width=narrow, soft_wrap=False
        )
    console.print(function_table(results, runner), width=narrow)
    console.print(COLUMNS, width=narrow, soft_wrap=False)
    for line in (
        ()
        if runner.name.startswith("onnx")
        else speech_lines(one.package.rpartition("-")[2] for one in results if one.network == "autoregressive")
    ):
        console.print(line, width=narrow, soft_wrap=False)
    if not layers:
        return
    if len(results) > 1:
        console.print(layer_table(results))
    for one in results if show or len(results) == 1 or runner.name.startswith("onnx") else ():
        if one.values:
            console.print(
                f"{one.package}, {one.function}: {element_summary(one, layers)}", width=narrow, soft_wrap=False
            )
            console.print(value_table(one, layers, show))
        if one.difference:
            console.print(f"The first operation that differs: {operation(one.difference)}.")
    if len(results) > 1 and not show:
        console.print("To see every value of a function, add --function NAME or --json.")
    if not all(one.values for one in results):
        console.print("A function that fails, or that has a state on Core ML, has no values to show.")


def summary(results: "Sequence[FunctionCheck]") -> str:
    """Return a sentence about the functions of a network: how many pass, and which is nearest to its threshold."""
    failed = [one.function for one in results if not one.passed]
    count = (
        f"{len(failed)} of {len(results)} functions fail ({', '.join(failed[:3])}{', …' * (len(failed) > 3)})"
        if failed
        else f"all {len(results)} functions pass"
        if len(results) > 1
        else "its function passes"
    )
    measured = [(one.snr - one.required, one) for one in results if one.snr is not None]
    if not measured:
        return f"{count}."
    margin, worst = min(measured, key=lambda item: item[0])
    return (
        f"{count}. {worst.function} is nearest to its threshold, {abs(margin):.1f} dB "
        f"{'above' if margin >= 0 else 'below'} it."
    )


def function_table(results: "Sequence[FunctionCheck]", runner: "Runner") -> Table:
    table = plain_table(
        f"On {runner.name}, compared with float32 torch",
        "package",
        "function",
        "dB",
        "threshold",
        "largest error",
        "",
        numbers=(2, 3, 4),
    )
    for one in results:
        verdict = one.problem or ("passes" if one.passed else "fails")
        table.add_row(
            one.package,
            one.function,
            decibels(one.snr),
            f"{one.required:.1f}",
            exponent(one.error),
            verdict,
            style="red" if not one.passed else "yellow" if one.problem else None,
        )
    return table


def layer_table(results: "Sequence[FunctionCheck]") -> Table:
    """Return a table with one row per function.

    A row has the worst value, the first value that drifts (``FunctionCheck.drift``), and the first operation that
    differs in a new conversion.
    """
    table = plain_table(
        "Inside",
        "package",
        "function",
        "values",
        "worst",
        "dB",
        "first that drifts",
        "dB",
        "first that differs",
        numbers=(2, 4, 6),
    )
    for one in results:
        table.add_row(
            one.package,
            one.function,
            str(len(one.values)),
            label(one.worst),
            decibels(one.worst and one.worst.snr),
            label(one.drift) if one.drift else "none",
            decibels(one.drift and one.drift.snr),
            operation(one.difference),
            style="red" if one.drift or one.difference else None,
        )
    return table


def element_summary(one: "FunctionCheck", layers: "LayerComparison") -> str:
    """Return a sentence about the first value that drifts and the elements of all values."""
    first = f"{label(one.drift)} drifts first; " if one.drift else "no value drifts; "
    same, outside = (sum(getattr(value, name) for value in one.values) for name in ("identical", "outside"))
    return (
        f"{first}of {len(one.values)} values {same} are identical; {outside} of "
        f"{sum(value.count for value in one.values)} elements are beyond {layers.tolerance:g}; largest error "
        f"{exponent(max(value.error for value in one.values))}."
    )


def value_table(one: "FunctionCheck", layers: "LayerComparison", show: bool) -> Table:
    """Return a table with one row per value that a module of the network returns, in program order.

    Args:
        show: Whether to add an excerpt of the elements below each row.
    """
    table = plain_table(
        f"{one.function}: values compared with the modules that return them",
        "value",
        "operation",
        "dB",
        "scale",
        "largest error",
        f"beyond {layers.tolerance:g}",
        "identical",
        "",
        numbers=(2, 3, 4, 5),
    )
    inside = layers.within(f"{one.package}/{one.function}")
    for value in one.values:
        marks = [word for word, marked in (("drifts first", one.drift), ("worst", one.worst)) if value is marked]
        table.add_row(
            label(value),
            value.op,
            decibels(value.snr),
            f"{value.factor:g}",
            exponent(value.error),
            f"{value.outside} of {value.count}",
            "yes" if value.identical else "no",
            ", ".join(marks),
            style="red" if value is one.drift else "yellow" if value is one.worst else None,
        )
        for line in inside.excerpt(value.module or value.name) if show else ():
            table.add_row(f"  {line}")
    return table


def label(value: "ComparedValue | None") -> str:
    return "–" if value is None else value.published or value.module or value.name


def operation(value: "ComparedValue | None") -> str:
    return "–" if value is None else f"{value.op} {value.name}"


def decibels(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def exponent(error: float | None) -> str:
    return "–" if error is None else f"{error:.1e}"


# One package


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
