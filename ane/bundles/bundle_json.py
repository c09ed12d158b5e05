"""Reading bundle.json of any family, without the libraries that a family's networks need."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from ane.bundles.family import DEFAULT_FAMILY
from ane.bundles.json_reader import JsonReader
from ane.system.errors import UserError

FORMAT = 1
MANIFEST_FILE = "bundle.json"


def read_content(directory: Path) -> dict[str, Any]:
    """``directory``/bundle.json as it is.

    Raises:
        UserError: there is none, it is damaged, or of a format this version does not know.
    """
    path = directory / MANIFEST_FILE
    content = _read_json(path)
    version = JsonReader(content, str(path)).take("format", int)
    if version > FORMAT:
        raise UserError(f"{path} has format {version}, this version reads format {FORMAT}: update tortoise-ane")
    return content


def bundle_family(directory: Path) -> str:
    """Name of the family that a bundle is of. Errors: ``read_content``."""
    return JsonReader(read_content(directory), str(directory / MANIFEST_FILE)).take("model", str, DEFAULT_FAMILY)


def _read_json(path: Path) -> dict[str, Any]:
    if not os.path.isdir(path.parent):
        raise UserError(f"there is no bundle at {path.parent}: "
                        + ("it is a file" if os.path.exists(path.parent) else "no such directory"))
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):     # opening a named pipe would wait for a writer
            raise UserError(f"cannot read {path}: it is not a regular file")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "; for a directory of .pth files use checkpoints=DIR" if next(path.parent.glob("*.pth"), None) else ""
        raise UserError(f"{path.parent} is not a bundle: it has no {MANIFEST_FILE}{hint}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except RecursionError:
        raise UserError(f"{path} is damaged: its JSON is nested too deeply") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path} is damaged (not JSON: {error}); import or copy the bundle again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it is a {type(content).__name__} instead of an object")
    return content
