"""``ane plan``: where Core ML would run a package (on a Mac), what speaks against it, what a call costs on paper."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ane.system.errors import UserError

if TYPE_CHECKING:       # torch comes in with the handler, so that --help is quick
    from ane.backends.mil.package import Package
    from converters.proof.cost import Chip, Cost, Estimate
    from converters.proof.lint import Summary

DESCRIPTION = """
Tell how Core ML packages fit the Neural Engine. On a Mac, Core ML itself says where it would run each operation. On any
machine, the program of each function is held to published rules of the engine, and its cost on paper is set against
published figures of each chip: estimates, not measurements.
"""
CHIPS = "M1,M2,M3,M4,M5"
STEPS = 30
ENGINE = "Neural Engine"
UNITS = "CPU_AND_NE"


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add ``plan``; it sets ``handler``, which takes the arguments and returns an exit status."""
    parser = subparsers.add_parser("plan", help="tell how Core ML packages fit the Neural Engine",
                                   description=DESCRIPTION)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("package", nargs="?", metavar="PACKAGE.mlpackage", type=Path, help="one package")
    which.add_argument("--bundle", metavar="NAME|PATH", help="all packages of a bundle (default: the embedded demo)")
    parser.add_argument("--function", metavar="NAME", help="only this function, such as step_16_4352")
    parser.add_argument("--chip", metavar="CHIP,…", default=CHIPS,
                        help=f"chips to estimate for, and whose rules apply, such as M1,M4-Pro (default: {CHIPS})")
    parser.add_argument("--steps", metavar="N", type=_count, default=STEPS,
                        help=f"denoising steps of an utterance (default: {STEPS})")
    parser.add_argument("--json", metavar="FILE", help="write all of it to FILE as JSON; to standard output if -")
    parser.set_defaults(handler=plan)


def plan(args: argparse.Namespace) -> int:
    """Examine the packages, print tables or JSON."""
    chips = _chips(args.chip)
    examined = [one for path, units in _packages(args.package, args.bundle)
                for one in examine(path, units, args.function, chips, args.steps)]
    if not examined:
        raise UserError(f"no package has a function {args.function!r}; leave out --function to see what there is")
    if args.json:
        _write(args.json, _json(examined, chips, args.steps))
    if args.json != "-":
        _print(examined, chips, args.steps)
    return 0


@dataclass(frozen=True)
class Examined:
    """What is known of a function: on paper, and on a Mac where Core ML would run it."""

    package: Path
    function: str
    cost: "Cost"
    estimates: "dict[str, Estimate]"
    warnings: "list[Summary]"
    placement: "Placement | None"


def examine(path: Path, units: str, wanted: str | None, chips: "list[Chip]", steps: int) -> list[Examined]:
    """The functions of a package, or the wanted one. Raises UserError when there is no such package."""
    from ane.backends.mil.package import Package
    from converters.proof.cost import cost, estimate, use
    from converters.proof.lint import concerning, lint, summarised

    package = Package(path)
    names = [name for name in package.functions if wanted in (None, name)]
    placements = placed(package, units, names) if sys.platform == "darwin" and names else {}
    examined = []
    for name in names:
        costs, used = cost(package, name), use(package.function(name), steps)
        warnings = concerning(lint(package, name), (chip.generation for chip in chips))
        examined.append(Examined(path, name, costs, {chip.name: estimate(costs, used, chip) for chip in chips},
                                 summarised(warnings), placements.get(name)))
    return examined


def _packages(package: Path | None, bundle: str | None) -> list[tuple[Path, str]]:
    """Packages and the compute units that each is meant for: those that bundle.json states, else all that lie there.

    Raises:
        UserError: no such bundle, or none in it.
    """
    from ane.bundles import open_model
    from ane.bundles.manifest import read_manifest
    from ane.bundles.opening import demo_bundle, find_bundle
    from ane.bundles.packages import directory, read_section
    from ane.commands.packages import with_packages

    if package is not None:
        if (package / "bundle.json").is_file():
            raise UserError(f"{package} is a bundle, not a package: give it with --bundle")
        return [(package, UNITS)]
    found = find_bundle(bundle)
    if found == demo_bundle():
        found = with_packages(open_model(), "mil", Console(stderr=True, highlight=False)).path
    manifest = found / "bundle.json"
    stated = []
    if manifest.is_file():
        read = read_manifest(found)
        stated = read_section(read.sections, str(manifest), read.networks)
    packages = [(directory(found, record), record.units) for record in stated]
    packages = packages or [(path, UNITS) for path in sorted(found.rglob("*.mlpackage"))]
    if not packages:
        raise UserError(f"there are no Core ML packages in {found}; make some with: ane convert")
    return packages


def _chips(text: str) -> "list[Chip]":
    """M1,m4-pro → chips. Raises UserError for one that is not in the table."""
    from converters.proof.cost import CHIPS

    known = {_plain(name): chip for name, chip in CHIPS.items()}
    for name in text.split(","):
        if _plain(name) not in known:
            raise UserError(f"no figures are known of a chip {name.strip()!r}; there are some of {', '.join(CHIPS)}")
    return list({_plain(name): known[_plain(name)] for name in text.split(",")}.values())


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace(" ", "")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


