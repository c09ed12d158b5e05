"""A cache of Core AI assets: each is made from a Core ML package once.

An entry is a folder ``coreai/<key>`` of the cache. It holds an asset, compiled for the interpreter in the wheel, and
``asset.json``. The key is a hash of the package's files, of how it was converted and of
Core AI's version, so a new version of any of them never finds an old entry: Core AI refuses assets of other betas. A
damaged asset ends the process, or computes wrong numbers, without an exception, so every file's SHA-256 is compared
before an asset is opened.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from ane.backends.coreml.compiled import package_hash
from ane.bundles.hashes import sha256_of
from ane.system import paths
from ane.system.errors import UserError
from ane.system.files import replacing, write_json
from ane.system.records import stored_record

FOLDER, RECORD = "coreai", "asset.json"
VERSION = 1             # of the lowering and of the layout of entries: increase it when an asset would change


@dataclass(frozen=True)
class AssetRecord:
    """The content of ``asset.json``.

    Attributes:
        package, content: path and hash of the Core ML package. functions: those in the asset.
        precision: of its arithmetic, "fp32" or "fp16" (as the package declares). suffix: of the asset's name.
        files: SHA-256 of each file, by path in the entry.
    """

    version: int
    coreai: str
    package: str
    content: str
    functions: list[str]
    precision: str
    suffix: str
    files: dict[str, str]

    @classmethod
    def read(cls, entry: Path) -> "AssetRecord | None":
        """The record of an entry; None when it is missing or damaged."""
        return stored_record(cls, entry / RECORD)

    def stale(self) -> str:
        """Why no later run will use the entry, or ""."""
        if (self.version, self.coreai) != (VERSION, coreai_version()):
            return f"for Core AI {self.coreai}"
        package = Path(self.package)
        if not package.is_dir():
            return "its package is gone"
        return "" if package_hash(package) == self.content else "its package was replaced"

    def undamaged(self, entry: Path) -> bool:
        """Whether the entry has the recorded files and no others."""
        found = {path.relative_to(entry).as_posix() for path in entry.rglob("*") if not path.is_dir()}
        return found == {RECORD, *self.files} and all(
            (entry / name).is_file() and sha256_of(entry / name) == sha256 for name, sha256 in self.files.items())


class AssetCache:
    """The assets below ``folder`` (default: in the user's cache)."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or paths.cache_dir() / FOLDER

    def asset(self, package: Path, functions: list[str], fp16: bool, suffix: str,
              write: Callable[[Path], None]) -> Path:
        """The path of an asset with these functions; ``write(path)`` makes it if it is missing or damaged.

        ``suffix``: "aimodel", or "aimodelx" when compiled for the wheel's interpreter.

        Raises:
            UserError: there is no such package, an op of it is not supported (by ``write``), or the cache cannot be
                written.
        """
        described = {"version": VERSION, "coreai": coreai_version(), "content": package_hash(package),
                     "functions": sorted(functions), "precision": "fp16" if fp16 else "fp32", "suffix": suffix}
        key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
        entry, name = self.folder / key, f"{package.stem}.{suffix}"
        record = AssetRecord.read(entry)
        if record is not None and (entry / name).is_dir() and record.undamaged(entry):
            with contextlib.suppress(OSError):      # a cache of another user
                os.utime(entry / RECORD)            # marks the last use
            return entry / name
        if os.path.lexists(entry) and not entry.is_dir():
            raise UserError(f"{entry} is not a directory: delete it")
        with replacing(entry, directory=True) as staging:
            write(staging / name)
            made = AssetRecord(**described, package=str(package.resolve()), files=file_hashes(staging))
            write_json(staging / RECORD, asdict(made))
        return entry / name


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file, by its path in the folder."""
    return {path.relative_to(folder).as_posix(): sha256_of(path)
            for path in sorted(folder.rglob("*")) if path.is_file()}


def coreai_version() -> str:
    """The version of the installed coreai-core, or "" without it."""
    try:
        return metadata.version("coreai-core")
    except metadata.PackageNotFoundError:
        return ""
