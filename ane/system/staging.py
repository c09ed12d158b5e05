"""Make staging folders: hidden folders next to a file or folder, for its new content while that is written.

A staging folder is called ``.NAME.RANDOM.partial``. Its process holds a lock on a file in it, and the system releases
that lock however the process ends. So a leftover from a killed process can be distinguished from a folder in use.
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
_OLD = "old-"  # prefix of the folder that holds a replaced directory until it is deleted
_DAY = 24 * 3600  # seconds after which a staging folder without a lock counts as abandoned


class StagingFolder:
    """A staging folder for ``destination``. ``path`` is known before ``create``, so that ``remove`` always works."""

    def __init__(self, destination: Path):
        # only the start of the name, which may itself be as long as the file system allows
        self.path = destination.parent / f"{_prefix(destination)}{uuid4().hex[:16]}.partial"
        self._lock: int | None = None

    def create(self) -> None:
        """Make the folder and lock it. Raises OSError if it cannot be made."""
        self.path.mkdir(mode=0o700)
        unlocked = self.path / f"{_LOCK}.new"
        self._lock = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: no process gets one
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(unlocked, self.path / _LOCK)  # under this name it is locked from the start

    def folder_for_old(self) -> Path:
        """Make a folder inside for the directory that is being replaced."""
        return Path(tempfile.mkdtemp(dir=self.path, prefix=_OLD))

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


def leftovers(folder: Path) -> list[Path]:
    """Return the staging folders anywhere under ``folder`` that killed processes left behind and that can be deleted.

    A folder that holds the only copy of a replaced directory is left out (``clean_up`` restores it).
    """
    folders = []
    for root, names, _ in os.walk(folder):
        staging = [Path(root) / name for name in names if _NAME.fullmatch(name)]
        names[:] = [name for name in names if not _NAME.fullmatch(name)]
        folders += [path for path in staging if _is_abandoned(path) and _only_copy(path) is None]
    return sorted(folders)


def clean_up(destination: Path) -> None:
    """Remove leftovers from killed processes that wrote to ``destination``.

    A process that was killed while it exchanged two directories leaves the old one in its staging folder and none at
    ``destination``. In that case, the old one is put back.
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
    """Return the replaced directory in a staging folder if no new one has replaced it."""
    old = next(staging.glob(f"{_OLD}*/*"), None)
    return old if old is not None and not os.path.lexists(staging.parent / old.name) else None


def _is_abandoned(staging: Path) -> bool:
    """Return whether the process that made a staging folder has ended. Without a lock file, assume so after a day."""
    try:
        if not os.path.lexists(staging / _LOCK):
            return time.time() - os.lstat(staging).st_mtime > _DAY
        lock = os.open(staging / _LOCK, os.O_RDWR)
    except OSError:  # it was deleted since, or belongs to another user
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:  # in use, or a file system without locks
        return False
    finally:
        os.close(lock)
