"""The record of a measurement, which `ane bench` and ``benchmarks`` write, and comparison of records."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class Spread:
    """Several readings of one value: median, lowest, highest and 95th percentile."""

    median: float
    low: float
    high: float
    p95: float
    readings: int

    @classmethod
    def of(cls, readings: Sequence[float]) -> Self:
        p95 = float(np.percentile(readings, 95))       # interpolates between readings, numpy's "linear"
        return cls(statistics.median(readings), min(readings), max(readings), p95, len(readings))

    def __str__(self) -> str:
        """Median and the distance of the farthest reading, as a share of the median."""
        farthest = max(self.high - self.median, self.median - self.low)
        return f"{digits(self.median)} ±{farthest / abs(self.median):.0%}" if self.median else digits(self.median)


@dataclass(frozen=True)
class BenchRow:
    """One measured value.

    Attributes:
        competitor: what was measured: an engine with its device and precision, as "torch:cpu int8".
        what: the work: a function, a stage, "sentence", ….
        unit: of ``value``.
        settings: the sizes and options that the work was done with; rows with equal ``what`` and settings are compared.
        value: the readings; None: nothing was measured.
        figures: other medians, each with its unit in its name: "tokens_per_s", "first_ms".
        peak_bytes: largest resident set of the process.
        error: why there is no value.
    """

    competitor: str
    what: str
    unit: str = "ms"
    settings: Mapping[str, Any] = field(default_factory=dict)
    value: Spread | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: int | None = None
    error: str | None = None

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Self:
        value = content["value"]
        return cls(**{each.name: content[each.name] for each in fields(cls)} | {"value": value and Spread(**value)})


def compare(rows: Iterable[BenchRow], reference: Callable[[BenchRow], bool], figure: str) -> list[BenchRow]:
    """The rows with ``figure``: a reference row's median over their own, above 1 for rows that are faster.

    Args:
        reference: whether a row is a reference; the first one with equal ``what`` and settings counts.
    """
    def key(row: BenchRow) -> tuple[Any, ...]:
        return row.what, sorted((name, str(value)) for name, value in row.settings.items())

    rows, found = list(rows), []
    for row in rows:
        alike = (other.value for other in rows if other.value and reference(other) and key(other) == key(row))
        theirs = next(alike, None)
        ratio = {figure: theirs.median / row.value.median} if theirs and row.value else {}
        found.append(replace(row, figures={**row.figures, **ratio}))
    return found


def digits(value: float) -> str:
    """Three significant digits, or all before the point: 0.61, 8.25, 82.5, 825, 8250."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
