"""Reading bundle.json of any family, without the libraries that a family's networks need."""

import os
from pathlib import Path
from typing import Any

from ane.bundles.family import DEFAULT_FAMILY
from ane.bundles.json_reader import JsonReader
from ane.system.errors import UserError
from ane.system.files import read_json

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
        fault = "it is a file; import a checkpoint first, with `ane import`" if os.path.exists(path.parent) else (
            "no such directory")
        raise UserError(f"there is no bundle at {path.parent}: {fault}")
    if not os.path.exists(path):
        hint = "; for a directory of .pth files use checkpoints=DIR" if next(path.parent.glob("*.pth"), None) else ""
        raise UserError(f"{path.parent} is not a bundle: it has no {MANIFEST_FILE}{hint}")
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it is a {type(content).__name__} instead of an object")
    return content
