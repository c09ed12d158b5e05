"""Open only regular files, and reject an output that would replace a file that a command reads.

Two paths name the same file if they lead to the same device and inode. This comparison also recognises links, other
spellings of a path, and, if the file system ignores capitals, names that differ only in capitals.
"""

import errno
import os
import stat
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from ane.system.errors import UserError

Identity = tuple[int, int, tuple[str, ...]]
NamedFiles = Iterable[tuple[str, Path | str]]


def open_regular(path: Path | str, limit: int | None = None) -> BinaryIO:
    """Open a regular file for reading. Named pipes might wait forever and devices have no end, so both are errors.

    Raises:
        OSError: ``path`` is not a regular file, has more than ``limit`` bytes, or cannot be opened.
    """
    check_regular(path, limit)
    # O_NONBLOCK, because the path may have become a pipe since the check
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(opened), path, limit)
        return os.fdopen(opened, "rb")
    except BaseException:
        os.close(opened)
        raise


def read_regular(path: Path | str, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes. Raises OSError as ``open_regular`` does."""
    with open_regular(path, limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:  # a file such as /proc/cpuinfo reports no size
        raise _too_large(path, limit)
    return content


def check_regular(path: Path | str, limit: int | None = None) -> None:
    """Raise OSError if ``open_regular`` would not open this path. Call this before a library opens the path."""
    _check_regular(os.stat(path), path, limit)


def _check_regular(status: os.stat_result, path: Path | str, limit: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if limit is not None and status.st_size > limit:
        raise _too_large(path, limit)


def _too_large(path: Path | str, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {limit >> 20} MB, the most for such a file", str(path))


def check_apart(reads: NamedFiles, writes: NamedFiles) -> None:
    """Raise an error if an output is also an input or another output. The function does not open the files.

    An input folder means every file that exists in it. Writing an output folder replaces everything in it.

    Args:
        reads: Name, such as a flag, and path of each input file or folder. The path "-" means standard input.
        writes: Name and path of each output file or folder. The path "-" and devices are never rejected.

    Raises:
        UserError: An output is also an input or another output.
    """
    inputs: dict[Identity, str] = {}
    folders_of_inputs: dict[Identity, str] = {}
    for name, path in reads:
        place = standard_input() if str(path) == "-" else identity(path)
        if place is not None:
            inputs.setdefault(place, name)
        for folder in _folders_of(path) if place is not None else ():
            folders_of_inputs.setdefault(folder, name)
    outputs: dict[Identity, tuple[str, Path | str]] = {}
    for name, path in writes:
        place = None if str(path) == "-" else identity(path)
        if place is None:
            continue
        reader = inputs.get(place) or folders_of_inputs.get(place)
        if not reader and not place[2]:
            reader = next((inputs[folder] for folder in _folders_of(path) if folder in inputs), None)
        if reader:
            raise UserError(f"cannot write {path}: {reader} reads it, so choose another output")
        if place in outputs:
            other, same = outputs[place]
            why = f"it is the same file as {same}" if other == name else f"{other} writes it too"
            raise UserError(f"cannot write {path}: {why}, so choose another output")
        outputs[place] = name, path


def identity(path: Path | str) -> Identity | None:
    """Return the identity of a file: the device and inode to which a path leads.

    If the path does not exist, the identity has the device and inode of the nearest folder that exists. The names that
    follow in the path are also part of it. A device, a pipe or an impossible path has the identity ``None``.
    """
    try:
        real = Path(os.path.realpath(os.path.expanduser(path)))
        for there in (real, *real.parents):
            if os.path.exists(there):
                status = os.stat(there)
                if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                    return None
                return status.st_dev, status.st_ino, tuple(map(_name, real.parts[len(there.parts) :]))
    except (OSError, ValueError):
        pass
    return None


def standard_input() -> Identity | None:
    """Return the identity of the file that is standard input, or ``None`` if standard input is a terminal or a pipe."""
    try:
        status = os.fstat(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):  # standard input is closed, or has no file descriptor
        return None
    return (status.st_dev, status.st_ino, ()) if stat.S_ISREG(status.st_mode) else None


def _folders_of(path: Path | str) -> list[Identity]:
    """Return the identities of all folders above the file at ``path``. Standard input has no folders."""
    parents = Path(os.path.realpath(os.path.expanduser(path))).parents if str(path) != "-" else ()
    return [folder for folder in map(identity, parents) if folder is not None]


def _name(name: str) -> str:
    """Convert a file name to the form that the file system compares.

    macOS ignores capitals, and how accents are encoded.
    """
    return unicodedata.normalize("NFC", name).casefold() if sys.platform == "darwin" else name
