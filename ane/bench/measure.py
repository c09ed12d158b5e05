"""The measuring core: one call timed, a function loaded and called repeatedly, competitors that take turns."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ane.bench.records import BenchRow, Spread
from ane.system.errors import UserError

MIN_CALLS, MAX_SECONDS = 5, 20.0        # calls end after MAX_SECONDS, but not before MIN_CALLS
Clock = Callable[[], float]


def timed(call: Callable[[], Any], clock: Clock = time.perf_counter) -> tuple[Any, float]:
    """Result of a call, and the seconds it takes."""
    started = clock()
    result = call()
    return result, clock() - started


def repeated(call: Callable[[], object], runs: int, clock: Clock = time.perf_counter) -> list[float]:
    """Seconds of each of ``runs`` calls; fewer, but at least ``MIN_CALLS``, once they take ``MAX_SECONDS`` in all."""
    times: list[float] = []
    while len(times) < runs and (len(times) < MIN_CALLS or sum(times) < MAX_SECONDS):
        times.append(timed(call, clock)[1])
    return times


@dataclass(frozen=True)
class MeasuredFunction:
    """A function that is loaded, called, and loaded again.

    Attributes:
        row: what it is, without figures.
        load: loads it. prepare: returns a call of what ``load`` returned.
    """

    row: BenchRow
    load: Callable[[], Any]
    prepare: Callable[[Any], Callable[[], object]]


def measure_function(function: MeasuredFunction, runs: int, clock: Clock = time.perf_counter) -> BenchRow:
    """The row with its figures, or with the error that the user would get.

    The value is of up to ``runs`` calls after a warm-up, in ms. Figures: cold_load_s (the first of a
    package compiles it), first_ms (the first call, in which Core ML may still prepare), warm_load_s.
    """
    try:
        loaded, cold = timed(function.load, clock)
        call = function.prepare(loaded)
        _, first = timed(call, clock)
        del loaded, call
        loaded, warm = timed(function.load, clock)
        call = function.prepare(loaded)
        call()
        times = repeated(call, runs, clock)
        del loaded, call
    except UserError as error:
        return replace(function.row, error=str(error))
    figures = {"cold_load_s": cold, "first_ms": 1000 * first, "warm_load_s": warm}
    return replace(function.row, value=Spread.of([1000 * seconds for seconds in times]),
                   figures=figures)


@dataclass
class RepeatedCall:
    """A competitor's call, made once in every round.

    Attributes:
        row: what it is, without figures.
        call: makes the call and returns a reading: "value", and other figures by name; "peak_bytes" where it is known.
        readings: one a round.
    """

    row: BenchRow
    call: Callable[[], dict[str, float | None]]
    readings: list[dict[str, float | None]] = field(default_factory=list)

    def result(self) -> BenchRow:
        """The row with its figures: the spread of "value", the medians of the rest."""
        if not self.readings:
            return self.row
        names = [name for name, value in self.readings[0].items() if name not in ("value", "peak_bytes")]
        figures = {name: median(reading[name] for reading in self.readings) for name in names}
        peaks = [reading["peak_bytes"] for reading in self.readings if reading.get("peak_bytes") is not None]
        return replace(self.row, value=Spread.of([reading["value"] for reading in self.readings]),
                       figures={**self.row.figures, **figures}, peak_bytes=max(peaks, default=None))


def measure_in_rounds(calls: Sequence[RepeatedCall], rounds: int, warm_up: bool = True) -> list[BenchRow]:
    """Rows of competitors that take turns in every round, so that other load on the machine affects them all alike.

    Args:
        warm_up: a first round is made and not counted.

    A competitor that raises UserError is not called again; its row has the error and no value.
    """
    active = list(calls)
    for number in range(-warm_up, rounds):
        for timed_call in list(active):
            try:
                reading = timed_call.call()
            except UserError as error:
                timed_call.row, timed_call.readings = replace(timed_call.row, error=str(error)), []
                active.remove(timed_call)
                continue
            if number >= 0:
                timed_call.readings.append(reading)
    return [timed_call.result() for timed_call in calls]
