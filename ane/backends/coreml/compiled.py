"""Compiled models, kept from one start to the next: a package is compiled once for a chip and a build of macOS.

An entry is a folder ``compiled/<key>`` of the cache with the compiled model and ``compiled.json``, which says of what
and for what machine it was made and how long each of its files is. The key holds the chip, the build of macOS and a
hash of all files of the package, so that a new macOS or another model never meets an old entry; ``ane cache`` finds
those that no start will ask for again. The path of an entry stays the same, because macOS keeps what it specialises for
the Neural Engine, the longest part of a first load, under the path of the compiled model.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ane.bundles.hashes import sha256_of
from ane.system import paths
from ane.system.errors import UserError
from ane.system.files import replacing

VERSION = 1             # raise when entries of before are laid out otherwise
RECORD = "compiled.json"
LOCK = ".lock"
OWN = re.compile(r"[0-9a-f]{32}|\.[0-9a-f]{32}\..*\.partial")      # names of entries, and of what becomes one
UNUSED_DAYS = 90


class Machine(NamedTuple):
    """What a compiled model is good for: the chip ("Apple M2 Pro") and the build of macOS ("24F74")."""

    chip: str
    os_build: str


@dataclass(frozen=True)
class Record:
    """What ``compiled.json`` holds: the machine, the package, the hash of its content, the model's files and sizes."""

    version: int
    chip: str
    os_build: str
    package: str
    content: str
    model: str
    files: dict[str, int]


@dataclass(frozen=True)
class Entry:
    """An entry as it lies in the cache. ``record`` is None for one that is damaged or was left by a killed compile."""

    path: Path
    record: Record | None
    bytes: int
    used: float

    def stale(self, machine: Machine | None, now: float) -> str:
        """Why no start will ask for it again, or "". ``machine`` None: not known, any may be the one."""
        if self.record is None:
            return "unfinished" if self.path.name.endswith(".partial") else "damaged"
        if machine is not None and self.record.os_build != machine.os_build:
            return f"for macOS build {self.record.os_build}"
        if machine is not None and self.record.chip != machine.chip:
            return f"for {self.record.chip}"
        package = Path(self.record.package)
        if not package.is_dir():
            return "its package is gone"
        if content_of(package) != self.record.content:
            return "its package was replaced"
        return f"unused for {UNUSED_DAYS} days" if now - self.used > UNUSED_DAYS * 86400 else ""


class CompiledCache:
    """The compiled models under ``folder`` (default: of the user's cache)."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or paths.cache_dir() / "compiled"

    def model(self, package: Path, machine: Machine, compile: Callable[[Path, Path], None], afresh: bool = False,
              notice: Callable[[str], None] = lambda line: None) -> tuple[Path, bool]:
        """The compiled model of a package for a machine, and whether ``compile(package, destination)`` made it now.

        ``afresh`` compiles even if there is an entry: for one that does not open. Of processes that want the same at
        once, one compiles and the others wait for it. ``notice`` is told why it takes long.

        Raises:
            UserError: no package there, Core ML cannot compile it (``compile`` raises RuntimeError), or the cache
                cannot be written.
        """
        content = content_of(package)
        key = hashlib.sha256("\n".join((*machine, content, package.stem)).encode()).hexdigest()[:32]
        entry, model = self.folder / key, f"{package.stem}.mlmodelc"
        if not afresh and self._used(entry, package):
            return entry / model, False
        with self._alone(notice):
            if not afresh and self._used(entry, package):       # another process was quicker
                return entry / model, False
            self._sweep()
            notice(f"Compiling {package.stem} for {machine.chip}, once for each version of macOS")
            with replacing(entry, directory=True) as staging:
                try:
                    compile(package, staging / model)
                except RuntimeError as error:
                    raise UserError(f"Core ML cannot compile {package}: {first_line(error)}; convert the model again, "
                                    "or use --backend torch") from error
                record = Record(VERSION, *machine, str(package.resolve()), content, model, _sizes(staging / model))
                (staging / RECORD).write_text(json.dumps(asdict(record)), encoding="utf-8")
        return entry / model, True

    def entries(self) -> list[Entry]:
        """All entries, the last used first; what a killed compile left is among them."""
        folders = [path for path in _listing(self.folder)
                   if OWN.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
        entries = [Entry(path, _record(path), size_of(path), _used_at(path)) for path in folders]
        return sorted(entries, key=lambda entry: -entry.used)

    def remove(self, entries: list[Entry], notice: Callable[[str], None] = lambda line: None) -> None:
        """Delete entries, once no process is compiling. Raises UserError when one cannot be deleted."""
        if not entries:
            return
        with self._alone(notice):
            for entry in entries:
                remove(entry.path)

    def _used(self, entry: Path, package: Path) -> bool:
        """Whether the entry is there and whole; then it counts as used now, by the package at this path."""
        record = _record(entry)
        if record is None or _sizes(entry / record.model) != record.files:
            return False
        with contextlib.suppress(OSError, UserError):       # in a cache that cannot be written it still serves
            if record.package == str(package.resolve()):
                os.utime(entry / RECORD)
            else:
                with replacing(entry / RECORD) as file:
                    file.write_text(json.dumps(asdict(record) | {"package": str(package.resolve())}), encoding="utf-8")
        return True

    def _sweep(self) -> None:
        """Remove what compiles left that were killed; only inside ``_alone``, where no compile is under way."""
        for path in _listing(self.folder):
            if OWN.fullmatch(path.name) and path.name.endswith(".partial"):
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _alone(self, notice: Callable[[str], None] = lambda line: None) -> Iterator[None]:
        """No other process compiles or deletes meanwhile. The lock ends with the process, however that ends."""
        if sys.platform == "win32":     # which has no Core ML, and so nothing to compile
            yield
            return
        import fcntl

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / LOCK).open("w")
        except OSError as error:
            raise UserError(f"cannot write {self.folder}: {error.strerror or error}; set ANE_HOME to a folder that "
                            "can be written") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                notice("Waiting for another process that is compiling models")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def this_machine() -> Machine:
    """The Mac that this runs on. UserError when it cannot be asked."""
    return Machine(said_by("sysctl", "-n", "machdep.cpu.brand_string"), said_by("sw_vers", "-buildVersion"))


def said_by(*command: str) -> str:
    """What a command of macOS prints. UserError when it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"cannot ask macOS about this machine: {error}") from error


