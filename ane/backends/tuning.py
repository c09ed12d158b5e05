"""The fastest settings (tuning) that `ane bench` found, by model and machine.

The backend "auto" uses them; other options override them. They are stored in ``tuning.json`` in the data directory,
written atomically: {"format": 1, "tunings": [entry, …]}, each entry a ``TuningEntry``. A file that is damaged or of a
later version causes one notice and is left unchanged.
"""

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ane.bundles.packages import COMPUTE_UNITS
from ane.system import paths
from ane.system.errors import UserError
from ane.system.files import read_json, replacing
from ane.system.machine import processor_name, system_version, usable_cores

if TYPE_CHECKING:
    from ane.bundles import Model

FORMAT = 1
TUNING_FILE = "tuning.json"
TUNED_BACKENDS, CACHES = ("torch", "coreml", "mil", "onnx"), ("auto", "io", "state")
PACKAGE_PRECISIONS = ("8bit", "6bit", "4bit")       # only Core ML packages have them


class LaterFormatError(UserError):
    """The file was written by a later version of this program, so it must not be overwritten."""


@dataclass(frozen=True)
class Tuning:
    """Settings of a backend.

    Attributes:
        backend: a name of ``ane.backends.NAMES`` except "auto". precision, cache: see ``load_backend``.
        compute_units: where Core ML runs each network; empty for other backends.
        lanes: candidates sampled at a time. threads: of the CPU. None: the default.
        measured: the figures it was chosen by, for display.
    """

    backend: str
    precision: str = "auto"
    compute_units: dict[str, str] = field(default_factory=dict)
    cache: str = "auto"
    lanes: int | None = None
    threads: int | None = None
    measured: dict[str, Any] = field(default_factory=dict)

    def overridden(self, precision: str, threads: int | None, cache: str, compute_units: Any) -> Self | None:
        """These settings, overridden by options that the user gave; None when an option is not for this backend."""
        if self.backend.startswith(("torch", "onnx")) and (
                cache != "auto" or compute_units is not None or precision in PACKAGE_PRECISIONS):
            return None
        return dataclasses.replace(
            self, precision=self.precision if precision == "auto" else precision,
            threads=self.threads if threads is None else threads, cache=self.cache if cache == "auto" else cache,
            compute_units=self.compute_units if compute_units is None else compute_units)


@dataclass(frozen=True)
class TuningEntry:
    """A tuning, and the model and machine that it was measured on.

    Attributes:
        model_key: the model's ``key``. model: its name, for display.
        chip, os_build: the result of ``machine_key``.
    """

    model_key: str
    model: str
    chip: str
    os_build: str
    tuning: Tuning

    def matches(self, model_key: str, machine: tuple[str, str]) -> bool:
        return (self.model_key, self.chip, self.os_build) == (model_key, *machine)


def path() -> Path:
    return paths.data_dir() / TUNING_FILE


def key(model: "Model") -> str:
    """Hexadecimal digest of the model's identity and its packages; a change of either may change what is fastest."""
    packages = sorted(file.sha256 for package in getattr(model, "packages", None) or () for file in package.files)
    return hashlib.sha256(json.dumps([model.identity, packages]).encode()).hexdigest()


