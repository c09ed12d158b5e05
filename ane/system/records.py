"""Records in JSON files: declared once as dataclasses, checked by pydantic; a wrong value is one line that names it."""

import functools
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ane.system.errors import UserError
from ane.system.files import read_json

Record = TypeVar("Record")


def read_record(kind: type[Record], content: Mapping[str, Any], where: str, advice: str = "") -> Record:
    """A record of the dataclass ``kind`` from JSON content; no value is converted to another type.

    Args:
        where: the file that has it, for the error. advice: the end of the error.

    Raises:
        UserError: a value is missing, or of another type or range than ``kind`` states.
    """
    try:
        return _adapter(kind).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {first_fault(error)}{advice}") from None


def stored_record(kind: type[Record], path: Path) -> Record | None:
    """The record of the dataclass ``kind`` in a file; None when there is none, or it is damaged or another kind's."""
    with suppress(UserError):
        return read_record(kind, read_json(path), str(path))
    return None


def first_fault(error: ValidationError) -> str:
    """The first fault that pydantic found: "networks: clvp: sha256 is missing"."""
    fault = error.errors(include_url=False, include_context=False)[0]
    field = ": ".join(str(part) for part in fault["loc"])
    if fault["type"] == "missing":
        return f"{field} is missing"
    if fault["type"] == "value_error":
        return f"{field}: {fault['msg'].removeprefix('Value error, ')}"
    message = fault["msg"].replace("Input should be", "must be", 1)
    given = repr(fault["input"])
    return f"{field} {message[:1].lower()}{message[1:]}, not {given if len(given) < 60 else given[:57] + '…'}".strip()


@functools.cache
def _adapter(kind: type[Record]) -> TypeAdapter[Record]:
    return TypeAdapter(kind)
