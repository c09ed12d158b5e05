"""What `ane verify` prints, a sentence for each network first, then tables that fit 100 columns; and its JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ane.commands.messages import plain_table

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle
    from converters.proof.activations import ComparedValue
    from converters.proof.package_run import PackageRun, RunValue
    from converters.proof.verify import FunctionCheck, Runner

WIDTH = 100
COLUMNS = """\
dB: signal-to-noise ratio of a function's outputs, for the inputs of `ane convert`. threshold: what `ane convert` \
demands of this kind of function in this precision (the table FUNCTIONS of converters/*/functions.py), or a little \
less than it recorded, if that is more. largest error: the largest absolute difference."""


def results_json(model: "Bundle", runner: "Runner", results: "Sequence[FunctionCheck]") -> dict[str, Any]:
    functions = [asdict(one) | {"required": one.required, "passed": one.passed, "drift": one.drift and one.drift.name,
                                "worst": one.worst and one.worst.name} for one in results]
    return {"bundle": str(model.path), "against": runner.name, "functions": functions}


def print_results(console: Console, results: "Sequence[FunctionCheck]", runner: "Runner", layers: bool) -> None:
    narrow = min(console.width, WIDTH)
    for network in dict.fromkeys(one.network for one in results):
        console.print(f"{network}: {summary([one for one in results if one.network == network])}", width=narrow,
                      soft_wrap=False)
    console.print(function_table(results, runner), width=narrow)
    console.print(COLUMNS, width=narrow, soft_wrap=False)
    if not layers:
        return
    if len(results) == 1:
        one, = results
        console.print(value_table(one))
        if one.difference:
            console.print(f"The first operation that computes otherwise: {operation(one.difference)}.")
    else:
        console.print(layer_table(results))
        console.print("For every value of a function, name it with --function, or see --json.")
    if not all(one.values for one in results):
        console.print("A function that fails, or that has a state on Core ML, has no values to show.")


def summary(results: "Sequence[FunctionCheck]") -> str:
    """How the functions of a network compare, in one sentence."""
    failed = [one.function for one in results if not one.passed]
    count = f"{len(failed)} of {len(results)} functions fail ({', '.join(failed[:3])}{', …' * (len(failed) > 3)})" \
        if failed else f"all {len(results)} functions pass" if len(results) > 1 else "its function passes"
    measured = [(one.snr - one.required, one) for one in results if one.snr is not None]
    if not measured:
        return f"{count}."
    margin, worst = min(measured, key=lambda item: item[0])
    return (f"{count}; nearest to its threshold is {worst.function}, {abs(margin):.1f} dB "
            f"{'above' if margin >= 0 else 'below'} it.")


def function_table(results: "Sequence[FunctionCheck]", runner: "Runner") -> Table:
    table = plain_table(f"On {runner.name}, compared with float32 torch", "package", "function", "dB", "threshold",
                        "largest error", "", numbers=(2, 3, 4))
    for one in results:
        verdict = one.problem or ("passes" if one.passed else "fails")
        table.add_row(one.package, one.function, decibels(one.snr), f"{one.required:.1f}", exponent(one.error), verdict,
                      style="red" if not one.passed else "yellow" if one.problem else None)
    return table


def layer_table(results: "Sequence[FunctionCheck]") -> Table:
    """One row per function: its worst value, the first that drifts (``FunctionCheck.drift``), and the first that a new
    conversion computes otherwise."""
    table = plain_table("Inside", "package", "function", "values", "worst", "dB", "first that drifts", "dB",
                        "first that computes otherwise", numbers=(2, 4, 6))
    for one in results:
        table.add_row(one.package, one.function, str(len(one.values)), label(one.worst),
                      decibels(one.worst and one.worst.snr), label(one.drift) if one.drift else "none",
                      decibels(one.drift and one.drift.snr), operation(one.difference),
                      style="red" if one.drift or one.difference else None)
    return table


def value_table(one: "FunctionCheck") -> Table:
    """One row per value that a module of the network returns, in program order."""
    table = plain_table(f"{one.function}: values compared with the modules that return them", "module", "operation",
                        "dB", "scale", "largest error", "", numbers=(2, 3, 4))
    for value in one.values:
        marks = [word for word, marked in (("drifts first", one.drift), ("worst", one.worst)) if value is marked]
        table.add_row(label(value), value.op, decibels(value.snr), f"{value.factor:g}", exponent(value.error),
                      ", ".join(marks), style="red" if value is one.drift else "yellow" if value is one.worst else None)
    return table


def label(value: "ComparedValue | None") -> str:
    return "–" if value is None else value.module or value.name


def operation(value: "ComparedValue | None") -> str:
    return "–" if value is None else f"{value.op} {value.name}"


def decibels(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def exponent(error: float | None) -> str:
    return "–" if error is None else f"{error:.1e}"


# One package

def run_json(package: Path, run: "PackageRun", runner: str) -> dict[str, Any]:
    return {"package": str(package), "function": run.function, "against": runner,
            "values": [asdict(value) for value in run.values], "layers": [asdict(value) for value in run.layers]}


def print_run(console: Console, run: "PackageRun", runner: str) -> None:
    console.print(run_table(f"{run.function} on {runner}", run.values))
    if run.layers:
        console.print(run_table("Inside, in program order", run.layers))


def run_table(title: str, values: "Sequence[RunValue]") -> Table:
    table = plain_table(title, "value", "operation", "shape", "mean", "smallest", "largest", "dB", "largest error",
                        numbers=(4, 5, 6, 7))
    for value in values:
        compared = value.compared
        table.add_row(value.name, value.op or "–", " × ".join(map(str, value.shape)) or "1",
                      f"{value.mean:.3g} ± {value.deviation:.3g}", f"{value.smallest:.3g}", f"{value.largest:.3g}",
                      decibels(compared and compared.snr), exponent(compared and compared.error),
                      style=None if value.finite else "red")
    return table