def entries() -> list[TuningEntry]:
    """All stored tunings. Raises UserError for a damaged file, ``LaterFormatError`` for one of a later version."""
    file = path()
    if not os.path.lexists(file):
        return []
    advice = "`ane bench` replaces it, `ane bench --forget` deletes it"
    try:
        content = read_json(file)
        version = content["format"]
        if type(version) is not int:
            raise TypeError
        if version > FORMAT:
            raise LaterFormatError(f"the remembered tuning has format {version}, this version reads format {FORMAT}: "
                                   f"update tortoise-ane, or delete it with `ane bench --forget` ({file})")
        return [_entry(item) for item in content["tunings"]]
    except LaterFormatError:
        raise
    except UserError as error:
        raise UserError(f"the remembered tuning cannot be used: {error}; {advice}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"the remembered tuning {file} is damaged; {advice}") from error


def find_tuning(model: "Model", notice: Callable[[str], None] = lambda line: None) -> Tuning | None:
    """The tuning of this model on this machine, or None; ``notice`` is called when the file cannot be used."""
    try:
        found = entries()
    except UserError as error:
        notice(f"{error}. Using the default settings.")
        return None
    if not found:
        return None
    wanted, machine = key(model), machine_key()
    return next((entry.tuning for entry in found if entry.matches(wanted, machine)), None)


def applicable_tuning(spec: str, model: "Model", precision: str, threads: int | None, cache: str, compute_units: Any,
             notice: Callable[[str], None] = lambda line: None) -> Tuning | None:
    """The tuning that ``load_backend`` uses for these arguments; None unless ``spec`` is "auto"."""
    found = find_tuning(model, notice) if spec == "auto" else None
    return found and found.overridden(precision, threads, cache, compute_units)


def store_tuning(model: "Model", tuning: Tuning) -> TuningEntry:
    """Store a tuning for this model on this machine, in place of an earlier one; a damaged file is replaced.

    Raises:
        UserError: the file is of a later version, or cannot be written.
    """
    try:
        stored = entries()
    except LaterFormatError:
        raise
    except UserError:
        stored = []
    entry = TuningEntry(key(model), model.name, *machine_key(), tuning)
    _write([other for other in stored if not other.matches(entry.model_key, machine_key())] + [entry])
    return entry


def delete_tunings(model: "Model | None" = None) -> int:
    """Delete all stored tunings, or those of one model; returns how many (1 for a file that cannot be read).

    Raises:
        UserError: the file cannot be deleted; with ``model``: it cannot be read or written.
    """
    if model is not None:
        stored, unwanted = entries(), key(model)
        kept = [entry for entry in stored if entry.model_key != unwanted]
        if len(kept) < len(stored):
            _write(kept)
        return len(stored) - len(kept)
    try:
        count = len(entries())
    except UserError:
        count = 1
    try:
        path().unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot delete {path()}: {error.strerror or error}") from error
    return count


def _write(tunings: list[TuningEntry]) -> None:
    with replacing(path()) as temporary:
        temporary.write_text(json.dumps({"format": FORMAT, "tunings": [dataclasses.asdict(entry) for entry in tunings]},
                                        indent=1), encoding="utf-8")


def _entry(item: Mapping[str, Any]) -> TuningEntry:
    """The entry from its JSON object. Raises KeyError, TypeError or ValueError when it is none."""
    tuning = Tuning(**item["tuning"])
    names = [item[name] for name in ("model_key", "model", "chip", "os_build")]
    texts = (*names, tuning.backend, tuning.precision, tuning.cache, *tuning.compute_units,
             *tuning.compute_units.values())
    counts = (count for count in (tuning.lanes, tuning.threads) if count is not None)
    if not (all(isinstance(text, str) for text in texts) and isinstance(tuning.measured, dict)
            and all(type(count) is int and count > 0 for count in counts)
            and tuning.backend.partition(":")[0] in TUNED_BACKENDS and tuning.cache in CACHES
            and set(tuning.compute_units.values()) <= set(COMPUTE_UNITS)):
        raise ValueError
    return TuningEntry(*names, tuning)


@cache
def machine_key() -> tuple[str, str]:
    """(Chip, system build) of this machine; except on macOS, the chip's name includes the cores and the NVIDIA GPU.

    Raises:
        UserError: macOS does not report them.
    """
    if sys.platform == "darwin":
        from ane.backends.coreml.compiled import this_machine

        return tuple(this_machine())
    import torch

    from ane.backends.torch.device import cuda_problem

    graphics = f", {torch.cuda.get_device_name(0)}" if cuda_problem() is None else ""
    return f"{processor_name()}, {usable_cores()} cores{graphics}", system_version()