# What Core ML says

@dataclass
class Elsewhere:
    """Operations of a type that Core ML would not run on the Neural Engine, for one reason."""

    op: str
    device: str
    supported: tuple[str, ...]
    example: str
    count: int = 0
    cost: float = 0.0

    @property
    def reason(self) -> str:
        if ENGINE in self.supported:
            return f"the {ENGINE} could, Core ML prefers not to"
        return f"only {' and '.join(self.supported) or 'an unknown device'} can"


@dataclass
class Placement:
    """Where Core ML would run a function: operations and share of its estimated cost by device; what is elsewhere.

    Constants run nowhere and are left out. ``untold`` operations have no device: Core ML does not say.
    """

    ops: dict[str, int] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    elsewhere: list[Elsewhere] = field(default_factory=list)
    untold: int = 0


def placement(compute_plan: Any, function: str) -> Placement | None:
    """What a compute plan says of a function; None when the plan does not have it.

    Args:
        compute_plan: coremltools' MLComputePlan, or what has the same three members.
    """
    functions = compute_plan.model_structure.program.functions
    if function not in functions:
        return None
    found, groups = Placement(), {}
    for operation in _operations(functions[function].block):
        kind = operation.operator_name.rpartition(".")[2]                       # ios18.conv → conv
        if kind == "const" or kind.startswith("constexpr_"):
            continue
        usage = compute_plan.get_compute_device_usage_for_mlprogram_operation(operation)
        if usage is None:
            found.untold += 1
            continue
        estimated = compute_plan.get_estimated_cost_for_mlprogram_operation(operation)
        weight = estimated.weight if estimated else 0.0
        device = _device(usage.preferred_compute_device)
        found.ops[device] = found.ops.get(device, 0) + 1
        found.costs[device] = found.costs.get(device, 0.0) + weight
        if device != ENGINE:
            supported = tuple(sorted({_device(one) for one in usage.supported_compute_devices}))
            name = operation.outputs[0].name if operation.outputs else kind
            group = groups.setdefault((kind, device, supported), Elsewhere(kind, device, supported, name))
            group.count += 1
            group.cost += weight
    found.elsewhere = sorted(groups.values(), key=lambda group: (-group.cost, -group.count))
    return found


def _operations(block: Any) -> Iterator[Any]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _operations(inner)


def _device(device: Any) -> str:
    """The kind of a device, by coremltools' class of it: MLNeuralEngineComputeDevice and so on."""
    for part, name in (("NeuralEngine", ENGINE), ("GPU", "GPU"), ("CPU", "CPU")):
        if part in type(device).__name__:
            return name
    return type(device).__name__


def placed(package: "Package", units: str, names: list[str]) -> dict[str, Placement | None]:
    """On a Mac: compile the package, or find it compiled, and ask Core ML."""
    from ane.backends.coreml.compiled import CompiledCache
    from ane.backends.coreml.engine import CoreMLTools
    from converters.quiet import quiet

    with quiet():
        import coremltools
        from coremltools.models.compute_plan import MLComputePlan

    toolkit = CoreMLTools()
    try:
        compiled, _ = CompiledCache().model(package.path, toolkit.machine(), toolkit.compile)
        compute_plan = MLComputePlan.load_from_path(str(compiled), coremltools.ComputeUnit[units])
    except RuntimeError as error:
        raise UserError(f"Core ML has no plan for {package.path}: {error}") from error
    return {name: placement(compute_plan, name) for name in names}


# What is shown

def _json(examined: list[Examined], chips: "list[Chip]", steps: int) -> dict[str, Any]:
    from converters.proof.cost import FORMULA, SOURCES

    functions = [{"package": str(one.package), "function": one.function, "cost": asdict(one.cost),
                  "estimates": {name: asdict(estimate) for name, estimate in one.estimates.items()},
                  "warnings": [summary.json for summary in one.warnings],
                  "placement": one.placement and asdict(one.placement)} for one in examined]
    return {"what": "estimates on paper, not measurements; placement is what Core ML says on a Mac", "formula": FORMULA,
            "sources": SOURCES, "steps": steps, "chips": [asdict(chip) for chip in chips], "functions": functions}


def _write(file: str, report: dict[str, Any]) -> None:
    from ane.system.files import check_output_file, replacing

    if file == "-":
        print(json.dumps(report))
        return
    check_output_file(Path(file))
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _print(examined: list[Examined], chips: "list[Chip]", steps: int) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    for package in dict.fromkeys(one.package for one in examined):
        functions = [one for one in examined if one.package == package]
        console.print(str(package))
        for one in functions:
            if one.placement is not None:
                _print_placement(console, one.function, one.placement)
            elif sys.platform == "darwin":
                console.print(f"Core ML has no plan for {one.function}.")
        console.print(_cost_table(functions), _estimate_table(functions, steps))
        console.print(_warning_table(functions) if any(one.warnings for one in functions)
                      else "It breaks no rule of the Neural Engine that is known here.")
    _print_sources(console, chips)


