"""Measurements as a table, as a plot and as a JSON document.

The document, format 2: "format", "benchmark" (its name), "machine" (``ane.bench.machine``), "settings", "rows" (each a
``ane.bench.records.BenchRow``), "notes" (lines for the reader), "plots" (files beside it), and what one benchmark adds.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ane.bench.machine import describe_machine
from ane.bench.records import BenchRow, digits
from ane.system.errors import UserError
from ane.system.files import check_output_file, replacing

FORMAT = 2
PLOT_SUFFIXES = (".png", ".svg", ".pdf")
HIDDEN = ("bucket", "kind")        # settings that the name of a function states already


def document(benchmark: str, settings: Mapping[str, Any], rows: Sequence[BenchRow], notes: Sequence[str] = (),
             plots: Sequence[str] = (), machine: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The JSON document (see above); ``more`` are its other keys."""
    return {"format": FORMAT, "benchmark": benchmark, "machine": dict(machine or describe_machine()),
            "settings": dict(settings), "rows": [asdict(row) for row in rows], "notes": list(notes),
            "plots": list(plots), **more}


def table_cells(rows: Sequence[BenchRow]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: competitor, what, settings that differ, the value, the figures, the peak, the error."""
    settings = [name for name in dict.fromkeys(name for row in rows for name in row.settings)
                if name not in HIDDEN and len({str(row.settings.get(name)) for row in rows}) > 1]
    figures = list(dict.fromkeys(name for row in rows for name in row.figures))
    units = list(dict.fromkeys(row.unit for row in rows))
    peak, error = any(row.peak_bytes for row in rows), any(row.error for row in rows)
    headings = ["competitor", "what", *(name.replace("_", " ") for name in settings),
                units[0] if len(units) == 1 else "value", *(name.replace("_", " ") for name in figures),
                *(["peak GB"] if peak else []), *(["error"] if error else [])]
    cells = []
    for row in rows:
        value = row.value and (str(row.value) if len(units) == 1 else f"{row.value} {row.unit}")
        numbers = [row.figures.get(name) for name in figures]
        numbers += [row.peak_bytes and row.peak_bytes / 1e9] if peak else []
        cells.append([row.competitor, row.what, *(_cell(row.settings.get(name)) for name in settings), _cell(value),
                      *("–" if number is None else digits(number) for number in numbers),
                      *([row.error or ""] if error else [])])
    return headings, cells


def print_rows(title: str, rows: Sequence[BenchRow]) -> None:
    headings, cells = table_cells(rows)
    print_table(title, headings, cells)


def print_table(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=200)     # a file or pipe has no width of its own
    table = Table()
    for heading in headings:
        numeric = heading not in ("competitor", "what", "error", "settings")
        table.add_column(heading, justify="right" if numeric else "left")
    for row in cells:
        table.add_row(*row)
    console.print(title, table, sep="\n")


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return digits(value) if isinstance(value, float) else str(value)


def plot(path: Path, title: str, rows: Sequence[BenchRow], x: str | None = None) -> None:
    """Medians with whiskers from the lowest to the highest reading: lines over the setting ``x``, else bars.

    Raises:
        UserError: as ``check_plot``.
    """
    check_plot(path)
    from matplotlib.figure import Figure  # without a window system and global state

    rows = [row for row in rows if row.value is not None]
    size = (8, 5) if x else (10, max(3, 0.25 * len(rows) + 1.5))
    figure = Figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    for number, (name, group) in enumerate(_groups(rows, x).items()):
        values = [row.value for row in group]
        error = [[value.median - value.low for value in values], [value.high - value.median for value in values]]
        medians = [value.median for value in values]
        if x:
            axis.errorbar([row.settings[x] for row in group], medians, yerr=error, marker="o", capsize=3, label=name)
        else:
            positions = [position for position, row in enumerate(rows) if any(row is other for other in group)]
            axis.barh(positions, medians, xerr=error, color=f"C{number}", label=name, capsize=2)
    unit = ", ".join(dict.fromkeys(row.unit for row in rows))
    if x:
        axis.set(title=title, xlabel=x.replace("_", " "), ylabel=unit)
        axis.set_ylim(bottom=0)
    else:
        axis.set_yticks(range(len(rows)), [_label(row, rows) for row in rows], fontsize=7)
        axis.invert_yaxis()
        axis.set(title=title, xlabel=unit)
    axis.grid(alpha=0.3)
    if rows:
        axis.legend()
    with replacing(path) as staging:
        figure.savefig(staging, dpi=120, format=path.suffix[1:])


def check_plot(path: Path) -> None:
    """Raise UserError when no plot can be written: no matplotlib, an unknown suffix, or a read-only path."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("plots need matplotlib, which is not installed: pip install 'tortoise-ane[plots]'")
    if path.suffix not in PLOT_SUFFIXES:
        raise UserError(f"{path}: a plot's suffix is its format: {', '.join(PLOT_SUFFIXES)}")
    check_output_file(path)


def _groups(rows: Sequence[BenchRow], x: str | None) -> dict[str, list[BenchRow]]:
    """Rows by what their line or colour stands for: the competitor, for lines also what and the other settings."""
    groups: dict[str, list[BenchRow]] = {}
    for row in rows:
        if x is None:
            name = ", ".join([row.competitor, *([units] if (units := row.settings.get("compute_units")) else [])])
            groups.setdefault(name, []).append(row)
        elif row.settings.get(x) is not None:
            groups.setdefault(f"{row.competitor}, {_label(row, rows, (x,))}", []).append(row)
    return groups


def _label(row: BenchRow, rows: Sequence[BenchRow], without: Sequence[str] = ()) -> str:
    differing = [f"{name} {value}" for name, value in row.settings.items()
                 if name not in (*HIDDEN, *without) and value is not None
                 and len({str(other.settings.get(name)) for other in rows}) > 1]
    return ", ".join([row.what, *differing])
