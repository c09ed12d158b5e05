"""``ane plan``: where Core ML would run a package (on a Mac), which rules it breaks, the estimated cost of a call.

It prints a sentence for each chip, then tables that fit 100 columns, then what their columns mean.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ane.commands import arguments
from ane.commands.file_flags import check_files
from ane.commands.messages import message_console, output_console, plain_table, status_display
from ane.commands.placement import NEURAL_ENGINE, Placement, function_placement
from ane.system.errors import UserError
from ane.system.files import check_output_file, write_json

if TYPE_CHECKING:  # torch is imported in the handler, so that --help is quick
    from converters.neural_engine import Chip
    from converters.proof.cost import CostEstimate, FunctionCost
    from converters.proof.lint import BrokenRule

DESCRIPTION = """
Show how Core ML packages fit the Neural Engine. On a Mac, Core ML reports where it would run each operation. On any
machine, the program of each function is checked against published rules of the engine, and its cost is estimated from
published figures of each chip: estimates, not measurements.
"""
CHIPS = "M1,M2,M3,M4,M5"
DEFAULT_UNITS = "CPU_AND_NE"
WIDTH = 100
LIMITS = {"bandwidth": "memory", "compute": "compute", "dispatch": "dispatch"}
COLUMNS = """\
weights: MB that a call reads, as stored. cache: MB of keys and values read and written, rewritten states included.
handed over: MB moved between float32 of the host and fp16 of the package. large: MB of values above 2 MB, which leave
the chip. GFLOP: of convolutions and products, 2 for each multiplication and addition. The columns of chips also say
what takes longest: m, memory (bytes / bandwidth), c, compute (FLOPs / rate), or d, dispatch."""


@dataclass(frozen=True)
class FunctionPlan:
    """The estimated cost of a function; on a Mac also where Core ML would run it."""

    package: Path
    function: str
    cost: "FunctionCost"
    estimates: "dict[str, CostEstimate]"
    placement: Placement | None


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "plan", help="show how Core ML packages fit the Neural Engine", description=DESCRIPTION
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("package", nargs="?", metavar="PACKAGE.mlpackage", type=arguments.path, help="one package")
    which.add_argument("--bundle", metavar="NAME|PATH", help="all packages of a bundle (default: the embedded demo)")
    parser.add_argument("--function", metavar="NAME", help="only this function, such as step_16_4928")
    parser.add_argument(
        "--chip",
        metavar="CHIP,…",
        default=CHIPS,
        help=f"chips to estimate for, and whose rules apply, such as M1,M4-Pro (default: {CHIPS})",
    )
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE as JSON; - is standard output")
    parser.set_defaults(handler=plan)


def plan(args: argparse.Namespace) -> int:
    """Print and write the plans. Raises UserError when no package has the function."""
    from ane.backends.mil.package import Package
    from converters.proof.cost import cost, estimate
    from converters.proof.lint import lint

    check_files(args, {"json": args.json}, ("package",), models=("bundle",))
    if args.json:
        check_output_file(args.json)
    chips, plans, broken = read_chips(args.chip), [], {}
    for path, units in find_packages(args):
        package = Package(path)
        names = [name for name in package.functions if args.function in (None, name)]
        placements = {}
        with status_display(message_console(args), "asking Core ML for the placement") as show:
            for number, name in enumerate(names if sys.platform == "darwin" else (), 1):
                show(f"asking Core ML for the placement of {path.stem}: {name}, {number} of {len(names)}")
                placements[name] = function_placement(package, units, name)
        for name in names:
            costs = cost(package, name)
            plans.append(
                FunctionPlan(
                    path,
                    name,
                    costs,
                    {chip.name: estimate(costs.moved, costs.flops, chip) for chip in chips},
                    placements.get(name),
                )
            )
        broken[path] = lint(package, names, min(chip.generation for chip in chips))
    if not plans:
        raise UserError(f"no package has a function {args.function!r}; leave out --function to see all")
    if args.json:
        write_json(args.json, plans_json(plans, broken, chips))
    if args.json != "-":
        print_plans(output_console(), plans, broken, chips)
        if args.package is None:
            output_console().print(engines_of_phases(args.bundle))
    return 0


def engines_of_phases(bundle: str | None) -> str:
    """Return which engines `--backend auto` runs a bundle's phases on, if `ane bench` has measured them here."""
    from ane.backends.measured import measured_engines
    from ane.bundles import open_model
    from ane.bundles.opening import DEMO

    found = measured_engines(open_model(bundle or DEMO))
    return (
        f"On this machine --backend auto runs {found}: `ane bench` measured it on {found.date[:10]}."
        if found
        else "Which engine is fastest for each phase on this machine was not measured: `ane bench` does it."
    )


def find_packages(args: argparse.Namespace) -> list[tuple[Path, str]]:
    """The package, or those that a bundle states, each with its compute units. Raises UserError when there are none."""
    from ane.bundles import open_model
    from ane.bundles.opening import DEMO, is_embedded
    from ane.commands.packages import with_packages

    if args.package is not None:
        if (args.package / "bundle.json").is_file():
            raise UserError(f"{args.package} is a bundle, not a package: give it with --bundle")
        return [(args.package, DEFAULT_UNITS)]
    model = open_model(args.bundle or DEMO)
    if is_embedded(model.path):
        model = with_packages(model, "mil", message_console(args))
    if not model.packages:
        raise model.lacks_packages("coreml")
    return [(model.path / record.path, record.compute_units) for record in model.packages]


