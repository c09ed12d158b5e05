"""Run ``ane plan``: show where Core ML would run a package, which rules it breaks, and the estimated cost of a call.

Print one sentence per chip, then tables that fit in 100 columns, then the meaning of their columns.
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
Show how Core ML packages fit the Neural Engine. On a Mac, Core ML reports which device would run each operation. On any
machine, each function is checked against published rules of the engine, and its cost is estimated from published
figures for each chip. Estimates are not measurements.
"""
CHIPS = "M1,M2,M3,M4,M5"
DEFAULT_UNITS = "CPU_AND_NE"
WIDTH = 100
LIMITS = {"bandwidth": "memory", "compute": "compute", "dispatch": "dispatch"}
COLUMNS = """\
weights: MB of stored weights that a call reads. cache: MB of keys and values that a call reads and writes, including
states that it writes again. handed over: MB converted between float32 on the host and fp16 in the package. large: MB of
tensors above 2 MB, which leave the chip. GFLOP: operations of convolutions and products, 2 per multiplication and
addition. The columns of chips also name the limit of the call: m is memory (bytes / bandwidth), c is compute (FLOPs /
rate), and d is dispatch."""


@dataclass(frozen=True)
class FunctionPlan:
    """The estimated cost of a function.

    On a Mac, it also has the processors on which Core ML would run the function.
    """

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
    which.add_argument("package", nargs="?", metavar="PACKAGE.mlpackage", type=arguments.path, help="package to show")
    which.add_argument(
        "--bundle", metavar="NAME|PATH", help="bundle whose packages to show (default: the embedded demo)"
    )
    parser.add_argument("--function", metavar="NAME", help="show only this function, such as step_16_4928")
    parser.add_argument(
        "--chip",
        metavar="CHIP,…",
        default=CHIPS,
        help=f"chips whose figures and rules to use, such as M1,M4-Pro (default: {CHIPS})",
    )
    parser.add_argument("--json", metavar="FILE", help="JSON file to write with the results. '-' is standard output")
    parser.set_defaults(handler=plan)


def plan(args: argparse.Namespace) -> int:
    """Print the plans.

    If the user wants JSON, write them as JSON too. Raises UserError if no package has the function.
    """
    from ane.backends.mil.package import Package
    from converters.proof.cost import cost, estimate
    from converters.proof.lint import lint

    check_files(args, {"json": args.json}, ("package",), models=("bundle",))
    if args.json:
        check_output_file(args.json, streams=True)
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
        raise UserError(f"no package has a function {args.function!r}: leave out --function to see all functions")
    if args.json:
        write_json(args.json, plans_json(plans, broken, chips))
    if args.json != "-":
        print_plans(output_console(), plans, broken, chips)
        if args.package is None:
            output_console().print(engines_of_phases(args.bundle))
    return 0


def engines_of_phases(bundle: str | None) -> str:
    """Say in one sentence which engines `--backend auto` uses for a bundle, or how to measure the engines here."""
    from ane.backends.measured import measured_engines
    from ane.bundles import open_model
    from ane.bundles.opening import DEMO

    engines = measured_engines(open_model(bundle or DEMO))
    return (
        f"On this machine --backend auto runs {engines}: `ane bench` measured it on {engines.date[:10]}."
        if engines
        else "To measure which engine is fastest for each phase on this machine, run `ane bench`."
    )


def find_packages(args: argparse.Namespace) -> list[tuple[Path, str]]:
    """Return the packages to show and the compute units of each package. Raises UserError if there is no package."""
    from ane.bundles import open_model
    from ane.bundles.opening import DEMO, is_embedded
    from ane.commands.packages import with_packages

    if args.package is not None:
        if (args.package / "bundle.json").is_file():
            raise UserError(f"{args.package} is a bundle, not a package: use --bundle {args.package}")
        return [(args.package, DEFAULT_UNITS)]
    model = open_model(args.bundle or DEMO)
    if is_embedded(model.path):
        model = with_packages(model, "mil", message_console(args))
    if not model.packages:
        raise model.lacks_packages("coreml")
    return [(model.path / record.path, record.compute_units) for record in model.packages]


def read_chips(text: str) -> "list[Chip]":
    """Look up the chips in a text such as "M1,m4-pro". Raises UserError for an unknown chip."""
    from converters.neural_engine import CHIPS

    known = {_simplified(name): chip for name, chip in CHIPS.items()}
    for name in text.split(","):
        if _simplified(name) not in known:
            raise UserError(f"unknown chip {name.strip()!r}: choose from {', '.join(CHIPS)}")
    return list({_simplified(name): known[_simplified(name)] for name in text.split(",")}.values())


def _simplified(name: str) -> str:
    return name.lower().replace("-", "").replace(" ", "")


def plans_json(
    plans: list[FunctionPlan], broken: "dict[Path, list[BrokenRule]]", chips: "list[Chip]"
) -> dict[str, Any]:
    from converters.neural_engine import SOURCES
    from converters.proof.cost import FORMULA

    return {
        "what": "estimates, not measurements. Core ML reports the placement on a Mac",
        "formula": FORMULA,
        "sources": SOURCES,
        "chips": [asdict(chip) for chip in chips],
        "functions": [
            asdict(one)
            | {
                "package": str(one.package),
                "estimates": {chip: estimate._asdict() for chip, estimate in one.estimates.items()},
            }
            for one in plans
        ],
        "warnings": [{"package": str(path), **rule.record()} for path, rules in broken.items() for rule in rules],
    }


# Printing


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
        f"The packages break {refused} rules for which the Neural Engine refuses an operation, and {warnings} rules "
        "that may move operations elsewhere.",
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
    """Return a sentence about packages on a chip.

    The sentence has the longest call's time, and how many functions reach each limit.
    """
    longest = max(plans, key=lambda one: one.estimates[chip].seconds)
    limits = Counter(LIMITS[one.estimates[chip].bound] for one in plans)
    counts = ", ".join(f"{limit} {limits[limit]}" for limit in LIMITS.values() if limits[limit])
    return (
        f"the longest call takes at least {longest.estimates[chip].seconds * 1e3:.1f} ms ({longest.function}); "
        f"functions by their limit: {counts} (estimated, not measured)."
    )


def print_placement(console: Console, function: str, placement: Placement) -> None:
    """Print a table of the devices, then a table of the operations that are not on the Neural Engine."""
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
    table = plain_table("Minimum ms per call, estimated, not measured", "function", *functions[0].estimates)
    for one in functions:
        table.add_row(
            one.function,
            *(f"{estimate.seconds * 1e3:.2f} {LIMITS[estimate.bound][0]}" for estimate in one.estimates.values()),
        )
    return table


def described(broken: "BrokenRule", functions: int) -> str:
    where = ", ".join(broken.functions) if len(broken.functions) <= 3 else f"{len(broken.functions)} of {functions}"
    return (
        f"{broken.rule.severity}: {broken.rule.id}, {broken.count} times in {where}, such as {broken.example}. "
        f"{broken.rule.text} [{broken.rule.source.partition(': ')[0]}]"
    )
