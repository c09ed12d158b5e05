"""The fastest settings that `ane bench` found, by model and machine. The backend "auto" takes them; flags win.

They lie in ``tuning.json`` of the data directory, which is written whole or not at all: {"format": 1, "tunings":
[entry, …]}, an entry being ``Entry``. A file that is damaged, or of a later version, never keeps anybody from speaking:
it is told in one line and left alone.
"""

import dataclasses
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ane.bundles.packages import UNITS
from ane.system import paths
from ane.system.errors import UserError
from ane.system.files import read_json, replacing

if TYPE_CHECKING:
    from ane.bundles import Model

FORMAT = 1
FILE = "tuning.json"
ENGINES, CACHES = ("torch", "coreml", "mil", "onnx"), ("auto", "io", "state")
FEWER_BITS = ("8bit", "6bit", "4bit")       # precisions of packages that torch does not compute in


class LaterFormatError(UserError):
    """The file is of a later version of this program, which it still serves."""


@dataclass(frozen=True)
class Tuning:
    """Settings of an engine.

    Attributes:
        backend: as ``--backend`` takes it, never "auto". precision, cache: as the flags of those names.
        units: where Core ML runs each network; empty for torch.
        lanes: candidates sampled at a time. threads: of the CPU. None: as without a tuning.
        measured: what it was chosen by; only shown.
    """

    backend: str
    precision: str = "auto"
    units: dict[str, str] = field(default_factory=dict)
    cache: str = "auto"
    lanes: int | None = None
    threads: int | None = None
    measured: dict[str, Any] = field(default_factory=dict)

    def under(self, precision: str, threads: int | None, cache: str, units: Any) -> Self | None:
        """These settings with the user's flags over them; None when a flag is not for this engine."""
        if self.backend.startswith(("torch", "onnx")) and (cache != "auto" or units is not None or precision in FEWER_BITS):
            return None
        return dataclasses.replace(
            self, precision=self.precision if precision == "auto" else precision,
            threads=self.threads if threads is None else threads, cache=self.cache if cache == "auto" else cache,
            units=self.units if units is None else units)


@dataclass(frozen=True)
class Entry:
    """A tuning, the model (``key``, and its name for people) and the machine that it was found for."""

    bundle: str
    model: str
    chip: str
    os_build: str
    tuning: Tuning

    def serves(self, bundle: str, machine: tuple[str, str]) -> bool:
        return (self.bundle, self.chip, self.os_build) == (bundle, *machine)


def path() -> Path:
    return paths.data_dir() / FILE


def key(model: "Model") -> str:
    """Hexadecimal digest of the model's identity and of its Core ML packages, any of which changes what is fastest."""
    packages = sorted(file.sha256 for package in getattr(model, "packages", None) or () for file in package.files)
    return hashlib.sha256(json.dumps([model.identity, packages]).encode()).hexdigest()


def entries() -> list[Entry]:
    """All that is remembered. Raises UserError for a damaged file, ``LaterFormatError`` for one of a later version."""
    file = path()
    if not os.path.lexists(file):
        return []
    advice = "`ane bench` writes it anew, `ane bench --forget` deletes it"
    try:
        stated = read_json(file)
        version = stated["format"]
        if type(version) is not int:
            raise TypeError
        if version > FORMAT:
            raise LaterFormatError(f"the remembered tuning has format {version}, this version reads format {FORMAT}: "
                                   f"update tortoise-ane, or delete it with `ane bench --forget` ({file})")
        return [_entry(item) for item in stated["tunings"]]
    except LaterFormatError:
        raise
    except UserError as error:
        raise UserError(f"the remembered tuning cannot be used: {error}; {advice}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"the remembered tuning {file} is damaged; {advice}") from error


def remembered(model: "Model", notice: Callable[[str], None] = lambda line: None) -> Tuning | None:
    """What was found for this model on this machine, if anything; ``notice`` is told when the file is of no use."""
    try:
        found = entries()
    except UserError as error:
        notice(f"{error}. Until then the usual settings are taken.")
        return None
    if not found:
        return None
    bundle, machine = key(model), here()
    return next((entry.tuning for entry in found if entry.serves(bundle, machine)), None)


def applying(spec: str, model: "Model", precision: str, threads: int | None, cache: str, units: Any,
             notice: Callable[[str], None] = lambda line: None) -> Tuning | None:
    """What ``load_backend`` takes for these arguments of its own: nothing unless ``spec`` is "auto"; flags win."""
    found = remembered(model, notice) if spec == "auto" else None
    return found and found.under(precision, threads, cache, units)


def remember(model: "Model", tuning: Tuning) -> Entry:
    """Keep it for this model on this machine, in place of what was kept for them; a damaged file is replaced.

    Raises:
        UserError: the file is of a later version, or its place cannot be written.
    """
    try:
        kept = entries()
    except LaterFormatError:
        raise
    except UserError:
        kept = []
    entry = Entry(key(model), model.name, *here(), tuning)
    _write([other for other in kept if not other.serves(entry.bundle, here())] + [entry])
    return entry


def forget(model: "Model | None" = None) -> int:
    """Delete the remembered tunings, or those of one model; returns their number, 1 for a file that cannot be read.

    Raises:
        UserError: it cannot be deleted; with ``model``: the file cannot be read.
    """
    if model is not None:
        stored, bundle = entries(), key(model)
        kept = [entry for entry in stored if entry.bundle != bundle]
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


def _write(kept: list[Entry]) -> None:
    with replacing(path()) as temporary:
        temporary.write_text(json.dumps({"format": FORMAT, "tunings": [dataclasses.asdict(entry) for entry in kept]},
                                        indent=1), encoding="utf-8")


def _entry(stated: Mapping[str, Any]) -> Entry:
    """Raises KeyError, TypeError or ValueError for what no entry is."""
    tuning = Tuning(**stated["tuning"])
    names = [stated[name] for name in ("bundle", "model", "chip", "os_build")]
    texts = (*names, tuning.backend, tuning.precision, tuning.cache, *tuning.units, *tuning.units.values())
    counts = (count for count in (tuning.lanes, tuning.threads) if count is not None)
    if not (all(isinstance(text, str) for text in texts) and isinstance(tuning.measured, dict)
            and all(type(count) is int and count > 0 for count in counts)
            and tuning.backend.partition(":")[0] in ENGINES and tuning.cache in CACHES
            and set(tuning.units.values()) <= set(UNITS)):
        raise ValueError
    return Entry(*names, tuning)


# The machine

@cache
def here() -> tuple[str, str]:
    """Chip and build of the system; off macOS, "chip" is all of the machine that settings depend on.

    Raises:
        UserError: macOS cannot be asked.
    """
    if sys.platform == "darwin":
        from ane.backends.coreml.compiled import this_machine

        return tuple(this_machine())
    import torch

    from ane.backends.torch.device import cuda_trouble

    graphics = f", {torch.cuda.get_device_name(0)}" if cuda_trouble() is None else ""
    return f"{processor()}, {cores()} cores{graphics}", system_version()


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name as its maker writes it, off macOS."""
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.is_file() else None
    return named[1].strip() if named else platform.processor() or platform.machine()


def system_version() -> str:
    """The system without its patches, off macOS: "ubuntu 24.04", "Windows 10.0.22631"."""
    try:
        told = platform.freedesktop_os_release()
        return f"{told['ID']} {told.get('VERSION_ID', '')}".strip()
    except OSError:
        return f"{platform.system()} {platform.version()}"
