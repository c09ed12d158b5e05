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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ane.bench.machine import commit, versions
from ane.errors import UserError
from ane.files import replacing

RESULTS = Path(__file__).parent / "results"


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


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output: the first column is a name, the others are figures."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)      # a log or a file, which does not tell its width
    table = Table()
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*("–" if cell is None else str(cell) for cell in row))
    console.print(title, table, sep="\n", highlight=False)


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