def first_line(error: Exception, most: int = 200) -> str:
    """What an error says, without the Objective-C dictionary around it. Core ML gives a description of its NSError's
    userInfo, several lines with NSLocalizedDescription = "…"; among them."""
    text = str(error)
    _, found, rest = text.partition('NSLocalizedDescription = "')
    text = " ".join((rest.partition('";')[0] if found else text).split()).rstrip(".;")
    return (text if len(text) <= most else text[:most - 1] + "…") or type(error).__name__


def content_of(package: Path) -> str:
    """SHA-256 (hex) of all files of a package, names and bytes; remembered while their sizes and times stay.

    Hidden files are left out: Finder strews .DS_Store. Raises UserError when there is no package or it cannot be read.
    """
    if not package.is_dir():
        raise UserError(f"there is no Core ML package at {package}")
    files = sorted(path for path in package.rglob("*") if path.is_file() and not path.name.startswith("."))
    state = {path.relative_to(package).as_posix(): [(stat := path.stat()).st_size, stat.st_mtime_ns, stat.st_ctime_ns]
             for path in files}
    name = hashlib.sha256(os.fsencode(package.resolve())).hexdigest()
    stamp = paths.cache_dir() / "verified" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        remembered = json.loads(stamp.read_text(encoding="utf-8"))
        if remembered["files"] == state:
            return remembered["content"]
    total = hashlib.sha256(f"package {VERSION}\n".encode())
    for path, file in zip(files, state, strict=True):
        total.update(f"{sha256_of(path)} {file}\n".encode())
    with contextlib.suppress(UserError), replacing(stamp) as temporary:     # without a cache it is read each time
        temporary.write_text(json.dumps({"content": total.hexdigest(), "files": state}), encoding="utf-8")
    return total.hexdigest()


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir() or file.is_symlink())


def remove(path: Path) -> None:
    """Delete a file or folder; nothing behind a link. Raises UserError when that is not allowed."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass        # another process deleted it
    except OSError as error:
        raise UserError(f"cannot delete {path}: {error.strerror or error}") from error


def _record(entry: Path) -> Record | None:
    try:
        values: dict[str, Any] = json.loads((entry / RECORD).read_text(encoding="utf-8"))
        record = Record(**values)
        whole = record.version == VERSION and Path(record.model).name == record.model
        return record if whole and isinstance(record.files, dict) else None
    except (OSError, ValueError, TypeError):
        return None


def _sizes(model: Path) -> dict[str, int]:
    return {path.relative_to(model).as_posix(): path.stat().st_size for path in model.rglob("*") if path.is_file()}


def _used_at(entry: Path) -> float:
    for path in (entry / RECORD, entry):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return time.time()


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
