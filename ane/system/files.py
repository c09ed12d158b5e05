"""Files: written so that a reader never meets half of one, and read with an error that says what is wrong."""

import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from typing import Any
from uuid import uuid4

from ane.system.errors import UserError
from ane.system.interruption import check_interrupted, uninterrupted


@contextmanager
def replacing(destination: Path | str, *, directory: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``destination``; rename it there when the block ends well, else remove it.

    The temporary name keeps the suffix, so a writer that chooses its format by suffix works unchanged. With
    ``directory=True`` the path is a fresh directory, and an existing ``destination`` directory is replaced whole: the
    old one is there until the new one is, whatever interrupts.

    Raises:
        UserError: the place cannot be written (missing or read-only folder, full disk, a directory in the way).
    """
    destination = Path(destination)
    parent = destination.parent
    staging: Path | None = None
    old: Path | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # a part of the name, for the whole may be as long as a name can be; known before it is made, to be removed
        staging = parent / f".{destination.name[:40]}.{uuid4().hex[:16]}.partial"
        staging.mkdir(mode=0o700)
        target = staging / destination.name
        if directory:
            target.mkdir()
        yield target
        check_interrupted()
        if os.path.isdir(destination) != directory and os.path.exists(destination):
            what = "a file" if directory else "a directory"
            raise UserError(f"cannot write {destination}: {what} of that name exists")
        if directory and os.path.exists(destination):
            old = Path(tempfile.mkdtemp(dir=staging)) / destination.name
            with uninterrupted():
                _exchange(target, destination, old)
        else:
            os.replace(target, destination)
    except OSError as error:
        where = f"; the old one is kept as {old}" if _stranded(old, destination) else ""
        raise UserError(f"cannot write {destination}: {error.strerror or error}{where}") from error
    finally:
        if staging is not None and not _stranded(old, destination):
            with uninterrupted():
                shutil.rmtree(staging, ignore_errors=True)


def _exchange(new: Path, place: Path, old: Path) -> None:
    """Put the directory ``new`` where ``place`` is, which goes to ``old``; it comes back when that fails."""
    try:
        os.replace(place, old)
        os.replace(new, place)
    except BaseException:
        if _stranded(old, place):
            os.replace(old, place)
        raise


def _stranded(old: Path | None, place: Path) -> bool:
    """Whether ``old`` was taken from its place and nothing has come there."""
    return old is not None and os.path.lexists(old) and not os.path.lexists(place)


def write_whole(file: RawIOBase, data: bytes) -> None:
    """Write to a file without a buffer, which may take less at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest):]


def link_or_copy(source: Path | str, destination: Path | str) -> None:
    """A hard link to a file, or a copy where there can be none: another file system, or one without links."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def check_output_file(path: Path | str) -> None:
    """Raise UserError, before any work is done, for a file that ``replacing`` could not write. "-" always passes."""
    if str(path) == "-":
        return
    path = Path(os.path.expanduser(path))
    try:
        parents = path.absolute().parents
        with suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()        # raises for a name that is too long or not valid
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write {path}: {_reason(error)}; choose another file") from error
    if os.path.isdir(path):
        raise UserError(f"cannot write {path}: it is a directory; name a file")
    folder = next(parent for parent in parents if os.path.exists(parent))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        reason = "read-only" if os.path.isdir(folder) else "not a folder"
        raise UserError(f"cannot write {path}: {folder} is {reason}; choose another folder")


def write_json(destination: Path | str, value: Any) -> None:
    """Write ``value`` as JSON to a file, whole or not at all; "-" is standard output (one line).

    NaN and infinity become null, which JSON lacks.

    Raises:
        UserError: the file cannot be written.
    """
    if str(destination) == "-":
        sys.stdout.write(json.dumps(_finite(value)) + "\n")
        return
    with replacing(destination) as target:
        target.write_text(json.dumps(_finite(value), indent=1) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises UserError when it cannot be read or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def _reason(error: Exception) -> str:
    """What an error says without its number and its path."""
    return getattr(error, "strerror", None) or str(error)
