"""Checks a JSON value against a JSON Schema (draft 2020-12) that has no other keywords than ``KNOWN``."""

from collections.abc import Mapping
from typing import Any

TYPES = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "null": type(None)}
KNOWN = {"$schema", "title", "description", "type", "const", "required", "anyOf", "properties", "additionalProperties",
         "items"}


def check_schema(value: Any, schema: Mapping[str, Any], where: str = "it") -> None:
    """Raises ValueError for the first value that does not match: "rows[0].value.low must be of type number"."""
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, one) for one in types):
        raise ValueError(f"{where} must be of type {' or '.join(types)}")
    if "const" in schema and (value != schema["const"] or isinstance(value, bool)):     # True equals 1
        raise ValueError(f"{where} must be {schema['const']}")
    if isinstance(value, dict):
        _check_object(value, schema, where)
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            check_schema(item, schema["items"], f"{where}[{number}]")


def _check_object(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> None:
    for name in schema.get("required", ()):
        if name not in value:
            raise ValueError(f"{where} lacks {name}")
    choices = [choice["required"] for choice in schema.get("anyOf", ())]
    if choices and not any(set(names) <= set(value) for names in choices):
        raise ValueError(f"{where} lacks {' or '.join(' and '.join(names) for names in choices)}")
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for name, item in value.items():
        inner = properties.get(name, others)
        if inner is False:
            raise ValueError(f"{where} has an unknown {name}")
        check_schema(item, inner, name if where == "it" else f"{where}.{name}")


def _is(value: Any, kind: str) -> bool:
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[kind]) and not isinstance(value, bool)
