"""What every benchmark shares: the machine's description, medians with their spread, JSON, tables and plots."""

import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ane.bench.machine import commit, versions
from ane.system.errors import UserError
from ane.system.files import replacing

RESULTS = Path(__file__).parent / "results"
Draw = Callable[[Path], bool]       # makes a PNG; False: matplotlib is not installed


def run(main: Callable[[], None]) -> None:
    """Run a benchmark's ``main``; what is the user's to mend ends it with one line instead of a traceback."""
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")


@dataclass(frozen=True)
class Spread:
    """Median of several readings with the lowest and the highest; shown as the median and the furthest of the two."""

    median: float
    low: float
    high: float
    readings: int

    @classmethod
    def of(cls, readings: Sequence[float]) -> "Spread":
        return cls(statistics.median(readings), min(readings), max(readings), len(readings))

    def __str__(self) -> str:
        furthest = max(self.high - self.median, self.median - self.low)
        return f"{figure(self.median)} ±{furthest / abs(self.median):.0%}" if self.median else figure(self.median)


@dataclass(frozen=True)
class Quantiles:
    """Of several readings: what half of them, and what 19 of 20, are not above."""

    p50: float
    p95: float
    readings: int

    @classmethod
    def of(cls, readings: Sequence[float]) -> "Quantiles":
        if len(readings) == 1:
            return cls(readings[0], readings[0], 1)
        cuts = statistics.quantiles(readings, n=20, method="inclusive")
        return cls(cuts[9], cuts[18], len(readings))


@dataclass(frozen=True)
class Figures:
    """What the rows of all results share; None or nothing where a benchmark does not have it.

    Attributes:
        cold_start_s: seconds from the start of a process until it takes a request.
        first_audio_s: seconds from when the text is known until the first sound.
        real_time_factor: seconds of work for a second of audio.
        tokens_per_s: codes sampled in a second of decoding, in all lanes.
        peak_rss_gb: largest resident set of the process, 10^9 bytes.
        stage_ms: milliseconds of each stage.
    """

    cold_start_s: Spread | None = None
    first_audio_s: Quantiles | None = None
    real_time_factor: Spread | None = None
    tokens_per_s: Spread | None = None
    peak_rss_gb: Spread | None = None
    stage_ms: Mapping[str, Spread] = field(default_factory=dict)

    @classmethod
    def of(cls, readings: Sequence[Mapping[str, Any]], cold_starts: Sequence[float] = (),
           peaks: Sequence[float | None] = ()) -> "Figures":
        """Of the readings of processes that speak; see ``benchmarks.speaking``."""
        stages = {stage: Spread.of([1000 * reading["stages"].get(stage, 0.0) for reading in readings])
                  for stage in dict.fromkeys(stage for reading in readings for stage in reading["stages"])}
        known = [peak for peak in peaks if peak is not None]
        return cls(Spread.of(cold_starts) if cold_starts else None,
                   Quantiles.of([reading.get("first_audio", reading["took"]) for reading in readings]),
                   Spread.of([reading["took"] / reading["seconds"] for reading in readings]),
                   Spread.of([reading["codes"] / reading["stages"]["decode"] for reading in readings]),
                   Spread.of(known) if known else None, stages)


def shared(figures: Figures) -> dict[str, Any]:
    """The figures as keys of a row."""
    return {each.name: getattr(figures, each.name) for each in fields(figures)}


