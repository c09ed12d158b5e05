"""``ane plan``: where Core ML would run a package (on a Mac), which rules it breaks, the estimated cost of a call."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.commands import arguments
from ane.commands.messages import message_console, output_console
from ane.commands.placement import Placement, package_placements
from ane.commands.plan_report import FunctionPlan, print_plans
from ane.commands.progress import status_display
from ane.system.errors import UserError
from ane.system.files import check_output_file, write_json

if TYPE_CHECKING:       # torch is imported in the handler, so that --help is quick
    from ane.backends.mil.package import Package
    from converters.neural_engine import Chip
    from converters.proof.lint import BrokenRule

DESCRIPTION = """
Show how Core ML packages fit the Neural Engine. On a Mac, Core ML reports where it would run each operation. On any
machine, the program of each function is checked against published rules of the engine, and its cost is estimated from
published figures of each chip: estimates, not measurements.
"""
CHIPS = "M1,M2,M3,M4,M5"
STEPS = 30
DEFAULT_UNITS = "CPU_AND_NE"


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("plan", help="show how Core ML packages fit the Neural Engine",
                                   description=DESCRIPTION)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("package", nargs="?", metavar="PACKAGE.mlpackage", type=arguments.path, help="one package")
    which.add_argument("--bundle", metavar="NAME|PATH", help="all packages of a bundle (default: the embedded demo)")
    parser.add_argument("--function", metavar="NAME", help="only this function, such as step_16_4928")
    parser.add_argument("--chip", metavar="CHIP,…", default=CHIPS,
                        help=f"chips to estimate for, and whose rules apply, such as M1,M4-Pro (default: {CHIPS})")
    parser.add_argument("--steps", metavar="N", type=arguments.positive, default=STEPS,
                        help=f"denoising steps of an utterance (default: {STEPS})")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE as JSON; - is standard output")
    parser.set_defaults(handler=plan)


def plan(args: argparse.Namespace) -> int:
    """Print and write the plans. Raises UserError when no package has the function."""
    from ane.backends.mil.package import Package
    from converters.proof.lint import lint

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
                placements |= package_placements(package, units, [name])
        plans += [plan_function(package, name, chips, args.steps, placements.get(name)) for name in names]
        broken[path] = lint(package, names, min(chip.generation for chip in chips))
    if not plans:
        raise UserError(f"no package has a function {args.function!r}; leave out --function to see all")
    if args.json:
        write_json(args.json, plans_json(plans, broken, chips, args.steps))
    if args.json != "-":
        print_plans(output_console(), plans, broken, chips, args.steps)
    return 0


def plan_function(package: "Package", name: str, chips: "list[Chip]", steps: int,
                  placement: Placement | None) -> FunctionPlan:
    from converters.proof.cost import cost, estimate, function_use

    costs, used = cost(package, name), function_use(package.function(name), steps)
    return FunctionPlan(package.path, name, costs, {chip.name: estimate(costs, used, chip) for chip in chips},
                        placement)


def find_packages(args: argparse.Namespace) -> list[tuple[Path, str]]:
    """The package, or those that a bundle states, each with its compute units. Raises UserError when there are none."""
    from ane.bundles import open_model
    from ane.bundles.manifest import read_manifest
    from ane.bundles.opening import DEMO, find_bundle, is_embedded
    from ane.bundles.packages import missing_packages, read_section
    from ane.commands.packages import with_packages

    if args.package is not None:
        if (args.package / "bundle.json").is_file():
            raise UserError(f"{args.package} is a bundle, not a package: give it with --bundle")
        return [(args.package, DEFAULT_UNITS)]
    found = find_bundle(args.bundle or DEMO)
    if is_embedded(found):
        found = with_packages(open_model(found), "mil", message_console(args)).path
    manifest = read_manifest(found)
    recorded = read_section(manifest.sections, str(found / "bundle.json"), manifest.networks)
    if not recorded:
        raise missing_packages(open_model(found), "coreml")
    return [(found / record.path, record.compute_units) for record in recorded]


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


def plans_json(plans: list[FunctionPlan], broken: "dict[Path, list[BrokenRule]]", chips: "list[Chip]",
               steps: int) -> dict[str, Any]:
    from converters.neural_engine import SOURCES
    from converters.proof.cost import FORMULA

    return {"what": "estimates, not measurements; placement is what Core ML reports on a Mac", "formula": FORMULA,
            "sources": SOURCES, "steps": steps, "chips": [asdict(chip) for chip in chips],
            "functions": [asdict(one) | {"package": str(one.package)} for one in plans],
            "warnings": [{"package": str(path), **rule.record()} for path, rules in broken.items() for rule in rules]}
