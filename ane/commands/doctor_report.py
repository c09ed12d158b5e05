"""Measures what `ane doctor --report` writes: placement and parity of every function, and `ane bench`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ane.bench.machine_report import MachineReport
from ane.bundles.packages import COMPUTE_UNITS
from ane.commands.messages import notice
from ane.commands.packages import with_packages
from ane.commands.progress import status_display
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

UNITS = COMPUTE_UNITS[:3]
BENCH_FLAGS = ("--runs", "10")


def measure_report(bundle: str | None, findings: Sequence[dict[str, Any]], console: Console) -> MachineReport:
    """Measure everything; what fails is a problem or a note of the report. Raises UserError for an unknown bundle."""
    from ane.bench.machine import describe_machine
    from ane.bundles import open_model

    model: Any = with_packages(open_model(bundle), "coreml" if sys.platform == "darwin" else "mil", console)
    notes: list[str] = []
    placement: list[dict[str, Any]] = []
    if sys.platform == "darwin":
        with status_display(console, "asking for the placement") as show:
            placement = placements(model, show)
    else:
        notes.append("placement is known on a Mac only")
    with status_display(console, "comparing with the reference") as show:
        parity = parities(model, show)
    rows, bench_notes = measurements(bundle, console)
    return MachineReport(describe_machine(), list(findings), {"name": model.name, "identity": model.identity},
                         placement, parity, rows, [*notes, *bench_notes])


def placements(model: "Bundle", show: Callable[[str], None]) -> list[dict[str, Any]]:
    from ane.backends.mil.package import Package
    from ane.commands.placement import package_placements

    found = []
    for package in model.packages:
        for name in package.functions:
            show(f"placement of {Path(package.path).stem} {name}")
            entry = {"network": package.network, "precision": package.precision, "function": name,
                     "compute_units": package.compute_units}
            try:
                placed = package_placements(Package(model.path / package.path), package.compute_units, [name])[name]
                found.append(entry | ({"problem": "Core ML has no plan"} if placed is None else asdict(placed)))
            except UserError as error:
                found.append(entry | {"problem": str(error)})
    return found


def parities(model: "Bundle", show: Callable[[str], None]) -> list[dict[str, Any]]:
    """On a Mac, Core ML on each choice of compute units; elsewhere the interpreter with the rounding of fp16."""
    from converters.proof.verify import choose_packages, package_runner, verify

    on_mac, found = sys.platform == "darwin", []
    for units in UNITS if on_mac else ("interpreter",):
        try:
            runner = package_runner("coreml", compute_units=units, notice=notice) if on_mac else package_runner(
                "mil:fp16")
            results = verify(model, choose_packages(model), runner, progress=lambda what: show(f"parity of {what}"))
        except UserError as error:
            found.append({"network": "", "function": "", "compute_units": units, "problem": str(error)})
            continue
        found += [{"network": one.network, "precision": one.package.rpartition("-")[2], "function": one.function,
                   "compute_units": units, "snr": one.snr, "threshold": one.threshold, "problem": one.problem}
                  for one in results]
    return found


def measurements(bundle: str | None, console: Console) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows and notes of `ane bench`."""
    from ane.commands import bench
    from ane.commands.bench_run import choose, measure_functions, prepare

    parser = argparse.ArgumentParser()
    bench.register(parser.add_subparsers())
    args = parser.parse_args(["bench", *BENCH_FLAGS, *(["--bundle", bundle] if bundle else [])])
    try:
        run = prepare(args, console)
        rows = measure_functions(run)
        spoken, _, refused = choose(run, rows)
    except UserError as error:
        return [], [f"`ane bench` failed: {error}"]
    notes = [*run.notes, *(f"not chosen: {each.what}: {each.why}" for each in refused)]
    return [asdict(row) for row in [*rows, *(sentence.row for sentence in spoken)]], notes
