"""Measure the time of calls: a single call, repeated calls of a function, or calls of several competitors alternately.

The functions come from Core ML packages, and have the sizes that a sentence needs. Their inputs are random numbers in
the declared shapes. An engine copies the inputs only if it also copies kv-caches.
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

MIN_CALLS, MAX_SECONDS = 5, 20.0  # stop calling after MAX_SECONDS, but not before MIN_CALLS
Clock = Callable[[], float]


def timed(call: Callable[[], Any], clock: Clock = time.perf_counter) -> tuple[Any, float]:
    """Make a call, and return its result and the seconds that it took."""
    started = clock()
    result = call()
    return result, clock() - started


def repeated(call: Callable[[], object], runs: int, clock: Clock = time.perf_counter) -> list[float]:
    """Make ``runs`` calls, and return the seconds of each.

    Stop early after ``MAX_SECONDS``, but not before ``MIN_CALLS``.
    """
    times: list[float] = []
    while len(times) < runs and (len(times) < MIN_CALLS or sum(times) < MAX_SECONDS):
        times.append(timed(call, clock)[1])
    return times


@dataclass(frozen=True)
class MeasuredFunction:
    """A function whose loading and calls are measured.

    Attributes:
        row: Row that describes the function, without measured figures.
        load: Callable that loads the function.
        prepare: Callable that takes the loaded function and returns a callable that calls it.
    """

    row: BenchRow
    load: Callable[[], Any]
    prepare: Callable[[Any], Callable[[], object]]


def measure_function(function: MeasuredFunction, runs: int, clock: Clock = time.perf_counter) -> BenchRow:
    """Load a function, call it, load it again, and return its row with the measured figures.

    The value of the row is the time in ms of up to ``runs`` calls after a warm-up. The row also has three figures.
    cold_load_s is the first load, which also compiles the package. first_ms is the first call, in which Core ML may do
    more work. warm_load_s is the second load. If the function fails, the row has the error that the user would see.
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
    """A call of one competitor, which is measured once per round.

    Attributes:
        row: Row that describes the call, without measured figures.
        call: Function that makes the call and returns a reading: "value", other figures by name, and "peak_bytes" if it
            is known.
        readings: Readings of all rounds.
    """

    row: BenchRow
    call: Callable[[], dict[str, float | None]]
    readings: list[dict[str, float | None]] = field(default_factory=list)

    def result(self) -> BenchRow:
        """Return the row with its measured figures: the spread of "value", and the median of every other figure."""
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
    """Measure the calls of several competitors alternately, so that other programs slow down all calls alike.

    A competitor whose call raises UserError is not called again. The row of this competitor has the error and no value.

    Args:
        calls: Calls of the competitors.
        rounds: Number of rounds. In a round, every call is made once.
        warm_up: Whether to make another round first, which does not count.

    Returns:
        A row for each of ``calls``.
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


CODES, TOKENS = 86, 40  # numbers of mel codes and text tokens in the sentence, which takes 4 s
# kind of function → length that the sentence has in this kind of function
LENGTHS = {
    "prefill": TOKENS + 4,
    "condition": CODES,
    "clvp_text": TOKENS,
    "clvp_speech": CODES,
    **dict.fromkeys(("denoise", "univnet", "hifigan", "source_filter", "mel_source_filter"), frame_count(CODES)),
}
CACHES = {"step": "io", "state": "state"}  # kind of function for a decoder step → where its kv-cache is


def package_functions(
    model: "Bundle", packages: Iterable[PackageRecord], engine: Runtime, spec: str, units: str | None
) -> Iterator[MeasuredFunction]:
    """Yield the functions of these packages that the benchmark's sentence needs, and all functions for decoder steps.

    Args:
        model: Bundle with the packages.
        packages: Packages whose functions to measure.
        engine: Runtime that loads the functions.
        spec: Name of the backend, as for ``--backend``.
        units: Compute units. ``None`` means that the engine has no compute units.
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
    """Return a callable that calls a loaded function on small random numbers, with a new state.

    Args:
        loaded: The loaded function.
        function: Inputs and states that the function declares.
        in_place: Whether the runtime reads some inputs without a copy (``Runtime.in_place``).
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
    """Choose the functions to measure in a package: for each kind, the function that the benchmark's sentence needs.

    For decoder steps, choose all functions. For a kind that is not in ``LENGTHS``, choose the smallest function.
    """
    by_kind: dict[Any, list[str]] = {}  # groups of functions that differ only in their length
    for name, record in package.functions.items():
        key = name if record.kind in (*CACHES, "store") else (record.kind, record.bucket.get("batch"))
        by_kind.setdefault(key, []).append(name)
    return [
        smallest_fitting(names, package.functions, LENGTHS.get(package.functions[names[0]].kind, 0))
        for names in by_kind.values()
    ]


def smallest_fitting(names: list[str], functions: Mapping[str, FunctionRecord], length: int) -> str:
    """Return the name of the smallest function that takes ``length`` columns, latents, frames or positions.

    If no function is large enough, return the largest function.
    """

    def size(name: str) -> int:
        bucket = functions[name].bucket
        return max((bucket[key] for key in ("columns", "latents", "frames", "positions") if key in bucket), default=0)

    fitting = [name for name in names if size(name) >= length]
    return min(fitting, key=size) if fitting else max(names, key=size)
