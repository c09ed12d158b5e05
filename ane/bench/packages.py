"""The functions of a bundle's Core ML packages, each by itself: an engine's work without the host's side of a stage.

A prediction is given random numbers in the declared shapes. They lie where the engine keeps its inputs, if it does, as
the large ones of speech do (``ane.backends.packaged.decoder.HostPool``).
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.coreml.compiled import MacMachine
from ane.backends.coreml.runtime import CompiledFunction, CoreMLApi
from ane.backends.mil import Package
from ane.backends.mil.package import ProgramFunction
from ane.backends.packaged.functions import Engine
from ane.bench.figures import CODES, TOKENS, Calls, Row
from ane.bench.measure import Subject
from ane.bundles.hashes import check_hash
from ane.bundles.packages import FunctionRecord, PackageRecord

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

CACHES = {"step": "io", "state": "state"}      # kinds of function that step a decoder → kinds of cache


class Stopwatch:
    """``CoreMLApi`` that measures how long its compiling takes."""

    def __init__(self, api: CoreMLApi):
        self.api, self.seconds = api, None

    def machine(self) -> MacMachine:
        return self.api.machine()

    def compile(self, package: Path, destination: Path) -> None:
        started = time.perf_counter()
        self.api.compile(package, destination)
        self.seconds = time.perf_counter() - started

    def open(self, compiled: Path, function: str, units: str) -> CompiledFunction:
        return self.api.open(compiled, function, units)

    def taken(self) -> float | None:
        """Seconds of the last compile, told once."""
        seconds, self.seconds = self.seconds, None
        return seconds


def subjects(model: "Bundle", engine: Engine, spec: str, units: str | None, calls: Calls, wanted: "Wanted",
             compiled: Callable[[], float | None] = lambda: None) -> Iterator[Subject]:
    """The wanted functions of every package, on one kind of units (None: an engine that knows none)."""
    for package in model.packages:
        names = wanted.functions(package, calls)
        if not names:
            continue
        for file in package.files:
            check_hash(model.path, file)
        path = model.path / package.path
        declared = Package(path).functions
        for name in names:
            record = package.functions[name]
            cache = CACHES.get(record.kind)
            row = Row(spec, package.network, name, record.kind, record.bucket, package.precision, units, cache=cache,
                      lanes=calls.lanes(record.bucket) if cache else None)
            yield Subject(
                row, lambda path=path, name=name, package=package: engine.load(path, name, units or package.units),
                lambda loaded, function=declared[name]: prediction(loaded, function), compiled=compiled)


def prediction(loaded: Any, function: ProgramFunction) -> Callable[[], object]:
    """A call of a loaded function, on small normal numbers and a state of its own."""
    rng = np.random.default_rng(0)
    inputs = {name: np.zeros(type.shape, np.int32) if type.dtype == "int32" else
              0.1 * rng.standard_normal(type.shape, dtype=np.float32) for name, type in function.inputs.items()}
    buffers = getattr(loaded, "buffers", None)
    if buffers is not None:
        for name, values in inputs.items():
            buffers[name][...] = values
        inputs = buffers
    state = loaded.make_state() if function.states else None
    return lambda: loaded.predict(inputs, state)


class Wanted:
    """Which functions are measured: all, or of each sort the one that the sentence takes; steps always all.

    Args:
        networks, precisions: None: all of them.
    """

    def __init__(self, networks: frozenset[str] | None = None, precisions: frozenset[str] | None = None,
                 every: bool = False):
        self.networks, self.precisions, self.every = networks, precisions, every

    def functions(self, package: PackageRecord, calls: Calls) -> list[str]:
        if self.networks is not None and package.network not in self.networks:
            return []
        if self.precisions is not None and package.precision not in self.precisions:
            return []
        if self.every:
            return list(package.functions)
        lengths = {"prefill": calls.prefix, "condition": CODES, "clvp_text": TOKENS, "clvp_speech": CODES,
                   "denoise": calls.frames, "sample": calls.frames, "univnet": calls.frames, "hifigan": calls.frames}
        sorts: dict[Any, list[str]] = {}
        for name, record in package.functions.items():
            sort = name if record.kind in CACHES else (record.kind, record.bucket.get("batch"),
                                                       record.bucket.get("steps"))
            sorts.setdefault(sort, []).append(name)
        return [fitting(names, package.functions, lengths.get(package.functions[names[0]].kind, 0))
                for names in sorts.values()]


def fitting(names: list[str], functions: dict[str, FunctionRecord], length: int) -> str:
    """The smallest that takes so many columns, latents, frames or places; the largest when none does."""
    def room(name: str) -> int:
        bucket = functions[name].bucket
        return max((bucket[key] for key in ("columns", "latents", "frames", "places") if key in bucket), default=0)

    enough = [name for name in names if room(name) >= length]
    return min(enough, key=room) if enough else max(names, key=room)
