"""Which files are a job's own: those whose content the job wrote, whatever their names and paths are now.

A job records the hash of a file before it renames the file into place. A process that is killed at any instant
therefore leaves the former content or the new one there, both of which the job knows. Content that anybody else wrote
is never taken for the job's.
"""

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ane.books.store import JobStore
from ane.bundles.hashes import sha256_of
from ane.system.errors import UserError
from ane.system.file_gate import check_apart
from ane.system.files import check_output_file, flush, keep_mode

if TYPE_CHECKING:
    from ane.books.output import OutputOptions

FileState = tuple[int, ...]     # changes whenever a file is replaced, edited or touched


class FileOwnership:
    """Tells the files of a job from those of its user. ``force``: files of any origin may be replaced."""

    def __init__(self, store: JobStore, force: bool = False):
        self.store, self.force = store, force
        self._judged: dict[FileState, bool] = {}

    def is_own(self, path: Path) -> bool:
        """Return whether a file is there whose content this job wrote."""
        state = state_of(path)
        if state is None or not path.is_file():
            return False
        if state not in self._judged:
            hashes = self.store.output_hashes()
            self._judged[state] = not {path.stat().st_size, None}.isdisjoint(hashes.values()) and (
                sha256_of(path) in hashes)
        return self._judged[state]

    def check(self, path: Path) -> None:
        """Raise UserError for a file at ``path`` that is not this job's. An empty file may be replaced by anybody."""
        if self.force or not os.path.exists(path) or not os.path.getsize(path) or self.is_own(path):
            return
        advice = "move it, choose another output, or add force=True to replace it"
        if path.name in self.store.output_names():
            raise UserError(f"{path} was changed since this job wrote it: {advice}")
        raise UserError(f"{path} exists, and this job did not write it: {advice}")


def state_of(path: Path) -> FileState | None:
    """Return what the system states of the file at ``path``, links followed; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def check_replaced(store: JobStore, options: "OutputOptions", titles: Sequence[str], numbers: Collection[int],
                   force: bool) -> None:
    """Raise UserError, before hours of work, for a file that would be lost: unless ``force``, one that this job did not
    write, or that was changed since; and for two outputs that are one file. ``titles``, ``numbers``: as of
    ``OutputOptions.paths``."""
    ownership = FileOwnership(store, force)
    paths = [*options.paths(titles, numbers), *options.beside(titles, numbers)]
    check_apart([], [("output", path) for path in paths])
    for path in paths:
        check_output_file(path)
        ownership.check(path)


@contextmanager
def completed(store: JobStore, path: Path, ownership: FileOwnership) -> Iterator[Path]:
    """Yield a path in the job's folder; the file that the block writes there becomes ``path`` when it is on disk.

    Whoever has the lease on the output removes what an interrupted run left.
    """
    folder = store.path / f"writing-{store.owner.rpartition(':')[2]}"
    path = Path(os.path.realpath(path)) if os.path.islink(path) else path       # a link stays, as with ``replacing``
    try:
        for left in store.path.glob("writing*"):
            shutil.rmtree(left, ignore_errors=True)
        folder.mkdir()
        target = folder / path.name
        yield target
        keep_mode(target, path)
        flush(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        store.publish(target, path, ownership.check)
    except (OSError, UserError) as error:
        cause = error.__cause__ if isinstance(error, UserError) else error
        if not isinstance(cause, OSError):
            raise
        raise UserError(f"cannot write {path}: {cause.strerror or cause}; what was spoken is kept") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
