"""Measures what `ane doctor --report` writes: placement and parity of every function, and `ane bench`."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ane.bench.reports import FORMAT, Finding, MachineReport, MeasuredParity, MeasuredPlacement
from ane.bundles.packages import COMPUTE_UNITS
from ane.commands.packages import with_packages
from ane.commands.progress import status_display
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

UNITS = COMPUTE_UNITS[:3]
BENCH_FLAGS = ("--runs", "10")


def measure_report(bundle: str | None, findings: Sequence[Finding], console: Console) -> MachineReport:
    """Measure everything; what fails is a problem or a note of the report. Raises UserError for an unknown bundle."""
    from ane.bench.machine import describe_machine
    from ane.bundles.opening import DEMO, open_model

    model: Any = with_packages(open_model(bundle or DEMO), "coreml" if sys.platform == "darwin" else "mil", console)
    notes: list[str] = []
    placement: list[MeasuredPlacement] = []
    if sys.platform == "darwin":
        with status_display(console, "asking for the placement") as show:
            placement = list(placements(model, show))
    else:
        notes.append("placement is known on a Mac only")
    with status_display(console, "comparing with the reference") as show:
        parity = list(parities(model, show))
    rows, bench_notes = measurements(model.path, console)
    return MachineReport(describe_machine(), list(findings), {"name": model.name, "identity": model.identity},
                         placement, parity, rows, [*notes, *bench_notes], format=FORMAT)


def placements(model: "Bundle", show: Callable[[str], None]) -> Iterator[MeasuredPlacement]:
    from ane.backends.mil.package import Package
    from ane.commands.placement import package_placements

    for package in model.packages:
        for name in package.functions:
            show(f"placement of {Path(package.path).stem} {name}")
            try:
                placed = package_placements(Package(model.path / package.path), package.compute_units, [name])[name]
                found = {"problem": "Core ML has no plan"} if placed is None else asdict(placed)
            except UserError as error:
                found = {"problem": str(error)}
            yield MeasuredPlacement(package.network, name, package.compute_units, package.precision, **found)


def parities(model: "Bundle", show: Callable[[str], None]) -> Iterator[MeasuredParity]:
    """On a Mac, Core ML on each choice of compute units; elsewhere the interpreter with the rounding of fp16."""
    from converters.proof.verify import choose_packages, runner_named, verify

    on_mac = sys.platform == "darwin"
    for units in UNITS if on_mac else ("interpreter",):
        try:
            runner = runner_named("coreml", compute_units=units) if on_mac else runner_named(
                "mil:fp16")
            for one in verify(model, choose_packages(model), runner, progress=lambda what: show(f"parity of {what}")):
                yield MeasuredParity(one.network, one.function, units, one.package.rpartition("-")[2], one.snr,
                                     one.threshold, one.problem or "")
        except UserError as error:
            yield MeasuredParity("", "", units, problem=str(error))


def measurements(bundle: Path, console: Console) -> tuple[list[Any], list[str]]:
    """The rows and notes of `ane bench`."""
    from ane.commands import bench

    parser = argparse.ArgumentParser()
    bench.register(parser.add_subparsers())
    args = parser.parse_args(["bench", *BENCH_FLAGS, "--bundle", str(bundle)])
    try:
        run = bench.prepare(args, console)
        run.measure()
    except UserError as error:
        return [], [f"`ane bench` failed: {error}"]
    return run.all_rows, run.notes
