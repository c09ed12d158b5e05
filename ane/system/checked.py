"""Check settings, requests and JSON records with pydantic, against the types and ranges that dataclasses declare.

The error for a wrong value is a single line that names the field.
"""

import dataclasses
import json
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ane.system.errors import UserError
from ane.system.files import read_json

T = TypeVar("T")
Record = TypeVar("Record")
# type of pydantic's error → text
NAMED = {**dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "a whole number"), "string_type": "a text"}
SHOWN = 60  # characters of a wrong value that an error shows
CLOSE = 0.7  # how similar a known name must be to an unknown name, so that the error suggests it
STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


@dataclass_transform(frozen_default=True, field_specifiers=(Field, dataclasses.field))
def validated(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen dataclass that checks its values. A wrong value raises UserError, which names the field."""
    validating = dataclass(frozen=True, config=STRICT)(cls)
    initialise = validating.__init__

    @wraps(initialise)
    def init(self: Any, *args: Any, **values: Any) -> None:
        try:
            initialise(self, *args, **values)
        except ValidationError as error:
            message = first_wrong_field(error, validating)
            raise UserError(message, message.partition(" ")[0]) from None

    validating.__init__ = init  # type: ignore[method-assign]
    return validating  # type: ignore[return-value]


def first_wrong_field(error: ValidationError, cls: type) -> str:
    """Describe the first wrong value in an error, such as "lanes must be at least 1, got 0"."""
    fault = error.errors(include_url=False)[0]
    place, value = fault["loc"][0], fault["input"]
    fields = cls.__pydantic_fields__  # type: ignore[attr-defined]
    name = list(fields)[place] if isinstance(place, int) else place
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        near = get_close_matches(str(name), fields, 1, CLOSE)
        return f"{name} is unknown" + (f": do you mean {near[0]}?" if near else "")
    if fault["type"] in ("missing", "missing_argument"):
        return f"{name} is missing"
    field = fields[name]
    limits = {
        key: getattr(annotation, key)
        for annotation in field.metadata
        for key in ("ge", "gt", "le", "lt")
        if getattr(annotation, key, None) is not None
    }
    shown = repr(value) if isinstance(value, str) else str(value)
    wanted = (
        NAMED.get(fault["type"])
        or choices_text(fault)
        or range_text(limits)
        or fault["msg"].removeprefix("Input should be ")
    )
    return f"{name} must be {wanted}, got {shown if len(shown) <= SHOWN else shown[:SHOWN] + '…'}"


def choices_text(fault: Any) -> str:
    """Describe the allowed choices, such as "one of even, logsnr". Returns "" if the fault is not about a choice."""
    expected = fault.get("ctx", {}).get("expected", "")
    return f"one of {expected.replace(' or ', ', ').replace(chr(39), '')}" if expected else ""


def range_text(limits: dict[str, float]) -> str:
    """Describe limits, such as "from 0 to 1", "at least 1" or "above 0 and at most 1".

    Returns "" if there are no limits.
    """
    if limits.keys() == {"ge", "le"}:
        return f"from {limits['ge']:g} to {limits['le']:g}"
    if limits.keys() == {"gt", "lt"}:
        return f"between {limits['gt']:g} and {limits['lt']:g}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return " and ".join(f"{words[key]} {limit:g}" for key, limit in limits.items())


def read_record(kind: type[Record], content: Mapping[str, Any], where: str, advice: str = "") -> Record:
    """Create a record from JSON content, without converting any value to another type.

    Args:
        kind: Dataclass of the record.
        content: JSON content.
        where: File that has the content, for the message.
        advice: End of the message.

    Raises:
        UserError: A value is missing, or does not have the type or range that ``kind`` declares.
    """
    try:
        return _adapter(kind).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {first_fault(error)}{advice}") from None


def stored_record(kind: type[Record], path: Path) -> Record | None:
    """Read a record of the dataclass ``kind`` from a JSON file.

    Returns ``None`` if the file is missing, is damaged, or contains a record of another kind.
    """
    with suppress(UserError):
        return read_record(kind, read_json(path), str(path))
    return None


def first_fault(error: ValidationError) -> str:
    """Describe the first fault that pydantic has found, such as "networks: clvp: sha256 is missing"."""
    fault = error.errors(include_url=False, include_context=False)[0]
    field = ": ".join(str(part) for part in fault["loc"])
    if fault["type"] == "missing":
        return f"{field} is missing"
    if fault["type"] == "value_error":
        return f"{field}: {fault['msg'].removeprefix('Value error, ')}"
    message = fault["msg"].replace("Input should be", "must be", 1)
    value = repr(fault["input"])
    return f"{field} {message[:1].lower()}{message[1:]}, not {value if len(value) < 60 else value[:57] + '…'}".strip()


@cache
def _adapter(kind: type[Record]) -> TypeAdapter[Record]:
    return TypeAdapter(kind)
