"""Check files against their recorded SHA-256.

A hash is computed again only if the file's size or times have changed.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from ane.system import paths
from ane.system.errors import UserError, system_errors
from ane.system.files import read_json, replacing, write_json

DAMAGED = ": the file is damaged, so import or copy the bundle again"  # end of messages


def _inside(file: str) -> str:
    """Return the relative path ``file``. Raises ValueError if the path leads out of the bundle."""
    parts = PurePosixPath(file)
    if parts.is_absolute() or ".." in parts.parts or "\\" in file or "\0" in file:
        raise ValueError(f"{file!r} is outside the bundle")
    return file


@dataclass(frozen=True)
class FileRecord:
    """The record of a file in bundle.json: its path in the bundle (with slashes), SHA-256 (hex) and size in bytes."""

    file: Annotated[str, AfterValidator(_inside)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: int


def sha256_of(path: Path) -> str:
    """Compute the SHA-256 of a file's bytes, in hex. Raises UserError if the file cannot be read."""
    with system_errors(f"cannot read {path}"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_and_time(file: Path) -> tuple[int, int]:
    """Return a file's size in bytes and its modification time in nanoseconds, which change when its data changes."""
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def identity_of(facts: Any) -> str:
    """Compute a SHA-256 in hex of the text of the facts (``repr``), to use as a key.

    For example, a job stores its sounds under such a key, and finds them again as long as the facts have the same text.
    """
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def record(directory: Path, file: str) -> FileRecord:
    """Hash ``directory/file``, and return its record."""
    return FileRecord(file, sha256_of(directory / file), (directory / file).stat().st_size)


def check_size(directory: Path, expected: FileRecord) -> None:
    """Raise UserError unless the file exists and has the recorded size."""
    path = directory / expected.file
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{path} is missing: the bundle is incomplete, import or copy it again") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if size != expected.bytes:
        raise UserError(
            f"{path} has {size} bytes, but bundle.json records {expected.bytes}: the file is truncated or was "
            "replaced, so import or copy the bundle again"
        )


def check_hash(directory: Path, expected: FileRecord, recompute: bool = False) -> None:
    """Raise UserError unless the file has the recorded SHA-256.

    If ``recompute`` is false, a file that has matched before is not read again unless its size or its times have
    changed.
    """
    check_size(directory, expected)
    path = directory / expected.file
    actual = remembered_hash(path, [path], lambda: sha256_of(path), recompute)
    if actual != expected.sha256:
        raise UserError(
            f"{path} has SHA-256 {actual[:12]}…, but bundle.json records {expected.sha256[:12]}…: the file was "
            "damaged or replaced, so import or copy the bundle again"
        )


def check_hashes(directory: Path, files: Iterable[FileRecord]) -> None:
    for file in files:
        check_hash(directory, file)


def remembered_hash(path: Path, files: Iterable[Path], compute: Callable[[], str], recompute: bool = False) -> str:
    """Return a hash for ``path`` from the cache, or compute it if one of ``files`` has a new size or time.

    Args:
        path: File or folder that the hash is about.
        files: Files on which the hash depends.
        compute: Function that computes the hash.
        recompute: Whether to compute the hash in any case.
    """
    stats = {
        file.relative_to(path).as_posix(): [(stat := file.stat()).st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        for file in files
    }
    stamp = paths.cache_dir() / "verified" / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()}.json"
    with contextlib.suppress(UserError, KeyError, TypeError):
        cached = read_json(stamp)
        if not recompute and cached["files"] == stats and isinstance(cached["content"], str):
            return cached["content"]
    content = compute()
    with contextlib.suppress(UserError), replacing(stamp) as temporary:  # without a cache, every call computes the hash
        write_json(temporary, {"content": content, "files": stats})
    return content
