"""Files: written so that a reader never meets half of one, and read with an error that says what is wrong."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ane.errors import UserError


@contextmanager
def replacing(destination: Path | str, *, directory: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``destination``; rename it there when the block ends well, else remove it.

    The temporary name keeps the suffix, so a writer that chooses its format by suffix works unchanged. With
    ``directory=True`` the path is a fresh directory, and an existing ``destination`` directory is replaced whole.

    Raises:
        UserError: the place cannot be written (missing or read-only folder, full disk, a directory in the way).
    """
    destination = Path(destination)
    parent = destination.parent
    staging: Path | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".partial", dir=parent))
        target = staging / destination.name
        if directory:
            target.mkdir()
        yield target
        if destination.is_dir() != directory and destination.exists():
            what = "a file" if directory else "a directory"
            raise UserError(f"cannot write {destination}: {what} of that name exists")
        if directory and destination.exists():
            shutil.rmtree(destination)
        os.replace(target, destination)
    except OSError as error:
        raise UserError(f"cannot write {destination}: {error.strerror or error}") from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises UserError when it cannot be read or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
