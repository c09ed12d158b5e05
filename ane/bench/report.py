"""What a run found: as a JSON document, as tables, as a plot.

The document, format 1:

    format          1
    what            "ane bench"
    machine         machine, chip, cores, memory_bytes, os, os_build, python, packages (name → version), commit (of a
                    checkout, with + when it was changed; else null), date (ISO 8601, UTC), load_average
    bundle          name, identity (hash of weights and configs), key (identity and Core ML packages), packages
    sentence        text, preset, seed, candidates, steps
    notes           what the reader should know, a line each
    rows            functions or stages, each ``figures.Row``: times in seconds (…_s) or milliseconds (…_ms), null where
                    there is none; error says why
    spoken          the sentence, each ``figures.Spoken``
    refused         settings that are out: what, why
    chosen          ``ane.backends.tuning.Tuning``, or null
    remembered      whether it was kept
"""

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ane.backends import tuning
from ane.bench.choosing import Refused, told
from ane.bench.figures import SEED, Calls, Row, Spoken
from ane.system.errors import UserError
from ane.system.files import replacing

if TYPE_CHECKING:
    from ane.bundles import Model

FORMAT = 1
NO_STREAMING = "Time to first audio is that of the whole file: nothing is streamed yet."


def document(model: "Model", machine: dict[str, Any], calls: Calls, preset: str, text: str, rows: Sequence[Row],
             spoken: Sequence[Spoken], refused: Sequence[Refused], chosen: tuning.Tuning | None, remembered: bool,
             notes: Sequence[str]) -> dict[str, Any]:
    packages = [package.path for package in getattr(model, "packages", None) or ()]
    return {
        "format": FORMAT, "what": "ane bench", "machine": machine,
        "bundle": {"name": model.name, "identity": model.identity, "key": tuning.key(model), "packages": packages},
        "sentence": {"text": text, "preset": preset, "seed": SEED, "candidates": calls.candidates,
                     "steps": calls.steps},
        "notes": list(notes), "rows": [dataclasses.asdict(row) for row in rows],
        "spoken": [dataclasses.asdict(said) for said in spoken],
        "refused": [dataclasses.asdict(out) for out in refused],
        "chosen": chosen and dataclasses.asdict(chosen), "remembered": remembered}


def rows_table(rows: Sequence[Row]) -> Table:
    """A line for each row; columns that would be empty are left out."""
    compiled, placed = any(row.compile_s for row in rows), any(row.placement for row in rows)
    packaged, steps = any(row.units for row in rows), any(row.lanes for row in rows)
    columns = ["network", "function", "backend", "precision", *(["units"] if packaged else ["threads"]),
               *(["cache", "lanes"] if steps else []), *(["compile s"] if compiled else []), "cold load s", "first ms",
               "warm load s", "p50 ms", "p95 ms", "runs", *(["placement"] if placed else [])]
    table = Table(*columns, title="Functions", title_justify="left")
    for column in table.columns[-(6 + compiled + placed):]:
        column.justify = "right"
    for row in rows:
        where = row.units if packaged else row.threads
        if packaged and row.threads:
            where = f"threads {row.threads}"
        cells = [row.network, row.function, row.backend, row.precision, where,
                 *([row.cache, row.lanes] if steps else []), *([_figure(row.compile_s)] if compiled else [])]
        if row.error:
            cells += [row.error]
        else:
            cells += [*map(_figure, (row.cold_load_s, row.first_ms, row.warm_load_s, row.p50_ms, row.p95_ms)), row.runs]
            cells += [_shares(row.placement)] if placed else []
        table.add_row(*("–" if cell is None else str(cell) for cell in cells))
    return table


def spoken_table(spoken: Sequence[Spoken]) -> Table:
    energy = any(said.joules for said in spoken)
    table = Table("settings", "real-time factor", "to first audio s", "first time s", "peak MB", "audio s", "spent",
                  *(["J a second"] if energy else []), title="The sentence", title_justify="left")
    for column in table.columns[1:6]:
        column.justify = "right"
    for said in spoken:
        if said.error:
            table.add_row(told(said.tuning), said.error)
            continue
        stages = ", ".join(f"{stage} {_figure(seconds)}" for stage, seconds in said.spent.items())
        table.add_row(told(said.tuning), _figure(said.real_time_factor), _figure(said.first_audio_s),
                      _figure(said.cold_first_audio_s), f"{said.peak_bytes / 1e6:.0f}", _figure(said.seconds), stages,
                      *([_figure(said.joules and said.joules / said.seconds)] if energy else []))
    return table


def remembered_table(entries: Sequence[tuning.Entry], machine: tuple[str, str]) -> Table:
    table = Table("model", "settings", "real-time factor", "measured", "used on")
    for entry in entries:
        measured = entry.tuning.measured
        here = (entry.chip, entry.os_build) == tuple(machine)
        table.add_row(f"{entry.model} ({entry.bundle[:8]})", told(entry.tuning),
                      str(measured.get("real_time_factor", "–")), str(measured.get("date", "–")),
                      "this machine" if here else f"{entry.chip}, {entry.os_build}")
    return table


def plot(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Medians with a whisker to the 95th percentile, a bar for each row, colours by backend and units.

    Raises:
        UserError: matplotlib is not installed, the place cannot be written, or its suffix is no picture's.
    """
    check_plot(path)
    from matplotlib.figure import Figure  # the figure alone: no window system, no global state

    drawn = [row for row in rows if row.p50_ms is not None]
    figure = Figure(figsize=(10, max(3, 0.25 * len(drawn) + 1.5)), layout="constrained")
    axis = figure.subplots()
    kinds = list(dict.fromkeys(_kind(row) for row in drawn))
    for number, kind in enumerate(kinds):
        places = [place for place, row in enumerate(drawn) if _kind(row) == kind]
        medians = [drawn[place].p50_ms for place in places]
        beyond = [drawn[place].p95_ms - drawn[place].p50_ms for place in places]
        axis.barh(places, medians, xerr=[[0] * len(places), beyond], color=f"C{number}", label=kind, capsize=2)
    axis.set_yticks(range(len(drawn)), [f"{row.function}, {row.precision}" for row in drawn], fontsize=7)
    axis.invert_yaxis()
    axis.set(title=title, xlabel="ms a call: median, 95th percentile", xscale="log")
    axis.grid(alpha=0.3, axis="x")
    axis.legend()
    with replacing(path) as staging:
        figure.savefig(staging, dpi=120)


def check_plot(path: Path) -> None:
    """Raise UserError when no plot could be written there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--plot is drawn by matplotlib, which is not installed: pip install 'tortoise-ane[plots]'")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--plot {path}: the suffix is the format: .png, .svg or .pdf")


def _kind(row: Row) -> str:
    return " ".join(str(part) for part in (row.backend, row.units, row.threads and f"threads {row.threads}") if part)


def _figure(value: float | None) -> str:
    """Three digits, or all of them before the point; "–" for none."""
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _shares(placement: dict[str, float] | None) -> str:
    return ", ".join(f"{device} {share:.0%}" for device, share in (placement or {}).items()) or "–"
