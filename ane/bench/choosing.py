"""Choosing the fastest settings: those that speak the sentence fastest, among packages whose parity is good enough."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ane.bench.records import BenchRow
from ane.bundles.packages import PackageRecord
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles import Model

DECODER, DENOISER = "autoregressive", "diffusion"
CHECKERS = ("mil", "coreai")        # engines that run packages to check them


@dataclass(frozen=True)
class Tuning:
    """Settings of a backend.

    Attributes:
        backend: a name of ``ane.backends.NAMES`` except "auto". precision: see ``load_backend``.
        compute_units: where Core ML runs all networks; None: where the bundle states for each.
        lanes: candidates sampled at a time. threads: of the CPU. None: the default.
    """

    backend: str
    precision: str = "auto"
    compute_units: str | None = None
    lanes: int | None = None
    threads: int | None = None

    @property
    def engine(self) -> str:
        return self.backend.partition(":")[0]

    def __str__(self) -> str:
        parts = [self.backend, *([] if self.precision == "auto" else [self.precision]), self.compute_units]
        parts += [f"{name} {value}" for name, value in (("lanes", self.lanes), ("threads", self.threads)) if value]
        return ", ".join(filter(None, parts))

    @property
    def flags(self) -> str:
        """The flags of `ane say` for these settings."""
        values = {"backend": self.backend, "precision": self.precision, "compute-units": self.compute_units,
                  "lanes": self.lanes, "threads": self.threads}
        return " ".join(f"--{name} {value}" for name, value in values.items() if value not in (None, "auto"))


@dataclass(frozen=True)
class RefusedSettings:
    """Settings that cannot be chosen, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class SpokenSentence:
    """A tuning and the row of the sentence spoken with it."""

    tuning: Tuning
    row: BenchRow


Measured = tuple[Tuning, list[BenchRow]]            # settings, and the functions that were measured with them


def candidates(model: "Model", measured: Iterable[Measured], lanes_of: int,
               has_parity: Callable[[PackageRecord], bool]) -> tuple[list[Tuning], list[RefusedSettings]]:
    """The settings with which the sentence can be spoken, and those that are refused.

    Args:
        lanes_of: candidates that the sentence needs.
        has_parity: whether a package's recorded parity reaches its threshold.
    """
    found: list[Tuning] = []
    refused: list[RefusedSettings] = []
    for tuning, rows in measured:
        if tuning.engine in CHECKERS:
            refused.append(RefusedSettings(tuning.backend, "it runs packages to check them, and is never chosen"))
            continue
        options = _by_precision(model, tuning, rows, has_parity) if tuning.engine == "coreml" else [
            (tuning, rows, None)]
        for option, own, reason in options:
            failed = next((row for row in own if row.error), None)
            if reason or failed:
                refused.append(RefusedSettings(str(option), reason or f"{failed.what}: {failed.error}"))
            else:
                found.append(replace(option, lanes=best_lanes(own, lanes_of)))
    return found, refused


def _by_precision(model: "Model", tuning: Tuning, rows: Sequence[BenchRow], has_parity: Callable[[PackageRecord], bool]
                  ) -> Iterator[tuple[Tuning, list[BenchRow], str | None]]:
    """The tuning in each precision that a choice of packages has, its rows, and why it is refused."""
    from ane.backends.packaged.selection import select_packages

    for precision in dict.fromkeys(row.settings["precision"] for row in rows):
        try:
            packages = select_packages(model, precision)
        except UserError:           # the precision of one network only: not a choice for all
            continue
        used = {(network, package.precision) for network, package in packages.items()}
        low = next((package.path for package in packages.values() if not has_parity(package)), None)
        yield (replace(tuning, precision=precision),
               [row for row in rows if (row.settings["network"], row.settings["precision"]) in used],
               low and f"{low} has no recorded parity that reaches its threshold")


def best_lanes(rows: Iterable[BenchRow], lanes_of: int) -> int | None:
    """The lanes that decode ``lanes_of`` candidates fastest; None: one candidate, or packages that fix their lanes."""
    steps = {row.settings["lanes"]: row.value.median for row in rows if row.value and row.settings.get("lanes")}
    if lanes_of == 1 or not steps:
        return None
    return min(steps, key=lambda lanes: math.ceil(lanes_of / lanes) * steps[lanes])


def fastest(spoken: Iterable[SpokenSentence]) -> SpokenSentence | None:
    """Those settings that spoke the sentence fastest; None: none spoke it."""
    return min((one for one in spoken if one.row.value), key=lambda one: one.row.value.median, default=None)
