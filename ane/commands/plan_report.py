"""What `ane plan` prints: a sentence for each chip, then tables that fit 100 columns, then what their columns mean."""

import sys
from collections import Counter
from collections.abc import Sequence
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
    from converters.proof.lint import BrokenRule

WIDTH = 100
LIMITS = {"bandwidth": "memory", "compute": "compute", "dispatch": "dispatch"}
COSTS = """\
weights: MB that a call reads, as stored. cache: MB of keys and values read and written, rewritten states included.
handed over: MB moved between float32 of the host and fp16 of the package. large: MB of values above 2 MB, which leave
the chip. GFLOP: of convolutions and products, 2 for each multiplication and addition."""
ESTIMATES = """\
ms a call: the least a call takes. limited by: what takes longest, memory (bytes / bandwidth), compute (FLOPs / rate) or
dispatch. real-time factor: seconds for a second of speech of one lane; all lanes take the same time."""


@dataclass(frozen=True)
class FunctionPlan:
    """The estimated cost of a function; on a Mac also where Core ML would run it."""

    package: Path
    function: str
    cost: "FunctionCost"
    estimates: "dict[str, CostEstimate]"
    placement: Placement | None


def print_plans(console: Console, plans: Sequence[FunctionPlan], broken: "dict[Path, list[BrokenRule]]",
                chips: "Sequence[Chip]", steps: int) -> None:
    console.width = min(console.width, WIDTH)
    for chip in chips:
        paragraph(console, f"{chip.name}: {summary(plans, chip.name)}")
    paragraph(console, lint_summary(broken))
    for package in dict.fromkeys(one.package for one in plans):
        functions = [one for one in plans if one.package == package]
        console.print(f"\n{package.name}")
        for one in functions:
            if one.placement is not None:
                print_placement(console, one.function, one.placement)
            elif sys.platform == "darwin":
                console.print(f"Core ML has no plan for {one.function}.")
        console.print(cost_table(functions), estimate_table(functions, steps))
        for rule in broken[package]:
            print_rule(console, rule, len(functions))
    paragraph(console, f"\n{COSTS}\n{ESTIMATES}")
    print_sources(console, chips)


def paragraph(console: Console, text: str) -> None:
    console.print(text, soft_wrap=False)


def summary(plans: Sequence[FunctionPlan], chip: str) -> str:
    """What a chip is estimated to need, in one sentence."""
    longest = max(plans, key=lambda one: one.estimates[chip].seconds)
    limits = Counter(LIMITS[one.estimates[chip].bound] for one in plans)
    counts = ", ".join(f"{limit} {limits[limit]}" for limit in LIMITS.values() if limits[limit])
    return (f"the longest call takes at least {longest.estimates[chip].seconds * 1e3:.1f} ms ({longest.function}); "
            f"functions by what limits them: {counts} (estimated, not measured).")


def lint_summary(broken: "dict[Path, list[BrokenRule]]") -> str:
    rules = {rule.rule.id: rule.rule.severity for rules in broken.values() for rule in rules}
    refused, warnings, notes = (list(rules.values()).count(severity) for severity in ("refused", "warning", "note"))
    return (f"Rules of the Neural Engine that are broken: {refused} that it refuses, {warnings} that may take "
            f"operations off it, {notes} that cost time.")


def print_placement(console: Console, function: str, placement: Placement) -> None:
    """Print the table of devices, then that of operations that are not on the Neural Engine."""
    table = plain_table(f"{function}: where Core ML would run it", "device", "operations", "share", "share of the cost")
    total = sum(placement.ops.values())
    for device, count in sorted(placement.ops.items(), key=lambda item: -item[1]):
        table.add_row(device, str(count), f"{count / total:.1%}", placement.share(placement.costs[device]))
    console.print(table)
    if placement.unknown:
        console.print(f"Core ML names no device for {placement.unknown} operations of {function}.")
    if placement.elsewhere:
        table = plain_table(f"{function}: operations that are not on the {NEURAL_ENGINE}", "operation", "device",
                            "count", "share of the cost", "reason", "example")
        for group in placement.elsewhere:
            table.add_row(group.op, group.device, str(group.count), placement.share(group.cost), group.reason,
                          group.example)
        console.print(table)


def cost_table(functions: Sequence[FunctionPlan]) -> Table:
    table = plain_table("Cost of a call (sizes in MB)", "function", "ops", "weights", "cache", "handed over", "large",
                        "GFLOP", numbers=range(1, 7))
    for one in functions:
        cost = one.cost
        sizes = (sum(weights.stored for weights in cost.weights.values()),
                 cost.cache_read + cost.cache_written + cost.rewritten, cost.converted, cost.large)
        table.add_row(one.function, str(cost.ops), *(f"{bytes / 1e6:.1f}" for bytes in sizes),
                      f"{cost.flops / 1e9:.2f}")
    return table


def estimate_table(functions: Sequence[FunctionPlan], steps: int) -> Table:
    table = plain_table(f"Least time, estimated, not measured ({steps} denoising steps)", "function", "estimate",
                        *functions[0].estimates)
    for one in functions:
        estimates = list(one.estimates.values())
        rows = {"ms a call": [f"{e.seconds * 1e3:.2f}" for e in estimates],
                "limited by": [LIMITS[e.bound] for e in estimates]}
        if estimates[0].unit:
            rows[f"{estimates[0].unit} a second"] = [f"{e.rate:.0f}" for e in estimates]
        if estimates[0].realtime is not None:
            rows["real-time factor"] = [f"{e.realtime:.3f}" for e in estimates]
        for number, (name, cells) in enumerate(rows.items()):
            table.add_row("" if number else one.function, name, *cells)
    return table


def print_rule(console: Console, broken: "BrokenRule", functions: int) -> None:
    where = ", ".join(broken.functions) if len(broken.functions) <= 3 else f"{len(broken.functions)} of {functions}"
    wasted = f"; {broken.wasted / 1e6:.1f} MB of padding in all" if broken.wasted else ""
    paragraph(console, f"{broken.rule.severity}: {broken.rule.id}, {broken.count} times in {where}, such as "
                       f"{broken.example}{wasted}. {broken.rule.text} [{broken.rule.source.partition(': ')[0]}]")


def print_sources(console: Console, chips: "Sequence[Chip]") -> None:
    from converters.neural_engine import SOURCES
    from converters.proof.cost import FORMULA

    paragraph(console, f"Estimates are not measurements. {FORMULA}.")
    for chip in chips:
        paragraph(console, f"{chip.name}: {chip.bandwidth} GB/s, {chip.tflops} TFLOPS ({chip.source}"
                           f"{'; assumed: ' + chip.assumed if chip.assumed else ''})")
    for name, source in SOURCES.items():
        paragraph(console, f"{name}: {source}")
    if sys.platform != "darwin":
        console.print("Only a Mac can show where Core ML would run the operations.")
