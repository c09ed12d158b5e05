"""Run `ane verify` on a bundle: compare its packages with its networks on torch, and print the results.

The comparison goes function by function, and value by value inside functions. The output starts with one sentence per
network, followed by tables that fit 100 columns.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ane.backends import NAMES
from ane.commands.messages import decibels, exponent, message_console, output_console, plain_table, status_display
from ane.commands.packages import with_packages
from ane.system.errors import UserError
from ane.system.files import write_json

if TYPE_CHECKING:  # torch is imported in the handler, so that --help is quick
    from ane.bundles.bundle import Bundle
    from converters.proof.elements import ComparedValue, LayerComparison
    from converters.proof.verify import FunctionCheck, Runner

CORE_ML_RUNNERS = ("mil", "mil:fp16", "mil:flush", "coreml", "coreai")
ONNX_RUNNERS = tuple(name for name in NAMES if name.startswith("onnx"))


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
    """Open a bundle by name or path. To verify Core ML packages of the embedded bundle, open its cached copy."""
    from ane.bundles.opening import DEMO, find_bundle, is_embedded, open_model
    from converters.proof.verify import UnverifiedBundle

    folder = find_bundle(args.bundle or DEMO)
    if is_embedded(folder) and args.against in CORE_ML_RUNNERS:
        folder = with_packages(open_model(args.bundle or DEMO), "mil", console).path
    return UnverifiedBundle(folder)


def raise_failures(results: "Sequence[FunctionCheck]") -> None:
    """Raise UserError if a package's function failed. The message has the number of failures and the first failure."""
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


WIDTH = 100
COLUMNS = """\
dB: signal-to-noise ratio of a function's outputs, for the inputs of `ane convert`. threshold: the dB that `ane \
convert` requires for this kind of function in this precision (in the table FUNCTIONS of the model's module, such as \
converters/tortoise/tortoise_functions.py), or a little less than the dB that it recorded, if that is more. On Core \
ML the threshold is 12 dB lower, but at least 36. largest error: the largest absolute difference."""


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
    """Return a table with one row per function of a package.

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
