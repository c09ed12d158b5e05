"""From measured rows to the settings that are fastest, among those whose packages hold parity.

Within an engine and a precision, the functions' medians decide, weighted by how often saying the sentence calls them:
compute units network by network; of the decoder the units, kind of cache and lanes together; threads for torch, whose
int8 is of the decoder alone. Between engines and precisions the spoken sentence decides, or that weighted sum when
nothing was spoken.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ane.backends.tuning import Tuning
from ane.bench.figures import Calls, Row, Spoken
from ane.bundles.packages import PackageRecord
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles import Model

DECODER = "autoregressive"
UNTUNED = ("mil",)      # the interpreter proves packages; nobody speaks with it

Holds = Callable[[PackageRecord], bool]


@dataclass(frozen=True)
class Candidate:
    """Settings worth trying, and seconds that their functions need for the sentence."""

    tuning: Tuning
    estimate: float


@dataclass(frozen=True)
class Refused:
    """Settings that are out, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Steps:
    """The best way to step the decoder: seconds of all steps, by which cache, with how many lanes."""

    seconds: float
    cache: str | None
    lanes: int | None


def candidates(model: "Model", rows: Sequence[Row], calls: Calls,
               holds: Holds) -> tuple[list[Candidate], list[Refused]]:
    """The best settings of every engine and precision that was measured, and what is out.

    Args:
        holds: whether a package's recorded parity reaches its bar.
    """
    from ane.backends.packaged.backend import choose

    found: list[Candidate] = []
    refused: list[Refused] = []
    for backend in dict.fromkeys(row.backend for row in rows):
        own = [row for row in rows if row.backend == backend]
        if backend.startswith(UNTUNED):
            refused.append(Refused(backend, "it interprets, to prove packages; it is never chosen"))
        elif backend.startswith("torch"):
            found += _of_torch(backend, own, calls, refused)
        else:
            for precision in dict.fromkeys(row.precision for row in own):
                try:
                    packages = choose(model, precision)
                except UserError:           # of a network that has but one precision: no choice for the others
                    continue
                try:
                    found.append(_of_packages(packages, backend, precision, own, calls, holds))
                except UserError as error:
                    refused.append(Refused(f"{backend} {precision}", str(error)))
    return found, refused


def fastest(tried: Sequence[Candidate], spoken: Sequence[Spoken]) -> Tuning | None:
    """The candidate that says the sentence in the least time; by estimate when none was spoken; None: none works."""
    if not spoken:
        best = min(tried, key=lambda candidate: candidate.estimate, default=None)
        return best and replace(best.tuning, measured={"estimated_s": round(best.estimate, 3)})
    well = [said for said in spoken if said.error is None]
    best = min(well, key=lambda said: said.real_time_factor, default=None)
    return best and replace(best.tuning, measured={"real_time_factor": round(best.real_time_factor, 3),
                                                   "peak_bytes": best.peak_bytes})


def _of_torch(backend: str, rows: list[Row], calls: Calls, refused: list[Refused]) -> list[Candidate]:
    """Of each precision the number of threads that does the sentence's work in the least time, with the best lanes."""
    return [best for precision in dict.fromkeys(row.precision for row in rows)
            if (best := _best_threads(backend, precision, rows, calls, refused))]


def _best_threads(backend: str, precision: str, rows: list[Row], calls: Calls,
                  refused: list[Refused]) -> Candidate | None:
    options = []
    for threads in dict.fromkeys(row.threads for row in rows):
        own = _as_in(precision, [row for row in rows if row.threads == threads])
        failed = next((row for row in own if row.error), None)
        if failed:
            what = backend if precision == "auto" else f"{backend} {precision}"
            refused.append(Refused(f"{what}, {threads or 'all'} threads", f"{failed.function}: {failed.error}"))
            continue
        steps = decoder_steps(own, calls)
        seconds = sum(cost([row for row in own if row.network == network], calls)
                      for network in dict.fromkeys(row.network for row in own))
        options.append(Candidate(Tuning(backend, precision, lanes=steps and steps.lanes, threads=threads), seconds))
    return min(options, key=lambda option: option.estimate, default=None)


