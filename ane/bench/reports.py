"""The report of `ane doctor --report`: what a machine does with a model's packages, to be sent to others.

It has no path and no user name (``without_personal_names``). Format 1, a JSON object; ``schema`` describes it.
"""

import getpass
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from ane.bench.records import BenchRow
from ane.system.errors import UserError
from ane.system.files import read_json
from ane.system.records import read_record

FORMAT = 1
ABSOLUTE_PATH = re.compile(r"(?<![\w:/.~])(?:~|[A-Za-z]:)?[/\\](?:[\w.@+~ -]+[/\\])*[\w.@+~-]+")


@dataclass(frozen=True)
class Finding:
    """One fact about the machine.

    Attributes:
        state: "ok"; "missing": something optional is not there; "broken": it stops `ane say`.
        fix: the command or the step that adds or repairs it; "" when there is nothing to do.
    """

    subject: str
    state: str
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class MeasuredPlacement:
    """Where Core ML runs a function: operations by device and their share of the estimated cost, or the problem."""

    network: str
    function: str
    compute_units: str
    precision: str = ""
    ops: dict[str, int] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    unknown: int = 0
    problem: str = ""
    elsewhere: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class MeasuredParity:
    """A function compared with the PyTorch network, in dB, on a choice of compute units, or the problem."""

    network: str
    function: str
    compute_units: str
    precision: str = ""
    snr: float | None = None
    threshold: float = 0.0
    problem: str = ""


class Machine(TypedDict):
    """``ane.bench.machine.describe_machine``: memory, cores, versions and so on are read as they are."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    chip: str
    os: NotRequired[str]


@dataclass(frozen=True)
class MachineReport:
    """
    Attributes:
        findings: of `ane doctor`. model: its name and identity.
        rows: of `ane bench`. notes: what could not be measured, and why.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    machine: Machine
    findings: list[Finding] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    placement: list[MeasuredPlacement] = field(default_factory=list)
    parity: list[MeasuredParity] = field(default_factory=list)
    rows: list[BenchRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = field(kw_only=True)

    def as_json(self) -> dict[str, Any]:
        return without_personal_names(asdict(self), personal_names())


def schema() -> dict[str, Any]:
    """The JSON Schema of a report."""
    return TypeAdapter(MachineReport).json_schema()


def read_report(path: Path) -> MachineReport:
    """A report, or the rows of an `ane bench` document as one. Raises UserError when the file is neither."""
    content = read_json(path)
    if isinstance(content, dict) and content.get("benchmark") == "ane bench":
        content = {name: content.get(name) for name in ("machine", "rows", "notes")} | {"format": FORMAT}
    stated = content.get("format") if isinstance(content, dict) else None
    if isinstance(stated, int) and stated > FORMAT:
        raise UserError(f"{path} has format {stated}, this version reads format {FORMAT}: update tortoise-ane")
    return read_record(MachineReport, content, f"{path} is not a report of `ane doctor --report` or `ane bench -o`")


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
    columns = [dict(measurements(report)) for report in reports]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    headings = ["function", "network", "precision", "on", "measure", *labels]
    return headings, [[*key, *(column.get(key, "–") for column in columns)] for key in keys]


def measurements(report: MachineReport) -> Iterator[tuple[tuple[str, ...], str]]:
    """Function, network, precision, where and measure of each value of a report, and the value as text."""
    for row in report.rows:
        network, precision, units = (str(row.settings.get(name) or "") for name in (
            "network", "precision", "compute_units"))
        key = row.what, network, precision, f"{row.competitor} {units}".strip()
        yield (*key, "time"), f"{row.value} {row.unit}" if row.value else (row.error or "–")
    for entry in (*report.parity, *report.placement):
        key = entry.function, entry.network, entry.precision, entry.compute_units
        if isinstance(entry, MeasuredParity):
            yield (*key, "parity"), entry.problem or ("–" if entry.snr is None else f"{entry.snr} dB")
        else:
            yield (*key, "placement"), entry.problem or ", ".join(
                f"{count} on {device}" for device, count in entry.ops.items())
