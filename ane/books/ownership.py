"""Decide which files a job may replace: only files whose content it wrote, even under another name or path.

A job records the hash of a new file before it renames the file to its final path. At any moment, the path has the old
content or the new content, and the job knows both hashes, even if the process is killed. A job never owns content that
anybody else wrote.
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

FileState = tuple[int, ...]  # values that change when somebody replaces, edits or touches the file


class FileOwnership:
    """The rules that decide which files belong to a job. With ``force``, the job may replace any file."""

    def __init__(self, store: JobStore, force: bool = False):
        self.store, self.force = store, force
        self._judged: dict[FileState, bool] = {}

    def is_own(self, path: Path) -> bool:
        """Return whether there is a file at ``path`` whose content this job (narration) wrote."""
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
        """Raise UserError if there is a file at ``path`` that this job (narration) did not write.

        The job may replace an empty file.
        """
        if self.force or not os.path.exists(path) or not os.path.getsize(path) or self.is_own(path):
            return
        advice = "move it, choose another output, or add force=True to replace it"
        if path.name in {name for *_, name in self.store.recorded_outputs()}:
            raise UserError(f"{path} was changed since this job wrote it: {advice}")
        raise UserError(f"{path} exists, and this job did not write it: {advice}")

    def publish(self, file: Path, path: Path) -> None:
        """Rename a complete file to ``path``, unless there is a file at ``path`` that this job did not write.

        The job records a hash of the new content before the rename. If the process is killed before the rename,
        ``path`` still has the old content, whose hash the job has recorded too.

        Raises:
            UserError: Another process is writing the output, or ``check`` rejects the file at ``path``.
        """
        self.check(path)  # may read the file, which would take too long in the transaction below
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
                        f"cannot write {path}: {error.strerror or error} (what was spoken is kept)"
                    ) from error
                # a file on another disk cannot be renamed
                with replacing(path, lasting=True, check=self.check) as target:
                    shutil.copyfile(file, target)
            flush_folder(path.parent)


def state_of(path: Path) -> FileState | None:
    """Return values that change when the file at ``path`` changes.

    Follows links. Returns ``None`` if there is no file.
    """
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


@contextmanager
def published(path: Path, ownership: FileOwnership) -> Iterator[Path]:
    """Yield a path in the job's folder. When the ``with`` block has written this file, publish the file at ``path``.

    The file is flushed to disk first. The yielded path has the file name of ``path``, because its suffix tells writers
    the format. Files that an interrupted run left behind are removed first. The caller must hold the lease on the
    output (``JobStore.claim_output``).
    """
    store = ownership.store
    folder = store.path / f"writing-{store.owner.rpartition(':')[2]}"
    target = folder / path.name
    # a link at ``path`` stays a link, as with ``replacing``
    path = Path(os.path.realpath(path)) if os.path.islink(path) else path
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
        raise UserError(f"cannot write {path}: {cause.strerror or cause} (what was spoken is kept)") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