def _print_placement(console: Console, function: str, placement: Placement) -> None:
    """The table of devices, then that of what is not on the Neural Engine."""
    all_ops, all_costs = (sum(values.values()) for values in (placement.ops, placement.costs))

    def share(cost: float) -> str:
        return f"{cost / all_costs:.1%}" if all_costs else "not told"

    table = _table(f"{function}: where Core ML would run it", "device", "operations", "of all", "of the cost")
    for device, count in sorted(placement.ops.items(), key=lambda item: -item[1]):
        table.add_row(device, str(count), f"{count / all_ops:.1%}", share(placement.costs[device]))
    console.print(table)
    if placement.untold:
        console.print(f"Core ML says nothing of {placement.untold} operations of {function}.")
    if placement.elsewhere:
        table = _table(f"{function}: what is not on the {ENGINE}", "operation", "runs on", "times", "of the cost",
                       "because", "such as")
        for group in placement.elsewhere:
            table.add_row(group.op, group.device, str(group.count), share(group.cost), group.reason, group.example)
        console.print(table)


def _cost_table(functions: list[Examined]) -> Table:
    table = _table("A call, by its program (MB, also of the values that ops make; other arithmetic in millions)",
                   "function", "ops", "weights read", "cache read", "written", "values", "padded", "GFLOP", "other")
    for column in table.columns[1:]:
        column.justify = "right"
    for one in functions:
        cost = one.cost
        read = sum(weights.stored for weights in cost.weights.values())
        sizes = (read, cost.cache_read, cost.cache_written, cost.activations, cost.padded)
        table.add_row(one.function, str(cost.ops), *(f"{bytes / 1e6:.1f}" for bytes in sizes),
                      f"{cost.flops / 1e9:.2f}", f"{cost.elementwise / 1e6:.1f}")
    return table


def _estimate_table(functions: list[Examined], steps: int) -> Table:
    table = _table(f"Least time on paper, not measured ({steps} denoising steps)", "function", "estimate",
                   *functions[0].estimates)
    for one in functions:
        estimates = list(one.estimates.values())
        rows = {"ms a call": [f"{e.seconds * 1e3:.2f}" for e in estimates], "bound by": [e.bound for e in estimates]}
        if estimates[0].unit:
            rows[f"{estimates[0].unit} a second"] = [f"{e.rate:.0f}" for e in estimates]
        if estimates[0].realtime is not None:
            rows["real-time factor"] = [f"{e.realtime:.3f}" for e in estimates]
            rows["dispatches a second of speech"] = [f"{e.dispatches:.1f}" for e in estimates]
        for number, (what, cells) in enumerate(rows.items()):
            table.add_row("" if number else one.function, what, *cells)
    return table


def _warning_table(functions: list[Examined]) -> Table:
    """A row for each rule that a function of the package breaks, the refused first, with the worst place of all."""
    by_rule: dict[str, list[tuple[str, Summary]]] = {}
    for severity in ("refused", "warning", "note"):
        for one in functions:
            for summary in one.warnings:
                if summary.severity == severity:
                    by_rule.setdefault(summary.rule, []).append((one.function, summary))
    table = _table("Against rules of the Neural Engine", "rule", "times", "in", "such as", "why")
    for rule, broken in by_rule.items():
        worst = max((summary for _, summary in broken), key=lambda summary: summary.wasted)
        wasted = f" ({worst.wasted / 1e6:.1f} MB of padding in all)" if worst.wasted else ""
        names = [name for name, _ in broken]
        where = f"{len(names)} functions" if len(names) > 3 else ", ".join(names)
        table.add_row(f"{worst.severity}: {rule}", str(sum(summary.count for _, summary in broken)), where,
                      f"{worst.example.op} {worst.example.name}: {worst.example.what}{wasted}",
                      f"{worst.example.why} [{worst.example.source.partition(': ')[0]}]")
    return table


def _table(title: str, *columns: str) -> Table:
    """Nothing is cut off, however narrow the terminal."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    return table


def _print_sources(console: Console, chips: "list[Chip]") -> None:
    from converters.proof.cost import FORMULA, SOURCES

    console.print(f"Estimates are not measurements. {FORMULA}.")
    console.print("A real-time factor is seconds for a second of speech, of one lane; all lanes take the same time.")
    for chip in chips:
        console.print(f"{chip.name}: {chip.bandwidth} GB/s, {chip.tflops} TFLOPS ({chip.source}"
                      f"{'; assumed: ' + chip.assumed if chip.assumed else ''})")
    for name, source in SOURCES.items():
        console.print(f"{name}: {source}")
    if sys.platform != "darwin":
        console.print("Where Core ML would run them is told on a Mac only.")
