"""Choosing the fastest settings from measured rows, among packages whose parity reaches its threshold.

Within an engine and a precision the functions' medians decide, weighted by how often the sentence calls them: compute
units for each network; for the decoder compute units, kind of cache and lanes together; threads on the CPU. torch in
int8 differs in the decoder and the denoiser only. Between engines and precisions the spoken sentence decides, or the
weighted sum where nothing was spoken.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ane.bench.records import BenchRow
from ane.bench.sessions import SpokenSentence
from ane.bench.tuning import Tuning
from ane.bench.workload import SentenceWork
from ane.bundles.packages import PackageRecord
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles import Model

DECODER, DENOISER = "autoregressive", "diffusion"
PackageCheck = Callable[[PackageRecord], bool]


@dataclass(frozen=True)
class TuningCandidate:
    """Settings worth trying, and the seconds that their functions need for the sentence."""

    tuning: Tuning
    estimate: float


@dataclass(frozen=True)
class RefusedSettings:
    """Settings that cannot be chosen, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class DecoderSteps:
    """The fastest decoder steps: seconds of all of them, kind of cache, number of lanes."""

    seconds: float
    cache: str | None
    lanes: int | None


def candidates(model: "Model", rows: Sequence[BenchRow], work: SentenceWork,
               has_parity: PackageCheck) -> tuple[list[TuningCandidate], list[RefusedSettings]]:
    """The best settings of every engine and precision that was measured, and the settings that are refused.

    Args:
        has_parity: whether a package's recorded parity reaches its threshold.
    """
    from ane.backends.packaged.selection import select_packages

    found: list[TuningCandidate] = []
    refused: list[RefusedSettings] = []
    for backend in dict.fromkeys(row.competitor for row in rows):
        own = [row for row in rows if row.competitor == backend]
        if backend.startswith(("mil", "coreai")):
            refused.append(RefusedSettings(backend, "it runs packages to check them, and is never chosen"))
        elif not backend.startswith("coreml"):
            found += [best for precision in dict.fromkeys(row.settings["precision"] for row in own)
                      if (best := _best_threads(backend, precision, own, work, refused))]
        else:
            for precision in dict.fromkeys(row.settings["precision"] for row in own):
                try:
                    packages = select_packages(model, precision)
                except UserError:           # the precision of one network only: not a choice for all
                    continue
                try:
                    found.append(_package_candidate(packages, backend, precision, own, work, has_parity))
                except UserError as error:
                    refused.append(RefusedSettings(f"{backend} {precision}", str(error)))
    return found, refused


def fastest(tried: Sequence[TuningCandidate], spoken: Sequence[SpokenSentence]) -> Tuning | None:
    """The candidate that speaks the sentence fastest; where none was spoken, the one with the least estimate."""
    if not spoken:
        best = min(tried, key=lambda candidate: candidate.estimate, default=None)
        return best and replace(best.tuning, measured={"estimated_s": round(best.estimate, 3)})
    worked = [sentence for sentence in spoken if sentence.row.value is not None]
    best = min(worked, key=lambda sentence: sentence.row.value.median, default=None)
    return best and replace(best.tuning, measured={"real_time_factor": round(best.row.value.median, 3),
                                                   "peak_bytes": best.row.peak_bytes})


def _best_threads(backend: str, precision: str, rows: list[BenchRow], work: SentenceWork,
                  refused: list[RefusedSettings]) -> TuningCandidate | None:
    """The fastest number of threads in one precision; numbers at which a function failed go to ``refused``."""
    options = []
    for threads in dict.fromkeys(row.settings["threads"] for row in rows):
        own = _in_precision(precision, [row for row in rows if row.settings["threads"] == threads])
        failed = next((row for row in own if row.error), None)
        if failed:
            what = backend if precision == "auto" else f"{backend} {precision}"
            refused.append(RefusedSettings(f"{what}, {threads or 'all'} threads", f"{failed.what}: {failed.error}"))
            continue
        steps = decoder_steps(own, work)
        seconds = sum(cost([row for row in own if row.settings["network"] == network], work)
                      for network in dict.fromkeys(row.settings["network"] for row in own))
        options.append(TuningCandidate(Tuning(backend, precision, lanes=steps and steps.lanes, threads=threads),
                                       seconds))
    return min(options, key=lambda option: option.estimate, default=None)


