"""The tables and the JSON of `ane verify`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ane.commands.messages import plain_table

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle
    from converters.proof.comparison import ComparedValue, TensorSummary
    from converters.proof.package_run import PackageRun, RunValue
    from converters.proof.verify import FunctionCheck, Runner

# of a value and its reference: mean ± standard deviation of both, mean and largest absolute error
ELEMENT_HEADINGS = ("torch", "package", "mean error", "largest error", "out of tolerance", "identical")
COSTLIEST = 12          # operations shown of those that lose most


def results_json(model: "Bundle", runner: "Runner", results: "Sequence[FunctionCheck]") -> dict[str, Any]:
    functions = [asdict(one) | {"required": one.required, "passed": one.passed, "drift": one.drift and one.drift.name,
                                "worst": one.worst and one.worst.name} for one in results]
    return {"bundle": str(model.path), "against": runner.name, "functions": functions}


def print_results(console: Console, results: "Sequence[FunctionCheck]", runner: "Runner", layers: bool) -> None:
    console.print(function_table(results, runner))
    if not layers:
        return
    if len(results) == 1:
        console.print(value_table(results[0]))
        print_published(console, results)
        if results[0].operations:
            console.print(loss_table(f"{results[0].function}: operations that lose most against float32",
                                     by_loss(results[0].operations)[:COSTLIEST]))
        if results[0].difference:
            console.print(f"The same function converted again differs from {operation(results[0].difference)} on.")
    else:
        console.print(layer_table(results))
        print_published(console, results)
        console.print("For every value of a function, name it with --function, or see --json.")
    if not all(one.values for one in results):
        console.print("A function that fails, or that has a state on Core ML, has no values to show.")


def function_table(results: "Sequence[FunctionCheck]", runner: "Runner") -> Table:
    table = plain_table(f"On {runner.name}, compared with float32 torch", "package", "function", "dB", "threshold",
                        "largest error", "", numbers=(2, 3, 4))
    for one in results:
        verdict = one.problem or ("passes" if one.passed else "fails")
        table.add_row(one.package, one.function, decibels(one.snr), f"{one.required:.1f}",
                      "–" if one.error is None else f"{one.error:.1e}", verdict,
                      style="red" if not one.passed else "yellow" if one.problem else None)
    return table


def layer_table(results: "Sequence[FunctionCheck]") -> Table:
    """One row per function: its worst value, the first that drifts (``FunctionCheck.drift``), the worst operation, and
    the first that a new conversion computes otherwise."""
    table = plain_table("Inside", "package", "function", "values", "worst", "dB", "first that drifts", "dB",
                        "operation that loses most", "dB lost", "differs if converted again", numbers=(2, 4, 6, 8))
    for one in results:
        costliest = by_loss(one.operations)[:1]
        cells = [label(one.worst), decibels(one.worst and one.worst.snr), label(one.drift) if one.drift else "none",
                 decibels(one.drift and one.drift.snr)]
        lost = [f"{costliest[0].op} {costliest[0].name}", decibels(costliest[0].lost)] if costliest else ["–", "–"]
        table.add_row(one.package, one.function, str(len(one.values)), *cells, *lost, operation(one.difference),
                      style="red" if one.drift or one.difference else None)
    return table


def value_table(one: "FunctionCheck") -> Table:
    """One row per value that a module of the network returns, in program order."""
    table = plain_table(f"{one.function}: values compared with the modules that return them", "module", "operation",
                        "dB", "scale", *ELEMENT_HEADINGS, "", numbers=(2, 3, 6, 7, 8))
    for value in one.values:
        marks = [word for word, marked in (("drifts first", one.drift), ("worst", one.worst)) if value is marked]
        table.add_row(label(value), value.op, decibels(value.snr), f"{value.factor:g}", *element_cells(value),
                      ", ".join(marks), style="red" if value is one.drift else "yellow" if value is one.worst else None)
    return table


def print_published(console: Console, results: "Sequence[FunctionCheck]") -> None:
    """The activations under the names that the model's authors give them, of one function of each package and kind."""
    shown: set[tuple[str, ...]] = set()
    for one in results:
        names = (one.package, *one.published)
        if one.published and names not in shown:
            shown.add(names)
            console.print(published_table(one))


def published_table(one: "FunctionCheck") -> Table:
    """One row per activation; of those without a value, why there is none."""
    table = plain_table(f"{one.package}, {one.function}: activations", "activation", "dB", *ELEMENT_HEADINGS,
                        numbers=(1, 4, 5, 6))
    values = {value.module: value for value in one.values}
    for name, module in one.published.items():
        if module in values:
            table.add_row(name, decibels(values[module].snr), *element_cells(values[module]))
        else:
            table.add_row(name, "–", module)
    return table


def element_cells(value: "ComparedValue") -> list[str]:
    """The cells under ``ELEMENT_HEADINGS``."""
    elements = value.elements
    if elements is None:
        return ["–"] * len(ELEMENT_HEADINGS)
    return [summary(elements.reference), summary(elements.package), f"{elements.mean_error:.1e}", f"{value.error:.1e}",
            f"{elements.outside} of {elements.count}", "yes" if elements.identical else "no"]


def summary(tensor: "TensorSummary") -> str:
    return f"{tensor.mean:.3g} ± {tensor.deviation:.3g}"


def loss_table(title: str, operations: "Sequence[ComparedValue]") -> Table:
    table = plain_table(title, "value", "operation", "dB", "dB lost", numbers=(2, 3))
    for value in operations:
        table.add_row(value.name, value.op, decibels(value.snr), decibels(value.lost))
    return table


def by_loss(operations: "Sequence[ComparedValue]") -> "list[ComparedValue]":
    return sorted(operations, key=lambda value: -(value.lost or 0))


def label(value: "ComparedValue | None") -> str:
    return "–" if value is None else value.module or value.name


def operation(value: "ComparedValue | None") -> str:
    return "–" if value is None else f"{value.op} {value.name}"


def decibels(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


# One package

def run_json(package: Path, run: "PackageRun", runner: str) -> dict[str, Any]:
    return {"package": str(package), "function": run.function, "against": runner,
            "values": [asdict(value) for value in run.values], "layers": [asdict(value) for value in run.layers],
            "operations": [asdict(value) for value in run.operations]}


def print_run(console: Console, run: "PackageRun", runner: str) -> None:
    console.print(run_table(f"{run.function} on {runner}", run.values))
    if run.layers:
        console.print(run_table("Inside, in program order", run.layers))
    if run.operations:
        console.print(loss_table("Compared with the interpreter in float32, most loss first", by_loss(run.operations)))


def run_table(title: str, values: "Sequence[RunValue]") -> Table:
    table = plain_table(title, "value", "operation", "shape", "mean", "smallest", "largest", "dB", "largest error",
                        numbers=(4, 5, 6, 7))
    for value in values:
        compared = value.compared
        table.add_row(value.name, value.op or "–", " × ".join(map(str, value.shape)) or "1", summary(value.summary),
                      f"{value.summary.smallest:.3g}", f"{value.summary.largest:.3g}",
                      decibels(compared and compared.snr), f"{compared.error:.1e}" if compared else "–",
                      style=None if value.finite else "red")
    return table
