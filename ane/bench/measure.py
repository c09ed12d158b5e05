"""Measuring one thing: a cold load, the first call, a warm load, then percentiles of calls."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ane.bench.figures import Row, percentile
from ane.system.errors import UserError

FEWEST, PATIENCE = 5, 20.0      # calls, and seconds after which no more than these are made
Clock = Callable[[], float]


@dataclass(frozen=True)
class Subject:
    """Something to measure.

    Attributes:
        row: what it is; its figures are still to come.
        load: gives what ``prepare`` makes a call of. unload: lets go of it, so that another load is one.
        compiled: seconds of compiling since it was last asked.
    """

    row: Row
    load: Callable[[], Any]
    prepare: Callable[[Any], Callable[[], object]]
    unload: Callable[[], None] = lambda: None
    compiled: Callable[[], float | None] = lambda: None


def measured(subject: Subject, runs: int, clock: Clock = time.perf_counter) -> Row:
    """The row with its figures, or with the error that the user would meet."""
    try:
        loaded, cold = timed(subject.load, clock)
        compiled = subject.compiled()
        call = subject.prepare(loaded)
        _, first = timed(call, clock)
        del loaded, call
        subject.unload()
        loaded, warm = timed(subject.load, clock)
        call = subject.prepare(loaded)
        call()
        times = repeated(call, runs, clock)
        del loaded, call
        subject.unload()
    except UserError as error:
        return replace(subject.row, error=str(error))
    return replace(subject.row, compile_s=compiled, cold_load_s=cold - (compiled or 0), first_ms=1000 * first,
                   warm_load_s=warm, p50_ms=1000 * percentile(times, 0.5), p95_ms=1000 * percentile(times, 0.95),
                   runs=len(times))


def repeated(call: Callable[[], object], runs: int, clock: Clock = time.perf_counter) -> list[float]:
    """Seconds of each of ``runs`` calls; of ``FEWEST`` when they take longer than ``PATIENCE`` in all."""
    times: list[float] = []
    while len(times) < runs and (len(times) < FEWEST or sum(times) < PATIENCE):
        times.append(timed(call, clock)[1])
    return times


def timed(call: Callable[[], Any], clock: Clock = time.perf_counter) -> tuple[Any, float]:
    """What a call gives, and the seconds it takes."""
    started = clock()
    result = call()
    return result, clock() - started


def rows(subjects: Iterable[Subject], runs: int, skip: frozenset[tuple[str, str, str]] = frozenset(),
         begin: Callable[[Row], None] = lambda row: None) -> Iterator[Row]:
    """Measure all but those in ``skip`` (``Row.what``); ``begin`` is told before each, for it may be its last."""
    for subject in subjects:
        if subject.row.what not in skip:
            begin(subject.row)
            yield measured(subject, runs)
