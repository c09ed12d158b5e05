"""Read and write files. Nobody ever sees a file that is half written, and every error is a single line."""

import difflib
import errno
import json
import math
import os
import shutil
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

from ane.system.errors import UserError, system_errors
from ane.system.file_gate import read_regular
from ane.system.interruption import check_interrupted, uninterrupted
from ane.system.staging import StagingFolder, clean_up

MAX_JSON = 64 << 20  # largest size, in bytes, of a manifest, a tokenizer or a config


@contextmanager
def replacing(
    destination: Path | str,
    *,
    directory: bool = False,
    lasting: bool = False,
    check: Callable[[Path], object] | None = None,
) -> Iterator[Path]:
    """Yield a temporary path, and rename it to ``destination`` if the block ends without an error.

    The temporary path is next to ``destination`` and has the same file name, because some writers choose a format by
    the suffix. The new file or folder gets the permissions of the old one. If a process was killed while it wrote to
    ``destination``, its temporary files are removed.

    Args:
        destination: Path to write. ``~`` at its start means the user's home.
        directory: Whether to write a directory. It replaces an existing directory as a whole. The old directory exists
            until the new one takes its place, even after an interruption.
        lasting: Whether to flush the new content to the disk before it replaces the old content, so that a power
            failure cannot destroy both. Use it for content that a user cannot make again.
        check: Function that is called with ``destination`` immediately before the rename. If it raises an error, the
            old content stays.

    Raises:
        UserError: ``destination`` cannot be written: its folder is missing or read-only, the disk is full, it is a
            file but should be a directory, or it is a directory but should be a file.
    """
    destination = Path(os.path.expanduser(destination))
    _check_name(destination)
    if os.path.islink(destination):  # replaces the target of the link
        destination = Path(os.path.realpath(destination))
    staging = StagingFolder(destination)
    old: Path | None = None
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        clean_up(destination)
        staging.create()
        target = staging.path / destination.name
        if directory:
            target.mkdir()
        yield target
        check_interrupted()
        if lasting:
            flush(target)
        if os.path.exists(destination) and not (os.path.isdir if directory else os.path.isfile)(destination):
            kind = "a directory" if os.path.isdir(destination) else "a file" if directory else "not a regular file"
            raise UserError(f"cannot write {destination}: it exists and is {kind}")
        keep_mode(target, destination)
        if check is not None:
            check(destination)
        if directory and os.path.exists(destination):
            old = staging.folder_for_old() / destination.name
            with uninterrupted():
                _exchange(target, destination, old)
        elif check is None or os.path.lexists(destination):
            os.replace(target, destination)
        else:
            rename_to_new(target, destination)
        if lasting:
            flush_folder(destination.parent)
    except OSError as error:
        where = f" (the old directory is kept as {old})" if _is_only_copy(old, destination) else ""
        raise UserError(f"cannot write {destination}: {_reason(error)}{where}") from error
    finally:
        with uninterrupted():
            if _is_only_copy(old, destination):
                staging.release()
            else:
                staging.remove()


def _exchange(new: Path, destination: Path, old: Path) -> None:
    """Move the folder ``destination`` to ``old``, then ``new`` to ``destination``.

    If the second move fails, undo the first move.
    """
    try:
        os.replace(destination, old)
        os.replace(new, destination)
    except BaseException:
        if _is_only_copy(old, destination):
            os.replace(old, destination)
        raise


def _is_only_copy(old: Path | None, destination: Path) -> bool:
    """Return whether somebody moved ``destination`` to ``old`` and nothing is at ``destination`` now."""
    return old is not None and os.path.lexists(old) and not os.path.lexists(destination)


def keep_mode(new: Path, existing: Path) -> None:
    """Give ``new`` the permissions of ``existing``, if there is such a file."""
    with suppress(FileNotFoundError):
        os.chmod(new, stat.S_IMODE(os.stat(existing).st_mode) & 0o777)


def rename_to_new(source: Path, destination: Path) -> None:
    """Rename a file to a name that does not exist yet. Raises FileExistsError if the name exists.

    The function makes a hard link, which fails if the name exists, so no file with this name is lost. A file system
    without hard links allows only a rename, which replaces such a file.
    """
    try:
        os.link(source, destination)
    except FileExistsError:
        raise
    except OSError:
        os.rename(source, destination)
    else:
        os.unlink(source)


def flush(path: Path) -> None:
    """Flush a file, or all files in a folder, to the disk, so that their content survives a power failure."""
    if os.path.isdir(path):
        for entry in path.iterdir():
            flush(entry)
        flush_folder(path)
    else:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Flush a folder's list of names to the disk, so that new names survive a power failure."""
    with suppress(OSError):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def write_whole(file: RawIOBase, data: bytes) -> None:
    """Write all of ``data`` to an unbuffered file. A single ``write`` may accept only a part of it."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def link_or_copy(source: Path | str, destination: Path | str) -> None:
    """Make a hard link to a file. If the file systems do not allow this, copy the file."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def is_stream(path: Path | str) -> bool:
    """Return whether a path is standard output, which "-" stands for, or an existing pipe or character device."""
    if str(path) == "-":
        return True
    with suppress(OSError, ValueError):
        mode = os.stat(os.path.expanduser(path)).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
    return False