def _in_precision(precision: str, rows: list[BenchRow]) -> list[BenchRow]:
    """The rows of a precision; for networks that were not measured in it, those of the default precision."""
    own = [row for row in rows if row.settings["precision"] == precision]
    measured = {row.settings["network"] for row in own}
    return own + [row for row in rows
                  if row.settings["precision"] == "auto" and row.settings["network"] not in measured]


def _package_candidate(packages: Mapping[str, PackageRecord], backend: str, precision: str, rows: list[BenchRow],
                 work: SentenceWork, has_parity: PackageCheck) -> TuningCandidate:
    """For each network that has a package in this precision, the fastest compute units.

    Raises:
        UserError: a package below its threshold, or a network that runs on no compute units.
    """
    units, seconds, steps = {}, 0.0, None
    for network, package in packages.items():
        if not has_parity(package):
            raise UserError(f"{package.path} has no recorded parity that reaches its threshold")
        own = [row for row in rows
               if (row.settings["network"], row.settings["precision"]) == (network, package.precision)]
        if not own:
            continue                # not measured (--networks): its compute units stay those of the bundle
        best = _best_units(own, work)
        if best is None:
            failed = next((row.error for row in own if row.error), "nothing was measured")
            raise UserError(f"{network} runs on no compute units: {failed}")
        units[network], network_seconds = best
        seconds += network_seconds
        if network == DECODER:
            steps = decoder_steps([row for row in own if row.settings["compute_units"] == units[network]], work)
    return TuningCandidate(Tuning(backend, precision, units, steps.cache if steps and steps.cache else "auto",
                                  steps and steps.lanes), seconds)


def _best_units(rows: list[BenchRow], work: SentenceWork) -> tuple[str, float] | None:
    """Compute units on which all functions of a network run, and the seconds that they need there."""
    options = {}
    for units in dict.fromkeys(row.settings["compute_units"] for row in rows):
        own = [row for row in rows if row.settings["compute_units"] == units]
        if not any(row.error for row in own):
            options[units] = cost(own, work)
    best = min(options, key=options.__getitem__, default=None)
    return None if best is None else (best, options[best])


def cost(rows: Iterable[BenchRow], work: SentenceWork) -> float:
    """Seconds that one network's functions need for the sentence: the mean of each kind.

    Only the fastest decoder steps count, and the faster of fused and single diffusion steps, which do the same work.
    """
    by_kind: dict[str, list[float]] = defaultdict(list)
    rows = list(rows)
    for row in rows:
        calls = work.calls(row.settings["kind"], row.settings["bucket"])
        if calls and row.settings.get("lanes") is None:
            by_kind[row.settings["kind"]].append(calls * row.value.median / 1000)
    total = {kind: sum(times) / len(times) for kind, times in by_kind.items()}
    if "sample" in total and "denoise" in total:
        total["denoise"] = min(total["denoise"], total.pop("sample"))
    steps = decoder_steps(rows, work)
    return sum(total.values()) + (steps.seconds if steps else 0.0)


def decoder_steps(rows: Iterable[BenchRow], work: SentenceWork) -> DecoderSteps | None:
    """The fastest steps among those with slots for the sentence, if any; lanes only for more than one candidate.

    Steps that differ in their slots only are used together, each as often as the lanes in use need it.
    """
    alike: dict[Any, list[BenchRow]] = defaultdict(list)
    stores: dict[int, BenchRow] = {}                # by the number of slots of their state
    for row in rows:
        bucket = row.settings["bucket"]
        if row.settings.get("lanes") is not None:
            alike[row.settings["kind"], bucket["columns"], bucket.get("capacity")].append(row)
        elif row.settings["kind"] == "store":
            stores[bucket["capacity"]] = row
    options = []
    for (*_, capacity), steps in alike.items():
        buckets = [row.settings["bucket"] for row in steps]
        lanes, store = work.lanes(buckets), stores.get(capacity)
        if lanes and not any(row.error for row in (*steps, *([store] if store else []))):
            calls = list(zip(work.step_calls(buckets), steps, strict=True))
            calls += [(work.store_calls(store.settings["bucket"]), store)] if store else []
            options.append(DecoderSteps(sum(count * row.value.median / 1000 for count, row in calls),
                                        steps[0].settings.get("cache"), lanes if work.candidates > 1 else None))
    return min(options, key=lambda steps: steps.seconds, default=None)
