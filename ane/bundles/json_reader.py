"""Typed access to the JSON of a bundle, with errors that name what is missing or wrong."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from ane.bundles.hashes import FileRecord
from ane.system.errors import UserError


class JsonReader:
    """Reads the values of one JSON object; ``where`` names it in errors. All methods raise UserError."""

    def __init__(self, content: Mapping[str, Any], where: str):
        self.content, self.where = content, where

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value, which must be there unless there is a default for it."""
        value = self.content.get(key, default)
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            names = " or ".join(item.__name__ for item in kinds)
            raise self.damaged(f"{key} " + ("is missing" if key not in self.content else f"must be of type {names}"))
        return value

    def damaged(self, fault: str) -> UserError:
        """The error for a damaged file, to be raised by the caller."""
        return UserError(f"{self.where}: {fault}: the file is damaged; import or copy the bundle again")

    def at(self, key: str) -> "JsonReader":
        return JsonReader(self.take(key, dict), f"{self.where}: {key}")

    def each(self, key: str) -> list["JsonReader"]:
        items = self.take(key, list)
        for item in items:
            if not isinstance(item, dict):
                raise self.damaged(f"{key} must contain objects")
        return [JsonReader(item, f"{self.where}: {key} {number}") for number, item in enumerate(items)]


def file_record(reader: JsonReader) -> FileRecord:
    """A file of a bundle. Raises UserError when its path leads outside, or its hash is malformed."""
    file, sha256 = reader.take("file", str), reader.take("sha256", str)
    parts = PurePosixPath(file)
    if parts.is_absolute() or ".." in parts.parts or "\\" in file:
        raise UserError(f"{reader.where}: {file} is outside the bundle: refused")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise UserError(f"{reader.where}: sha256 {sha256!r} is no SHA-256 in hexadecimal")
    return FileRecord(file, sha256, reader.take("bytes", int))
