"""Define the rows, tables and JSON documents for the measurements of `ane bench` and ``benchmarks``.

Every document describes the machine on which it was measured.
"""

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from ane.system.machine import memory_bytes, printed, processor_name, system_version, usable_cores

FORMAT = 2
PACKAGES = ("tortoise-ane", "coremltools", "torch", "numpy", "onnxruntime", "onnxruntime-gpu")
HIDDEN = ("bucket", "kind")  # settings that tables leave out, because a function's name contains them
NOISY = 0.2  # if readings spread by more than this share of their median, they cannot distinguish settings


@dataclass(frozen=True)
class Spread:
    """The median, minimum, maximum and 95th percentile of several readings of the same value."""

    median: float
    low: float
    high: float
    p95: float
    readings: int

    @classmethod
    def of(cls, readings: Sequence[float]) -> Self:
        p95 = statistics.quantiles(readings, n=20, method="inclusive")[-1] if len(readings) > 1 else readings[0]
        return cls(statistics.median(readings), min(readings), max(readings), p95, len(readings))

    @property
    def farthest(self) -> float:
        """The largest distance of a reading from the median, as a share of the median."""
        return max(self.high - self.median, self.median - self.low) / abs(self.median) if self.median else 0.0

    def __str__(self) -> str:
        return f"{digits(self.median)} ±{self.farthest:.0%}" if self.median else digits(self.median)


@dataclass(frozen=True)
class BenchRow:
    """One measured value, which is a row in a table.

    Attributes:
        competitor: Engine that was measured, with its device and precision, such as "torch:cpu int8".
        what: Name of the work that was measured, such as a function, a phase or "sentence".
        unit: Unit of ``value``.
        settings: Sizes and options of the work. Rows are compared if they have the same ``what`` and ``settings``.
        value: Readings. ``None`` means that nothing was measured.
        figures: Medians of other figures. The name of a figure contains its unit: "tokens_per_s", "first_ms".
        peak_bytes: Largest resident memory of the process, in bytes.
        error: Reason why there is no value.
    """

    competitor: str
    what: str
    unit: str = "ms"
    settings: Mapping[str, Any] = field(default_factory=dict)
    value: Spread | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)
    peak_bytes: int | None = None
    error: str | None = None


def compare(rows: Iterable[BenchRow], reference: Callable[[BenchRow], bool], figure: str) -> list[BenchRow]:
    """Add a figure to the rows: the median of a reference row, divided by the row's median.

    The figure is above 1 for faster rows.

    Args:
        rows: Rows to compare.
        reference: Function that returns whether a row is a reference. Each row is compared with the first reference
            that has the same ``what`` and ``settings``.
        figure: Name of the new figure.
    """

    def key(row: BenchRow) -> tuple[Any, ...]:
        return row.what, sorted((name, str(value)) for name, value in row.settings.items())

    rows, compared = list(rows), []
    for row in rows:
        other_value = next(
            (other.value for other in rows if other.value and reference(other) and key(other) == key(row)), None
        )
        ratio = {figure: other_value.median / row.value.median} if other_value and row.value else {}
        compared.append(replace(row, figures={**row.figures, **ratio}))
    return compared


def noise_note(rows: Iterable[BenchRow]) -> str | None:
    """Return a warning about rows whose readings vary too much to be compared, or ``None`` if no row varies so much."""
    shares = [row.value.farthest for row in rows if row.value]
    noisy = sum(share > NOISY for share in shares)
    return (
        (
            f"{noisy} of {len(shares)} times spread by more than {NOISY:.0%}, up to {max(shares):.0%}: other programs "
            "use this machine. Measure again when it is quiet."
        )
        if noisy
        else None
    )


def digits(value: float) -> str:
    """Format a number with three significant digits and all digits before the point: 0.61, 8.25, 82.5, 825, 8250."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def document(
    benchmark: str,
    settings: Mapping[str, Any],
    rows: Sequence[BenchRow],
    notes: Sequence[str] = (),
    machine: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Make the JSON document of a measurement, in version 2 of our format.

    Args:
        benchmark: Name of the benchmark.
        settings: Settings of the benchmark.
        rows: Measured rows.
        notes: Lines for readers of the document.
        machine: Description of the machine. ``None`` means this machine.
        more: Further keys of the document.
    """
    return {
        "format": FORMAT,
        "benchmark": benchmark,
        "machine": dict(machine or describe_machine()),
        "settings": dict(settings),
        "rows": [asdict(row) for row in rows],
        "notes": list(notes),
        **more,
    }


def table_cells(rows: Sequence[BenchRow]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the cells of a table.

    The columns are the competitor, the work, the settings that differ between rows, the value, other figures, peak
    memory and the error.
    """
    settings = [
        name
        for name in dict.fromkeys(name for row in rows for name in row.settings)
        if name not in HIDDEN and len({str(row.settings.get(name)) for row in rows}) > 1
    ]
    figures = list(dict.fromkeys(name for row in rows for name in row.figures))
    units = list(dict.fromkeys(row.unit for row in rows))
    peak, error = any(row.peak_bytes for row in rows), any(row.error for row in rows)
    headings = [
        "competitor",
        "what",
        *(name.replace("_", " ") for name in settings),
        units[0] if len(units) == 1 else "value",
        *(name.replace("_", " ") for name in figures),
        *(["peak GB"] if peak else []),
        *(["error"] if error else []),
    ]
    cells = []
    for row in rows:
        value = row.value and (str(row.value) if len(units) == 1 else f"{row.value} {row.unit}")
        numbers = [row.figures.get(name) for name in figures]
        numbers += [row.peak_bytes and row.peak_bytes / 1e9] if peak else []
        cells.append(
            [
                row.competitor,
                row.what,
                *(_cell(row.settings.get(name)) for name in settings),
                _cell(value),
                *map(_cell, numbers),
                *([row.error or ""] if error else []),
            ]
        )
    return headings, cells


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return digits(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


# Describe the machine and its software, because every figure depends on them


def describe_machine() -> dict[str, Any]:
    """Describe this machine: its chip and memory, the versions of libraries, the commit, and the system load."""
    return {
        "machine": platform.machine(),
        "chip": processor_name(),
        "instructions": instructions(),
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "accelerator": accelerator(),
        "os": system_version(),
        "python": platform.python_version(),
        "packages": installed_versions(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def instructions() -> str:
    """List the CPU instructions on which the choice of kernels depends, such as "AVX512 VNNI bf16 AMX".

    The name of a chip does not tell whether the chip has these instructions.
    """
    import torch

    return " ".join(
        [
            torch.backends.cpu.get_cpu_capability(),
            *["VNNI"] * torch.cpu._is_vnni_supported(),
            *["bf16"] * torch.cpu._is_avx512_bf16_supported(),
            *["AMX"] * torch.cpu._is_amx_tile_supported(),
        ]
    )


def accelerator() -> str | None:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def installed_versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def commit() -> str | None:
    """Return the short commit hash of the checkout, with a ``+`` if files differ from it.

    Return ``None`` outside a checkout.
    """
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return None
    head = printed("git", "-C", str(checkout), "rev-parse", "--short", "HEAD")
    changed = printed("git", "-C", str(checkout), "status", "--porcelain", "-uno")
    return f"{head}{'+' if changed else ''}" if head else None