def check_output_file(path: Path | str, makes_folders: bool = False, streams: bool = False) -> None:
    """Raise UserError if ``replacing`` could not write this file. Call this before you begin long work.

    Args:
        path: Path of the file. "-" always passes.
        makes_folders: Whether the folder of the file may be missing. For a link, this is the folder of its target.
        streams: Whether the path may be a pipe or a device, to which the caller writes without ``replacing``.
    """
    if str(path) == "-":
        return
    path = Path(os.path.expanduser(path))
    _check_name(path)
    if streams and is_stream(path):
        if not os.access(path, os.W_OK):
            raise UserError(f"cannot write {path}: {os.strerror(errno.EACCES)}")
        return
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise UserError(f"cannot write {path}: it is a device or a pipe, so name a file")
    if os.path.isdir(path):
        raise UserError(f"cannot write {path}: it is a directory, so name a file")
    target = Path(os.path.realpath(path)) if os.path.islink(path) else path.absolute()
    folder = next(parent for parent in target.parents if os.path.exists(parent))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        reason = "read-only" if os.path.isdir(folder) else "not a folder"
        raise UserError(f"cannot write {path}: {folder} is {reason}, so choose another folder")
    if target.parent != folder and os.path.islink(path):
        raise UserError(
            f"cannot write {path}: it is a link, and there is no folder {target.parent}: make it first, or "
            "choose another"
        )
    if not makes_folders:
        check_folder_of(path)


def check_folder_of(path: Path) -> None:
    """Raise UserError if the folder of a path does not exist, because the path may be mistyped."""
    if not os.path.isdir(path.absolute().parent):
        raise UserError(f"cannot write {path}: there is no folder {path.parent}: make it first, or choose another")


def no_such_file(path: Path | str) -> str:
    """Say in which folder a missing file should be, and suggest a similar name that exists there."""
    try:
        name, folder = Path(path).name, Path(path).absolute().parent
    except OSError:  # somebody has deleted the working directory
        return "no such file or folder"
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    with suppress(OSError):
        for similar in difflib.get_close_matches(name, os.listdir(folder), n=1, cutoff=0.75):
            return f"no such file or folder in {folder}: did you mean {similar}?"
    return f"no such file or folder in {folder}: check its name, or give its path"


def check_output_folder(path: Path, marker: str, content: str, overwrite: bool) -> None:
    """Check that a command may write a folder, such as a bundle, to ``path``.

    Args:
        path: Path of the folder.
        marker: Name of a file that every folder of this kind has. A folder without this file is never replaced.
        content: Name for the content of such folders, for messages, such as "a bundle".
        overwrite: Whether to replace a folder that has the file ``marker``.

    Raises:
        UserError: There is already a file at ``path``, or a folder of another kind, or a folder of this kind and
            ``overwrite`` is false.
    """
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path):
        raise UserError(f"{path} is a file, and {content} is written into a directory: choose another destination")
    if os.path.isfile(path / marker):
        if not overwrite:
            raise UserError(f"{path} already contains {content}: add overwrite=True to replace it")
    elif any(path.iterdir()):
        raise UserError(f"{path} exists and is not {content}, so it is not replaced: choose another destination")


def _check_name(path: Path) -> None:
    """Raise UserError if no file can have this path.

    A path can be too long, contain characters that cannot be encoded, or be in a deleted working directory.
    """
    try:
        path.absolute()
        with suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write {path}: {_reason(error)}: choose another file") from error


def write_json(destination: Path | str, value: Any) -> None:
    """Write ``value`` as JSON to a file. Other programs never see a file that is half written.

    JSON has no NaN and no infinity, so both become null.

    Args:
        destination: Path of the file. "-" means standard output, as a single line. A device or a pipe is written
            directly.
        value: Value to write.

    Raises:
        UserError: The file cannot be written.
    """
    if str(destination) == "-":
        sys.stdout.write(json.dumps(_finite(value)) + "\n")
        return
    text = json.dumps(_finite(value), indent=1) + "\n"
    if is_stream(destination):
        with system_errors(f"cannot write {destination}"):
            Path(destination).write_text(text, encoding="utf-8")
        return
    with replacing(destination, lasting=True) as target:
        target.write_text(text, encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: The file is missing, is not a regular file, is larger than ``MAX_JSON``, cannot be read, or is not
            JSON.
    """
    try:
        return json.loads(read_regular(path, MAX_JSON).decode("utf-8"))
    except (OSError, UnicodeEncodeError) as error:  # UnicodeEncodeError: no file can have such a name
        raise UserError(f"cannot read {path}: {_reason(error)}") from error
    except RecursionError:
        raise UserError(f"{path} is not usable: its JSON is nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def zip_directory(file: BinaryIO) -> tuple[int, int]:
    """Return the number of entries and of bytes in a ZIP archive's directory, before zipfile reads it into memory.

    The format is in APPNOTE.TXT, 4.3.14 to 4.3.16.

    Raises:
        ValueError: The file has no such directory.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - 65_633))  # the end of the file: a comment of up to 65,535 bytes, and the records before it
    tail = file.read()
    file.seek(0)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        raise ValueError("it has no directory of a ZIP archive")
    entries, length = struct.unpack_from("<HI", tail, at + 10)
    if at >= 20 and tail.startswith(b"PK\x06\x07", at - 20):  # ZIP64
        if at < 76 or not tail.startswith(b"PK\x06\x06", at - 76):
            raise ValueError("its ZIP64 directory is not where writers put it")
        entries, length = struct.unpack_from("<2Q", tail, at - 76 + 32)
    return entries, length


def _finite(value: Any) -> Any:
    """Copy a value for JSON, and replace NaN and infinity by ``None``."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _reason(error: Exception) -> str:
    """Return the message of an error without the error number and the path."""
    return getattr(error, "strerror", None) or str(error)
