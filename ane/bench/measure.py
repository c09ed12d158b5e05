"""The measuring core: one call timed, a function loaded and called repeatedly, competitors that take turns; and what is
called: the functions of Core ML packages one by one, with the sizes of a spoken sentence.

Inputs are random numbers in the declared shapes, which an engine copies only where it copies caches, too.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.mil import Package
from ane.backends.mil.package import ProgramFunction
from ane.backends.packaged.functions import Runtime
from ane.bench.records import BenchRow, Spread
from ane.bundles.hashes import check_hashes
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.models.tortoise.diffusion import frame_count
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

MIN_CALLS, MAX_SECONDS = 5, 20.0  # calls end after MAX_SECONDS, but not before MIN_CALLS
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
    return replace(function.row, value=Spread.of([1000 * seconds for seconds in times]), figures=figures)


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
        return replace(
            self.row,
            value=Spread.of([reading["value"] for reading in self.readings]),
            figures={**self.row.figures, **figures},
            peak_bytes=max(peaks, default=None),
        )


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


CODES, TOKENS = 86, 40  # of a sentence of 4 s
# kind of function → the length that the sentence has there
LENGTHS = {
    "prefill": TOKENS + 4,
    "condition": CODES,
    "clvp_text": TOKENS,
    "clvp_speech": CODES,
    **dict.fromkeys(("denoise", "univnet", "hifigan", "source_filter", "mel_source_filter"), frame_count(CODES)),
}
CACHES = {"step": "io", "state": "state"}  # kind of a decoder's step function → kind of its cache


def package_functions(
    model: "Bundle", packages: Iterable[PackageRecord], engine: Runtime, spec: str, units: str | None
) -> Iterator[MeasuredFunction]:
    """Of these packages the functions that a sentence takes, and all of a decoder's steps and stores.

    Args:
        spec: the engine, as ``--backend`` takes it. units: compute units; None: the engine has none.
    """
    for package in packages:
        check_hashes(model.path, package.files)
        path = model.path / package.path
        declared = Package(path).functions
        for name in functions_of_a_sentence(package):
            record = package.functions[name]
            row = BenchRow(
                spec,
                name,
                settings={
                    "network": package.network,
                    "kind": record.kind,
                    "bucket": dict(record.bucket),
                    "precision": package.precision,
                    "compute_units": units,
                    "cache": CACHES.get(record.kind),
                },
            )
            yield MeasuredFunction(
                row,
                lambda path=path, name=name, package=package: engine.load(path, name, units or package.compute_units),
                lambda loaded, function=declared[name]: prediction(loaded, function, engine.in_place),
            )


def prediction(loaded: Any, function: ProgramFunction, in_place: bool = False) -> Callable[[], object]:
    """A call of a loaded function, on small normal numbers and with its own state. ``in_place``: see ``Runtime``."""
    rng = np.random.default_rng(0)
    inputs = {
        name: np.zeros(type.shape, np.int32)
        if type.dtype == "int32"
        else 0.1 * rng.standard_normal(type.shape, dtype=np.float32)
        for name, type in function.inputs.items()
    }
    state = loaded.make_state() if function.states else None
    if not in_place:
        return lambda: loaded.predict(inputs, state)
    large = {name: array for name, array in inputs.items() if array.dtype == np.float32}
    return lambda: loaded.predict({name: inputs[name] for name in inputs.keys() - large.keys()}, state, large)


def functions_of_a_sentence(package: PackageRecord) -> list[str]:
    """Of each kind the function that the sentence takes; of kinds without ``LENGTHS`` the smallest."""
    of_a_kind: dict[Any, list[str]] = {}  # functions that differ in their length only
    for name, record in package.functions.items():
        key = name if record.kind in (*CACHES, "store") else (record.kind, record.bucket.get("batch"))
        of_a_kind.setdefault(key, []).append(name)
    return [
        smallest_fitting(names, package.functions, LENGTHS.get(package.functions[names[0]].kind, 0))
        for names in of_a_kind.values()
    ]


def smallest_fitting(names: list[str], functions: Mapping[str, FunctionRecord], length: int) -> str:
    """The function with the smallest bucket that takes ``length`` columns, latents or frames, else the largest."""

    def size(name: str) -> int:
        bucket = functions[name].bucket
        return max((bucket[key] for key in ("columns", "latents", "frames", "positions") if key in bucket), default=0)

    fitting = [name for name in names if size(name) >= length]
    return min(fitting, key=size) if fitting else max(names, key=size)
