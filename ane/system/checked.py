"""Frozen dataclasses whose values are checked against the ranges that their fields declare (pydantic)."""

import dataclasses
from functools import wraps
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from ane.system.errors import UserError

T = TypeVar("T")
WHOLE = dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "a whole number")     # kinds of faults
STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


@dataclass_transform(frozen_default=True, field_specifiers=(Field, dataclasses.field))
def checked(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen dataclass. A wrong value raises UserError, one line that names the field."""
    made = dataclass(frozen=True, config=STRICT)(cls)
    check = made.__init__

    @wraps(check)
    def init(self: Any, *args: Any, **values: Any) -> None:
        try:
            check(self, *args, **values)
        except ValidationError as error:
            message = first_fault(error, made)
            raise UserError(message, message.partition(" ")[0]) from None

    made.__init__ = init        # type: ignore[method-assign]
    return made


def first_fault(error: ValidationError, cls: type) -> str:
    """The first fault as text: "lanes must be at least 1, got 0"."""
    fault = error.errors(include_url=False)[0]
    place, value = fault["loc"][0], fault["input"]
    fields = cls.__pydantic_fields__        # type: ignore[attr-defined]
    name = list(fields)[place] if isinstance(place, int) else place
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{name} is unknown"
    if fault["type"] in ("missing", "missing_argument"):
        return f"{name} is missing"
    field = fields[name]
    stated = {key: getattr(limit, key) for limit in field.metadata for key in ("ge", "gt", "le", "lt")
              if getattr(limit, key, None) is not None}
    shown = repr(value) if isinstance(value, str) else value
    wanted = (WHOLE.get(fault["type"]) or choices_text(fault) or range_text(stated)
              or fault["msg"].removeprefix("Input should be "))
    return f"{name} must be {wanted}, got {shown}"


def choices_text(fault: Any) -> str:
    """"one of even, logsnr"; "" for a fault of another kind."""
    expected = fault.get("ctx", {}).get("expected", "")
    return f"one of {expected.replace(' or ', ', ').replace(chr(39), '')}" if expected else ""


def range_text(limits: dict[str, float]) -> str:
    """"from 0 to 1", "at least 1", "above 0 and at most 1"; "" without limits."""
    if limits.keys() == {"ge", "le"}:
        return f"from {limits['ge']:g} to {limits['le']:g}"
    if limits.keys() == {"gt", "lt"}:
        return f"between {limits['gt']:g} and {limits['lt']:g}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return " and ".join(f"{words[key]} {limit:g}" for key, limit in limits.items())
