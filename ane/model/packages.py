"""The section "coreml" of bundle.json: which Core ML packages a bundle holds, and what was measured of them.

Version 1: {"format": 1, "packages": [record, …]}, a record being ``PackageRecord``. The packages lie in the bundle as
``packages/<network>-<precision>.mlpackage``.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ane.errors import UserError
from ane.model.hashes import FileRecord
from ane.model.reading import Reader, file_record

SECTION = "coreml"
FORMAT = 1
WEIGHTS = "bundle_weights_sha256"        # in a record's source: of the weights of the same network in the bundle
UNITS = ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL")


@dataclass(frozen=True)
class FunctionRecord:
    """One function: its kind, the lengths it was made for, its signal-to-noise ratio in dB by kind of arithmetic."""

    kind: str
    bucket: dict[str, int]
    parity: dict[str, float]


@dataclass(frozen=True)
class PackageRecord:
    """One package.

    Attributes:
        network: whose weights it holds. precision: "fp32", "fp16", "8bit", "6bit" or "4bit".
        path: of the package directory, inside the bundle.
        files: every file in it.
        functions: by name.
        scale: of the residual stream, which the host gives its inputs in.
        units: where Core ML may run it unless told otherwise.
        source: what it was made from and how: weights' SHA-256, layout, style, versions.
        warnings: what the lint says of it, each with the reason it stays.
    """

    network: str
    precision: str
    path: str
    files: list[FileRecord]
    functions: dict[str, FunctionRecord]
    scale: float = 1.0
    units: str = "CPU_AND_NE"
    source: dict[str, Any] = field(default_factory=dict)
    warnings: list[dict[str, Any]] = field(default_factory=list)


def section(packages: list[PackageRecord]) -> dict[str, Any]:
    """The section that states these packages."""
    return {"format": FORMAT, "packages": [dataclasses.asdict(package) for package in packages]}


def read_section(sections: Mapping[str, Any], where: str) -> list[PackageRecord]:
    """The packages that a manifest's sections state; none without the section.

    Raises:
        UserError: the section is damaged, or of a later version.
    """
    if SECTION not in sections:
        return []
    reader = Reader(sections, where).at(SECTION)
    version = reader.take("format", int)
    if version > FORMAT:
        raise UserError(f"{where}: its Core ML packages have format {version}, this version reads format {FORMAT}: "
                        "update tortoise-ane")
    return [_package(item) for item in reader.each("packages")]


def _package(reader: Reader) -> PackageRecord:
    functions = {name: _function(reader.at("functions").at(name)) for name in reader.take("functions", dict)}
    units = reader.take("units", str)
    if units not in UNITS:
        raise UserError(f"{reader.where}: units {units!r} is none of {', '.join(UNITS)}")
    return PackageRecord(
        network=reader.take("network", str), precision=reader.take("precision", str), path=reader.take("path", str),
        files=[file_record(item) for item in reader.each("files")], functions=functions,
        scale=reader.take("scale", float), units=units, source=reader.take("source", dict, {}),
        warnings=reader.take("warnings", list, []))


def _function(reader: Reader) -> FunctionRecord:
    return FunctionRecord(reader.take("kind", str), reader.take("bucket", dict), reader.take("parity", dict, {}))


def directory(bundle: Path, record: PackageRecord) -> Path:
    return bundle / record.path