def _as_in(precision: str, rows: list[Row]) -> list[Row]:
    """The rows of a precision; for networks that were not measured in it, those that the usual one has."""
    own = [row for row in rows if row.precision == precision]
    measured = {row.network for row in own}
    return own + [row for row in rows if row.precision == "auto" and row.network not in measured]


def _of_packages(packages: Mapping[str, PackageRecord], backend: str, precision: str, rows: list[Row], calls: Calls,
                 holds: Holds) -> Candidate:
    """For each network that has a package at this precision, the fastest units.

    Raises:
        UserError: a package below its bar, or a network that ran on no units.
    """
    units, seconds, steps = {}, 0.0, None
    for network, package in packages.items():
        if not holds(package):
            raise UserError(f"{package.path} has no recorded parity at or above its bar")
        own = [row for row in rows if (row.network, row.precision) == (network, package.precision)]
        if not own:
            continue                # not measured (--stages): it stays where the bundle says
        best = _best_units(own, calls)
        if best is None:
            failed = next((row.error for row in own if row.error), "nothing was measured")
            raise UserError(f"{network} runs on no compute units: {failed}")
        units[network], spent = best
        seconds += spent
        if network == DECODER:
            steps = decoder_steps([row for row in own if row.units == units[network]], calls)
    return Candidate(Tuning(backend, precision, units, steps.cache if steps and steps.cache else "auto",
                            steps and steps.lanes), seconds)


def _best_units(rows: list[Row], calls: Calls) -> tuple[str, float] | None:
    """Units on which all functions of a network run, and the seconds that they need there."""
    options = {}
    for units in dict.fromkeys(row.units for row in rows):
        own = [row for row in rows if row.units == units]
        if not any(row.error for row in own):
            options[units] = cost(own, calls)
    best = min(options, key=options.__getitem__, default=None)
    return None if best is None else (best, options[best])


def cost(rows: Iterable[Row], calls: Calls) -> float:
    """Seconds that one network's functions need for the sentence: of each kind their mean.

    Of the decoder's steps the best count. Fused diffusion steps and single ones do the same work, so the better counts.
    """
    by_kind: dict[str, list[float]] = defaultdict(list)
    rows = list(rows)
    for row in rows:
        used = calls.count(row.kind, row.bucket)
        if used and row.lanes is None:
            by_kind[row.kind].append(used * row.p50_ms / 1000)
    total = {kind: sum(times) / len(times) for kind, times in by_kind.items()}
    if "sample" in total and "denoise" in total:
        total["denoise"] = min(total["denoise"], total.pop("sample"))
    steps = decoder_steps(rows, calls)
    return sum(total.values()) + (steps.seconds if steps else 0.0)


def decoder_steps(rows: Iterable[Row], calls: Calls) -> Steps | None:
    """The fastest steps among the rows, if any have room for the sentence; a single candidate says nothing of lanes."""
    options = [Steps(calls.count(row.kind, row.bucket) * row.p50_ms / 1000, row.cache,
                     calls.lanes(row.bucket) if calls.candidates > 1 else None)
               for row in rows if row.lanes is not None and row.error is None and calls.lanes(row.bucket) > 0]
    return min(options, key=lambda steps: steps.seconds, default=None)


def told(tuning: Tuning) -> str:
    """A tuning in one line, for people."""
    parts: list[Any] = [tuning.backend]
    if tuning.precision != "auto":
        parts.append(tuning.precision)
    parts += [f"{name} {value}" for name, value in (("cache", tuning.cache if tuning.cache != "auto" else None),
                                                    ("lanes", tuning.lanes), ("threads", tuning.threads)) if value]
    by_units: dict[str, list[str]] = defaultdict(list)
    for network, units in tuning.units.items():
        by_units[units].append(network)
    parts += [f"{units}: {' '.join(networks)}" for units, networks in by_units.items()]
    return ", ".join(parts)
