"""The calls that are measured: the functions of Core ML packages one by one, with the sizes of a spoken sentence.

Inputs are random numbers in the declared shapes, which an engine copies only where it copies caches, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.mil import Package
from ane.backends.mil.package import ProgramFunction
from ane.backends.packaged.functions import Runtime
from ane.bench.measure import MeasuredFunction
from ane.bench.records import BenchRow
from ane.bundles.hashes import check_hashes
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.models.tortoise.diffusion import frame_count

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

CODES, TOKENS = 86, 40      # of a sentence of 4 s
# kind of function → the length that the sentence has there
LENGTHS = {"prefill": TOKENS + 4, "condition": CODES, "clvp_text": TOKENS, "clvp_speech": CODES,
           **dict.fromkeys(("denoise", "univnet", "hifigan", "source_filter", "mel_source_filter"), frame_count(CODES))}
CACHES = {"step": "io", "state": "state"}      # kind of a decoder's step function → kind of its cache


def package_functions(model: "Bundle", packages: Iterable[PackageRecord], engine: Runtime, spec: str,
                      units: str | None) -> Iterator[MeasuredFunction]:
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
            row = BenchRow(spec, name, settings={
                "network": package.network, "kind": record.kind, "bucket": dict(record.bucket),
                "precision": package.precision, "compute_units": units,
                "cache": CACHES.get(record.kind)})
            yield MeasuredFunction(
                row, lambda path=path, name=name, package=package: engine.load(
                    path, name, units or package.compute_units),
                lambda loaded, function=declared[name]: prediction(loaded, function, engine.in_place))


def prediction(loaded: Any, function: ProgramFunction, in_place: bool = False) -> Callable[[], object]:
    """A call of a loaded function, on small normal numbers and with its own state. ``in_place``: see ``Runtime``."""
    rng = np.random.default_rng(0)
    inputs = {name: np.zeros(type.shape, np.int32) if type.dtype == "int32" else
              0.1 * rng.standard_normal(type.shape, dtype=np.float32) for name, type in function.inputs.items()}
    state = loaded.make_state() if function.states else None
    if not in_place:
        return lambda: loaded.predict(inputs, state)
    large = {name: array for name, array in inputs.items() if array.dtype == np.float32}
    return lambda: loaded.predict({name: inputs[name] for name in inputs.keys() - large.keys()}, state, large)


def functions_of_a_sentence(package: PackageRecord) -> list[str]:
    """Of each kind the function that the sentence takes; of kinds without ``LENGTHS`` the smallest."""
    of_a_kind: dict[Any, list[str]] = {}        # functions that differ in their length only
    for name, record in package.functions.items():
        key = name if record.kind in (*CACHES, "store") else (record.kind, record.bucket.get("batch"))
        of_a_kind.setdefault(key, []).append(name)
    return [smallest_fitting(names, package.functions, LENGTHS.get(package.functions[names[0]].kind, 0))
            for names in of_a_kind.values()]


def smallest_fitting(names: list[str], functions: Mapping[str, FunctionRecord], length: int) -> str:
    """The function with the smallest bucket that takes ``length`` columns, latents or frames, else the largest."""
    def size(name: str) -> int:
        bucket = functions[name].bucket
        return max((bucket[key] for key in ("columns", "latents", "frames", "positions") if key in bucket), default=0)

    fitting = [name for name in names if size(name) >= length]
    return min(fitting, key=size) if fitting else max(names, key=size)
