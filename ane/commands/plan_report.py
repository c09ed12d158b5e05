"""The tables of `ane plan`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ane.commands.messages import plain_table
from ane.commands.placement import NEURAL_ENGINE, Placement

if TYPE_CHECKING:
    from converters.neural_engine import Chip
    from converters.proof.cost import CostEstimate, FunctionCost
    from converters.proof.lint import WarningSummary


@dataclass(frozen=True)
class FunctionPlan:
    """The cost of a function and the rules it breaks; on a Mac also where Core ML would run it."""

    package: Path
    function: str
    cost: "FunctionCost"
    estimates: "dict[str, CostEstimate]"
    warnings: "list[WarningSummary]"
    placement: Placement | None


def print_plans(console: Console, plans: "list[FunctionPlan]", chips: "list[Chip]", steps: int) -> None:
    for package in dict.fromkeys(one.package for one in plans):
        functions = [one for one in plans if one.package == package]
        console.print(str(package))
        for one in functions:
            if one.placement is not None:
                print_placement(console, one.function, one.placement)
            elif sys.platform == "darwin":
                console.print(f"Core ML has no plan for {one.function}.")
        console.print(cost_table(functions), estimate_table(functions, steps))
        console.print(warning_table(functions) if any(one.warnings for one in functions)
                      else "It breaks no known rule of the Neural Engine.")
    print_sources(console, chips)


def print_placement(console: Console, function: str, placement: Placement) -> None:
    """Print the table of devices, then that of operations that are not on the Neural Engine."""
    all_ops, all_costs = (sum(values.values()) for values in (placement.ops, placement.costs))

    def share(cost: float) -> str:
        return f"{cost / all_costs:.1%}" if all_costs else "unknown"

    table = plain_table(f"{function}: where Core ML would run it", "device", "operations", "share", "share of the cost")
    for device, count in sorted(placement.ops.items(), key=lambda item: -item[1]):
        table.add_row(device, str(count), f"{count / all_ops:.1%}", share(placement.costs[device]))
    console.print(table)
    if placement.unknown:
        console.print(f"Core ML names no device for {placement.unknown} operations of {function}.")
    if placement.elsewhere:
        table = plain_table(f"{function}: operations that are not on the {NEURAL_ENGINE}", "operation", "device",
                            "count", "share of the cost", "reason", "example")
        for group in placement.elsewhere:
            table.add_row(group.op, group.device, str(group.count), share(group.cost), group.reason, group.example)
        console.print(table)


def cost_table(functions: "list[FunctionPlan]") -> Table:
    table = plain_table("Cost of a call, from its program (sizes in MB)",
                        "function", "ops", "weights read", "cache read", "cache written", "state rewritten",
                        "handed over", "values above 2 MB", "GFLOP", numbers=range(1, 9))
    for one in functions:
        cost = one.cost
        read = sum(weights.stored for weights in cost.weights.values())
        sizes = (read, cost.cache_read, cost.cache_written, cost.rewritten, cost.converted, cost.large)
        table.add_row(one.function, str(cost.ops), *(f"{bytes / 1e6:.1f}" for bytes in sizes),
                      f"{cost.flops / 1e9:.2f}")
    return table


def estimate_table(functions: "list[FunctionPlan]", steps: int) -> Table:
    table = plain_table(f"Least time, estimated, not measured ({steps} denoising steps)", "function", "estimate",
                        *functions[0].estimates)
    for one in functions:
        estimates = list(one.estimates.values())
        rows = {"ms a call": [f"{e.seconds * 1e3:.2f}" for e in estimates], "limited by": [e.bound for e in estimates]}
        if estimates[0].unit:
            rows[f"{estimates[0].unit} a second"] = [f"{e.rate:.0f}" for e in estimates]
        if estimates[0].realtime is not None:
            rows["real-time factor"] = [f"{e.realtime:.3f}" for e in estimates]
            rows["dispatches a second of speech"] = [f"{e.dispatches:.1f}" for e in estimates]
        for number, (name, cells) in enumerate(rows.items()):
            table.add_row("" if number else one.function, name, *cells)
    return table


def warning_table(functions: "list[FunctionPlan]") -> Table:
    """A row for each rule that a function of the package breaks, refusals first, with the worst example."""
    by_rule: dict[str, list[tuple[str, WarningSummary]]] = {}
    for severity in ("refused", "warning", "note"):
        for one in functions:
            for summary in one.warnings:
                if summary.severity == severity:
                    by_rule.setdefault(summary.rule, []).append((one.function, summary))
    table = plain_table("Broken rules of the Neural Engine", "rule", "count", "functions", "example", "why")
    for rule, broken in by_rule.items():
        worst = max((summary for _, summary in broken), key=lambda summary: summary.wasted)
        wasted = f" ({worst.wasted / 1e6:.1f} MB of padding in all)" if worst.wasted else ""
        names = [name for name, _ in broken]
        where = f"{len(names)} functions" if len(names) > 3 else ", ".join(names)
        table.add_row(f"{worst.severity}: {rule}", str(sum(summary.count for _, summary in broken)), where,
                      f"{worst.example.op} {worst.example.name}: {worst.example.what}{wasted}",
                      f"{worst.example.why} [{worst.example.source.partition(': ')[0]}]")
    return table


def print_sources(console: Console, chips: "list[Chip]") -> None:
    from converters.neural_engine import SOURCES
    from converters.proof.cost import FORMULA

    console.print(f"Estimates are not measurements. {FORMULA}.")
    console.print("The real-time factor is seconds per second of speech of one lane; all lanes take the same time.")
    for chip in chips:
        console.print(f"{chip.name}: {chip.bandwidth} GB/s, {chip.tflops} TFLOPS ({chip.source}"
                      f"{'; assumed: ' + chip.assumed if chip.assumed else ''})")
    for name, source in SOURCES.items():
        console.print(f"{name}: {source}")
    if sys.platform != "darwin":
        console.print("Only a Mac can show where Core ML would run the operations.")