def figure(value: float) -> str:
    """Three digits, or all of them before the point: 0.61, 8.25, 82.5, 825, 8250."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """Chip, cores, memory, system, versions, commit, date and load: what a figure is worth nothing without."""
    return {
        "chip": chip(),
        "cores": usable_cores(),
        "memory_gb": memory_gb(),
        "accelerator": accelerator(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def chip() -> str:
    """The processor's name as its maker writes it."""
    if platform.system() == "Darwin":
        return output_of("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if named:
            return named[1].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_gb() -> float | None:
    """Physical memory in GB (10^9 bytes); None where the system does not tell."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, ValueError, OSError):
        return None


def accelerator() -> str | None:
    """The name of the first CUDA device, if torch sees one."""
    import torch  # imported late: `--help` needs none of it

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def output_of(*command: str) -> str | None:
    """What a command prints, stripped; None when it cannot run or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def default_output(benchmark: str) -> Path:
    """results/<date>-<benchmark>-<chip>.json, so that results of several days and machines lie side by side."""
    name = re.sub(r"[^a-z0-9]+", "-", chip().lower()).strip("-")
    return RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{benchmark}-{name}.json"


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a result, a :class:`Spread` as its four figures; replaces a file of that name."""
    with replacing(path) as staging:
        staging.write_text(json.dumps(document, indent=1, default=asdict, ensure_ascii=False) + "\n", encoding="utf-8")


def publish(output: Path, benchmark: str, settings: Any, results: Sequence[Mapping[str, Any]],
            tables: Sequence["Shown"], plots: Mapping[str, "Draw"], **more: Any) -> None:
    """Write the result, and beside it a plot for each of ``plots``: what its name ends in, and what draws it."""
    paths = {output.with_name(f"{output.stem}{ending}.png"): draw for ending, draw in plots.items()}
    drawn = [path.name for path, draw in paths.items() if draw(path)]
    write_json(output, {"benchmark": benchmark, "machine": more.pop("machine", None) or machine(), **more,
                        "settings": settings, "results": results, "tables": tables, "plots": drawn})
    missing = "" if len(drawn) == len(paths) else " (no plot: matplotlib is not installed)"
    print(" ".join([str(output), *drawn]) + missing, file=sys.stderr)


@dataclass(frozen=True)
class Shown:
    """A table as it was printed; its first column is a name, the others are figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Shown:
    """Print a table on standard output, None as a dash; the first column is a name, the others are figures."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)      # a log or a file, which does not tell its width
    shown = Shown(title, columns, [["–" if cell is None else str(cell) for cell in row] for row in rows])
    table = Table()
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in shown.rows:
        table.add_row(*row)
    console.print(title, table, sep="\n", highlight=False)
    return shown


def plot(path: Path, title: str, axes: tuple[str, str], series: Mapping[str, Mapping[float, Spread]]) -> bool:
    """Draw each series as its medians over x with bars from the lowest to the highest reading.

    Returns False, and draws nothing, where matplotlib is not installed (``pip install tortoise-ane[plots]``).
    """
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure  # the figure alone: no window system, no global state

    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    for name, points in series.items():
        spreads = list(points.values())
        below = [spread.median - spread.low for spread in spreads]
        above = [spread.high - spread.median for spread in spreads]
        axis.errorbar(list(points), [spread.median for spread in spreads], yerr=[below, above], marker="o", capsize=3,
                      label=name)
    axis.set(title=title, xlabel=axes[0], ylabel=axes[1])
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend()
    with replacing(path) as staging:
        figure.savefig(staging, dpi=120)
    return True


def bars(path: Path, title: str, label: str, rows: Mapping[str, Mapping[str, float]]) -> bool:
    """Draw a bar for each row, its parts end to end. Returns as ``plot``."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.5 + 0.35 * len(rows)), layout="constrained")
    axis = figure.subplots()
    left = dict.fromkeys(rows, 0.0)
    for part in dict.fromkeys(part for row in rows.values() for part in row):
        widths = [row.get(part, 0.0) for row in rows.values()]
        axis.barh(list(rows), widths, left=list(left.values()), label=part)
        left = {name: start + width for (name, start), width in zip(left.items(), widths, strict=True)}
    axis.set(title=title, xlabel=label)
    axis.invert_yaxis()
    axis.grid(alpha=0.3, axis="x")
    axis.legend()
    with replacing(path) as staging:
        figure.savefig(staging, dpi=120)
    return True


def curves(results: Sequence[Mapping[str, Any]], x: str, y: str) -> dict[str, dict[float, Spread]]:
    """A curve for each name of the rows that have a ``y``; an ``x`` that is a ``Spread`` stands at its median."""
    found: dict[str, dict[float, Spread]] = {}
    for row in results:
        if row[y] is not None:
            place = row[x].median if isinstance(row[x], Spread) else row[x]
            found.setdefault(row["name"], {})[place] = row[y]
    return found
