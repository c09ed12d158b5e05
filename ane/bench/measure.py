"""Measure one call, a function loaded and called repeatedly, or competitors that take turns.

The measured functions are the functions of Core ML packages, one by one, with the sizes of a spoken sentence. Inputs
are random numbers in the declared shapes. An engine copies them only if it copies caches, too.
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
from ane.bundles.package_records import FunctionRecord, PackageRecord
from ane.models.tortoise.diffusion import frame_count
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

MIN_CALLS, MAX_SECONDS = 5, 20.0  # calls end after MAX_SECONDS, but not before MIN_CALLS
Clock = Callable[[], float]


def timed(call: Callable[[], Any], clock: Clock = time.perf_counter) -> tuple[Any, float]:
    """Return the result of a call and the seconds that it took."""
    started = clock()
    result = call()
    return result, clock() - started


def repeated(call: Callable[[], object], runs: int, clock: Clock = time.perf_counter) -> list[float]:
    """Return the seconds of ``runs`` calls, or of fewer (at least ``MIN_CALLS``) once they exceed ``MAX_SECONDS``."""
    times: list[float] = []
    while len(times) < runs and (len(times) < MIN_CALLS or sum(times) < MAX_SECONDS):
        times.append(timed(call, clock)[1])
    return times


@dataclass(frozen=True)
class MeasuredFunction:
    """A function that is loaded, called, and loaded again.

    Attributes:
        row: The row that describes the function, without figures.
        load: Loads the function.
        prepare: Takes the result of ``load`` and returns a call of it.
    """

    row: BenchRow
    load: Callable[[], Any]
    prepare: Callable[[Any], Callable[[], object]]


def measure_function(function: MeasuredFunction, runs: int, clock: Clock = time.perf_counter) -> BenchRow:
    """Return the row with its figures, or with the error that the user would get.

    The value is the time in ms of up to ``runs`` calls after a warm-up. Figures are cold_load_s (the first load of a
    package compiles it), first_ms (the first call, in which Core ML may still prepare) and warm_load_s.
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
        row: The row that describes the call, without figures.
        call: Makes the call and returns a reading: "value", other figures by name, and "peak_bytes" if it is known.
        readings: One reading per round.
    """

    row: BenchRow
    call: Callable[[], dict[str, float | None]]
    readings: list[dict[str, float | None]] = field(default_factory=list)

    def result(self) -> BenchRow:
        """Return the row with its figures: the spread of "value", and the medians of all others."""
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
    """Return the rows of competitors that take turns in every round, so that other load affects all of them alike.

    A competitor that raises UserError is not called again. Its row has the error and no value.

    Args:
        calls: The competitors' calls.
        rounds: Number of rounds.
        warm_up: Whether to make a first round that is not counted.
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


CODES, TOKENS = 86, 40  # in a sentence of 4 s
# kind of function → length of the sentence there
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
    """Yield the functions that a sentence takes from these packages, and all steps and stores of a decoder.

    Args:
        model: The bundle with the packages.
        packages: Records of the packages.
        engine: Runtime that runs them.
        spec: Name of the engine, as ``--backend`` takes it.
        units: Compute units. ``None`` means that the engine has none.
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
    """Return a call of a loaded function, on small normal numbers and with a new state.

    See ``Runtime`` for ``in_place``.
    """
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
    """Return the function that the sentence takes for each kind, or the smallest one for a kind without ``LENGTHS``."""
    by_kind: dict[Any, list[str]] = {}  # functions that differ only in their length
    for name, record in package.functions.items():
        key = name if record.kind in (*CACHES, "store") else (record.kind, record.bucket.get("batch"))
        by_kind.setdefault(key, []).append(name)
    return [
        smallest_fitting(names, package.functions, LENGTHS.get(package.functions[names[0]].kind, 0))
        for names in by_kind.values()
    ]


def smallest_fitting(names: list[str], functions: Mapping[str, FunctionRecord], length: int) -> str:
    """Return the function with the smallest bucket that fits ``length`` columns, latents or frames, or the largest."""

    def size(name: str) -> int:
        bucket = functions[name].bucket
        return max((bucket[key] for key in ("columns", "latents", "frames", "positions") if key in bucket), default=0)

    fitting = [name for name in names if size(name) >= length]
    return min(fitting, key=size) if fitting else max(names, key=size)
