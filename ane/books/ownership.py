"""Ownership of files: a job owns a file if it wrote the content, whatever the name and the path are now.

A job records the hash of a file before it renames the file into place. A process that is killed at any instant
therefore leaves the former content or the new one there, both of which the job knows. Content that anybody else wrote
is never taken for the job's.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ane.books.store import JobStore
from ane.bundles.hashes import sha256_of
from ane.system.errors import UserError
from ane.system.files import flush, flush_folder, keep_mode, rename_to_new, replacing

FileState = tuple[int, ...]  # changes whenever a file is replaced, edited or touched


class FileOwnership:
    """Tells the files of a job from files of its user. With ``force``, files of any origin may be replaced."""

    def __init__(self, store: JobStore, force: bool = False):
        self.store, self.force = store, force
        self._judged: dict[FileState, bool] = {}

    def is_own(self, path: Path) -> bool:
        """Return whether a file is there whose content this job wrote."""
        state = state_of(path)
        if state is None or not path.is_file():
            return False
        if state not in self._judged:
            recorded = {digest: size for digest, size, _ in self.store.recorded_outputs()}
            self._judged[state] = not {path.stat().st_size, None}.isdisjoint(recorded.values()) and (
                sha256_of(path) in recorded
            )
        return self._judged[state]

    def check(self, path: Path) -> None:
        """Raise UserError for a file at ``path`` that is not this job's. An empty file may be replaced by anybody."""
        if self.force or not os.path.exists(path) or not os.path.getsize(path) or self.is_own(path):
            return
        advice = "move it, choose another output, or add force=True to replace it"
        if path.name in {name for *_, name in self.store.recorded_outputs()}:
            raise UserError(f"{path} was changed since this job wrote it: {advice}")
        raise UserError(f"{path} exists, and this job did not write it: {advice}")

    def publish(self, file: Path, path: Path) -> None:
        """Rename a complete file to ``path`` unless a file is there that is not this job's.

        The content is recorded as this job's before the rename: a process that is killed between the two leaves the
        former content there, which is recorded as well.

        Raises:
            UserError: another process writes the output meanwhile, or a file that ``check`` refuses is in the way.
        """
        self.check(path)  # a file that has to be read takes time, which the transaction below then does not
        with self.store.output_transaction() as run:
            run("INSERT OR REPLACE INTO outputs VALUES (?, ?, ?)", (sha256_of(file), file.stat().st_size, path.name))
        with self.store.output_transaction():
            self.check(path)
            try:
                (os.replace if os.path.lexists(path) else rename_to_new)(file, path)
            except OSError as error:
                if isinstance(error, FileExistsError):
                    self.check(path)
                if error.errno != errno.EXDEV:
                    raise UserError(
                        f"cannot write {path}: {error.strerror or error}; what was spoken is kept"
                    ) from error
                with replacing(path, lasting=True, check=self.check) as target:  # the job is on another disk
                    shutil.copyfile(file, target)
            flush_folder(path.parent)


def state_of(path: Path) -> FileState | None:
    """Return what the system states about the file at ``path``, links followed. None means that there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@contextmanager
def completed(path: Path, ownership: FileOwnership) -> Iterator[Path]:
    """Yield a path in the job's folder; the file that the block writes there becomes ``path`` when it is on disk.

    It has the name of ``path``, by which writers choose the format, even if ``path`` is a link to another name.
    Whoever has the lease on the output removes what an interrupted run left.
    """
    store = ownership.store
    folder = store.path / f"writing-{store.owner.rpartition(':')[2]}"
    target = folder / path.name
    path = Path(os.path.realpath(path)) if os.path.islink(path) else path  # a link stays, as with ``replacing``
    try:
        for left in store.path.glob("writing*"):
            shutil.rmtree(left, ignore_errors=True)
        folder.mkdir()
        yield target
        keep_mode(target, path)
        flush(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        ownership.publish(target, path)
    except (OSError, UserError) as error:
        cause = error.__cause__ if isinstance(error, UserError) else error
        if not isinstance(cause, OSError):
            raise
        raise UserError(f"cannot write {path}: {cause.strerror or cause}; what was spoken is kept") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
