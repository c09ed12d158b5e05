"""The report of `ane doctor --report`: what a machine does with a model's packages, to be sent to others.

It has no path and no user name (``without_personal_names``). Format 1, a JSON object with the fields of
``MachineReport``, which ``report.schema.json`` describes and ``read_report`` checks.
"""

import getpass
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ane.bench.records import BenchRow
from ane.system.errors import UserError
from ane.system.files import read_json
from ane.system.json_schema import check_schema

FORMAT = 1
SCHEMA = Path(__file__).with_name("report.schema.json")
ABSOLUTE_PATH = re.compile(r"(?<![\w:/.~])(?:~|[A-Za-z]:)?[/\\](?:[\w.@+~ -]+[/\\])*[\w.@+~-]+")


@dataclass(frozen=True)
class MachineReport:
    """
    Attributes:
        machine: chip, memory, system and versions (``ane.bench.machine.describe_machine``).
        findings: of `ane doctor`.
        model: its name and identity.
        placement: for each function and choice of compute units, {"network", "precision", "function",
            "compute_units", "ops": operations by device, "costs": their estimated cost, "unknown"}, or {…, "problem"}.
        parity: the same keys, with "snr" and "threshold" in dB and "problem".
        rows: of `ane bench`, which include the joules of a sentence where powermetrics may be read.
        notes: what could not be measured, and why.
    """

    machine: dict[str, Any]
    findings: list[dict[str, Any]] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    placement: list[dict[str, Any]] = field(default_factory=list)
    parity: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    format: int = FORMAT

    def as_json(self) -> dict[str, Any]:
        return without_personal_names(asdict(self), personal_names())

    @property
    def bench_rows(self) -> list[BenchRow]:
        return [BenchRow.read(row) for row in self.rows]


def read_report(path: Path) -> MachineReport:
    """A report, or the rows of an `ane bench` document as one. Raises UserError when the file is neither."""
    content = read_json(path)
    if isinstance(content, dict) and content.get("benchmark") == "ane bench":
        content = {name: content.get(name) for name in ("machine", "rows", "notes")} | {"format": FORMAT}
    stated = content.get("format") if isinstance(content, dict) else None
    if isinstance(stated, int) and stated > FORMAT:
        raise UserError(f"{path} has format {stated}, this version reads format {FORMAT}: update tortoise-ane")
    try:
        check_schema(content, read_json(SCHEMA))
    except ValueError as error:
        raise UserError(f"{path} is not a report of `ane doctor --report` or `ane bench -o`: {error}") from error
    return MachineReport(**content)


def personal_names() -> tuple[str, ...]:
    """Names that a report must not have: of the user and of this machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = ""
    host = platform.node()
    found = {user, Path.home().name, host, host.partition(".")[0]} - {"", "root", "localhost"}
    return tuple(sorted(found, key=len, reverse=True))


def without_personal_names(value: Any, names: Sequence[str]) -> Any:
    """A JSON value with "…" in place of names, and of every absolute path only its last part."""
    if isinstance(value, Mapping):
        return {without_personal_names(key, names): without_personal_names(one, names) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_personal_names(one, names) for one in value]
    if not isinstance(value, str):
        return value
    text = ABSOLUTE_PATH.sub(lambda found: re.split(r"[/\\]", found[0])[-1], value)
    for name in names:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "…", text, flags=re.IGNORECASE)
    return text


def comparison(reports: Sequence[MachineReport]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a table with a row for each measurement and a column for each report."""
    labels = [f"{number} {report.machine['chip']}, {report.machine.get('os', '')}" if len(reports) > 1
              else report.machine["chip"] for number, report in enumerate(reports, 1)]
    columns: list[dict[tuple[str, ...], str]] = []
    for report in reports:
        column: dict[tuple[str, ...], str] = {}
        for row in report.bench_rows:
            units = row.settings.get("compute_units") or ""
            network, precision = row.settings.get("network") or "", row.settings.get("precision") or ""
            text = f"{row.value} {row.unit}" if row.value else (row.error or "–")
            column[row.what, network, precision, f"{row.competitor} {units}".strip(), "time"] = text
            for name in ("joules", "real_time_factor"):
                if row.figures.get(name) is not None:
                    column[row.what, network, precision, f"{row.competitor} {units}".strip(), name.replace(
                        "_", " ")] = f"{row.figures[name]:.3g}"
        for entry in report.parity:
            key = entry["function"], entry["network"], entry.get("precision", ""), entry["compute_units"], "parity"
            column[key] = entry.get("problem") or decibels(entry.get("snr"))
        for entry in report.placement:
            key = entry["function"], entry["network"], entry.get("precision", ""), entry["compute_units"], "placement"
            column[key] = entry.get("problem") or ", ".join(
                f"{count} on {device}" for device, count in entry.get("ops", {}).items())
        columns.append(column)
    keys = list(dict.fromkeys(key for column in columns for key in column))
    headings = ["function", "network", "precision", "on", "measure", *labels]
    return headings, [[*key, *(column.get(key, "–") for column in columns)] for key in keys]


def decibels(snr: float | None) -> str:
    return "–" if snr is None else f"{snr} dB"


def rows_to_plot(reports: Sequence[MachineReport]) -> list[BenchRow]:
    """The times of the functions of all reports, grouped by function; each report is a competitor."""
    found: dict[str, list[BenchRow]] = {}
    for number, report in enumerate(reports, 1):
        for row in report.bench_rows:
            if row.value and row.what != "sentence":
                parts = row.settings.get("precision"), row.competitor, row.settings.get("compute_units")
                label = ", ".join([row.what, *(part for part in parts if part)])
                found.setdefault(label, []).append(
                    replace(row, what=label, competitor=f"{number} {report.machine['chip']}", settings={}))
    return [row for rows in found.values() for row in rows]
