"""Make staging folders, in which processes write the new content of a file or folder.

A staging folder is a hidden folder next to the file or folder to replace. Its name is ``.NAME.RANDOM.partial``. The
process that writes holds a lock on a file in the staging folder. The system releases this lock when the process ends
for any reason, so a staging folder without a lock was left behind by a killed process.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from uuid import uuid4

_NAME = re.compile(r"\.(.*)\.[0-9a-f]{16}\.partial", re.DOTALL)
_LOCK = ".lock"
_OLD = "old-"  # prefix of the subfolder that contains a replaced directory until it is deleted
_DAY = 24 * 3600  # seconds after which a staging folder without a lock file counts as abandoned


class StagingFolder:
    """A temporary folder in which a process writes before it replaces ``destination``.

    You can call ``remove`` at any time, even before ``create``.
    """

    def __init__(self, destination: Path):
        # the prefix shortens the name, which may already be as long as the file system allows
        self.path = destination.parent / f"{_prefix(destination)}{uuid4().hex[:16]}.partial"
        self._lock: int | None = None

    def create(self) -> None:
        """Create the folder and lock it. Raises OSError if the folder cannot be created."""
        self.path.mkdir(mode=0o700)
        unlocked = self.path / f"{_LOCK}.new"
        self._lock = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.suppress(OSError):  # on a file system without locks, no process gets a lock
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(unlocked, self.path / _LOCK)  # nobody can find the file by this name before it is locked

    def folder_for_old(self) -> Path:
        """Create a subfolder for the directory that is being replaced, and return its path."""
        return Path(tempfile.mkdtemp(dir=self.path, prefix=_OLD))

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


def leftovers(folder: Path) -> list[Path]:
    """Find all folders under ``folder`` in which killed processes were writing, and that can be deleted.

    A folder that contains the only copy of a replaced directory is not listed, because ``clean_up`` can restore this
    directory.
    """
    folders = []
    for root, names, _ in os.walk(folder):
        staging = [Path(root) / name for name in names if _NAME.fullmatch(name)]
        names[:] = [name for name in names if not _NAME.fullmatch(name)]
        folders += [path for path in staging if _is_abandoned(path) and _only_copy(path) is None]
    return sorted(folders)


def clean_up(destination: Path) -> None:
    """Remove the staging folders of killed processes that wrote to ``destination``.

    If a process was killed while it replaced a directory, the old directory may be in the staging folder and nothing at
    ``destination``. The function then moves the old directory back.
    """
    with contextlib.suppress(OSError), os.scandir(destination.parent) as entries:
        names = [
            entry.name
            for entry in entries
            if entry.name.startswith(_prefix(destination))
            and _NAME.fullmatch(entry.name)
            and entry.is_dir(follow_symlinks=False)
        ]
        for path in (destination.parent / name for name in names):
            if not _is_abandoned(path):
                continue
            only_copy = _only_copy(path)
            if only_copy is not None and only_copy.name == destination.name:
                os.replace(only_copy, destination)
                only_copy = None
            if only_copy is None:
                shutil.rmtree(path, ignore_errors=True)


def _prefix(destination: Path) -> str:
    return f".{destination.name[:40]}."


def _only_copy(staging: Path) -> Path | None:
    """Return the old directory in a staging folder if it is the only copy, because no new one has taken its place."""
    old = next(staging.glob(f"{_OLD}*/*"), None)
    return old if old is not None and not os.path.lexists(staging.parent / old.name) else None


def _is_abandoned(staging: Path) -> bool:
    """Return whether the process that was writing in a staging folder has ended.

    If the folder has no lock file, the function assumes that the process ends within a day.
    """
    try:
        if not os.path.lexists(staging / _LOCK):
            return time.time() - os.lstat(staging).st_mtime > _DAY
        lock = os.open(staging / _LOCK, os.O_RDWR)
    except OSError:  # somebody has just deleted the file, or it belongs to another user
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:  # the folder is in use, or the file system has no locks
        return False
    finally:
        os.close(lock)