def read_chips(text: str) -> "list[Chip]":
    """M1,m4-pro → chips. Raises UserError for an unknown chip."""
    from converters.neural_engine import CHIPS

    known = {_simplified(name): chip for name, chip in CHIPS.items()}
    for name in text.split(","):
        if _simplified(name) not in known:
            raise UserError(f"unknown chip {name.strip()!r}; known chips: {', '.join(CHIPS)}")
    return list({_simplified(name): known[_simplified(name)] for name in text.split(",")}.values())


def _simplified(name: str) -> str:
    return name.lower().replace("-", "").replace(" ", "")


def plans_json(
    plans: list[FunctionPlan], broken: "dict[Path, list[BrokenRule]]", chips: "list[Chip]"
) -> dict[str, Any]:
    from converters.neural_engine import SOURCES
    from converters.proof.cost import FORMULA

    return {
        "what": "estimates, not measurements; placement is what Core ML reports on a Mac",
        "formula": FORMULA,
        "sources": SOURCES,
        "chips": [asdict(chip) for chip in chips],
        "functions": [
            asdict(one)
            | {
                "package": str(one.package),
                "estimates": {chip: found._asdict() for chip, found in one.estimates.items()},
            }
            for one in plans
        ],
        "warnings": [{"package": str(path), **rule.record()} for path, rules in broken.items() for rule in rules],
    }


# What is printed


def print_plans(
    console: Console, plans: Sequence[FunctionPlan], broken: "dict[Path, list[BrokenRule]]", chips: "Sequence[Chip]"
) -> None:
    from converters.neural_engine import SOURCES
    from converters.proof.cost import FORMULA

    console.width = min(console.width, WIDTH)
    rules = {rule.rule.id: rule.rule.severity for rules in broken.values() for rule in rules}
    refused, warnings = (list(rules.values()).count(severity) for severity in ("refused", "warning"))
    paragraph(
        console,
        *(f"{chip.name}: {summary(plans, chip.name)}" for chip in chips),
        "Rules of the Neural Engine "
        f"that are broken: {refused} that it refuses, {warnings} that may take operations off it.",
    )
    for package in dict.fromkeys(one.package for one in plans):
        functions = [one for one in plans if one.package == package]
        console.print(f"\n{package.name}")
        for one in functions:
            if one.placement is not None:
                print_placement(console, one.function, one.placement)
            elif sys.platform == "darwin":
                console.print(f"Core ML has no plan for {one.function}.")
        console.print(cost_table(functions), estimate_table(functions))
        paragraph(console, *(described(rule, len(functions)) for rule in broken[package]))
    paragraph(
        console,
        "",
        COLUMNS.replace("\n", " "),
        f"Estimates are not measurements. {FORMULA}.",
        *(
            f"{chip.name}: {chip.bandwidth} GB/s, {chip.tflops} TFLOPS ({chip.source}"
            f"{'; assumed: ' + chip.assumed if chip.assumed else ''})"
            for chip in chips
        ),
        *(f"{name}: {source}" for name, source in SOURCES.items()),
    )
    if sys.platform != "darwin":
        console.print("Only a Mac can show where Core ML would run the operations.")


def paragraph(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, soft_wrap=False)


def summary(plans: Sequence[FunctionPlan], chip: str) -> str:
    """What a chip is estimated to need, in one sentence."""
    longest = max(plans, key=lambda one: one.estimates[chip].seconds)
    limits = Counter(LIMITS[one.estimates[chip].bound] for one in plans)
    counts = ", ".join(f"{limit} {limits[limit]}" for limit in LIMITS.values() if limits[limit])
    return (
        f"the longest call takes at least {longest.estimates[chip].seconds * 1e3:.1f} ms ({longest.function}); "
        f"functions by what limits them: {counts} (estimated, not measured)."
    )


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
        table = plain_table(
            f"{function}: operations that are not on the {NEURAL_ENGINE}",
            "operation",
            "device",
            "count",
            "share of the cost",
            "reason",
            "example",
        )
        for group in placement.elsewhere:
            table.add_row(
                group.op, group.device, str(group.count), placement.share(group.cost), group.reason, group.example
            )
        console.print(table)


def cost_table(functions: Sequence[FunctionPlan]) -> Table:
    table = plain_table(
        "Cost of a call (sizes in MB)",
        "function",
        "ops",
        "weights",
        "cache",
        "handed over",
        "large",
        "GFLOP",
        numbers=range(1, 7),
    )
    for one in functions:
        cost = one.cost
        sizes = (cost.weights, cost.cache_read + cost.cache_written + cost.rewritten, cost.converted, cost.large)
        table.add_row(
            one.function, str(cost.ops), *(f"{bytes / 1e6:.1f}" for bytes in sizes), f"{cost.flops / 1e9:.2f}"
        )
    return table


def estimate_table(functions: Sequence[FunctionPlan]) -> Table:
    table = plain_table("Least ms of a call, estimated, not measured", "function", *functions[0].estimates)
    for one in functions:
        table.add_row(
            one.function, *(f"{each.seconds * 1e3:.2f} {LIMITS[each.bound][0]}" for each in one.estimates.values())
        )
    return table


def described(broken: "BrokenRule", functions: int) -> str:
    where = ", ".join(broken.functions) if len(broken.functions) <= 3 else f"{len(broken.functions)} of {functions}"
    return (
        f"{broken.rule.severity}: {broken.rule.id}, {broken.count} times in {where}, such as {broken.example}. "
        f"{broken.rule.text} [{broken.rule.source.partition(': ')[0]}]"
    )
