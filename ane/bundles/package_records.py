"""Describe a bundle's packages and their test results in the sections "coreml" and "onnx" of bundle.json.

Version 1 of a section is {"format": 1, "packages": [record, …]}, where a record is a ``PackageRecord``. Core ML
packages are stored as ``packages/<network>-<precision>.mlpackage``. ONNX packages are stored as
``packages/<network>-<precision>.onnx``: a folder with a graph for each function and the weights that these graphs
share.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PositiveInt

from ane.bundles.hashes import DAMAGED, FileRecord
from ane.system.checked import read_record
from ane.system.errors import UserError

NAMES = {"coreml": "Core ML", "onnx": "ONNX"}
FORMATS = tuple(NAMES)  # names of the sections
FORMAT = 1
WEIGHTS = "bundle_weights_sha256"  # key in a record's source: SHA-256 of the network's weights in the bundle
PUBLISHED = "published"  # key in a record's source: the author's published graph that the package was cut from
ComputeUnits = Literal["CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL"]
COMPUTE_UNITS = get_args(ComputeUnits)
CORE_ML_FIELDS = ("scale", "compute_units", "warnings")  # only in records of Core ML packages


@dataclass(frozen=True)
class FunctionRecord:
    """One function: its kind, its bucket's lengths, and its signal-to-noise ratio in dB for each kind of arithmetic."""

    kind: str
    bucket: dict[str, PositiveInt]
    parity: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PackageRecord:
    """The record of one package."""

    network: str  # name of the network whose weights the package holds
    precision: str  # "fp32" or "fp16". For Core ML also "8bit", "6bit" or "4bit", for ONNX "int8" or "int4"
    path: str  # path of the package directory inside the bundle
    files: Annotated[list[FileRecord], Field(min_length=1)]
    # functions by name. ONNX functions take any length and have an empty bucket
    functions: Annotated[dict[str, FunctionRecord], Field(min_length=1)]
    scale: float = 1.0  # scale of the residual stream, by which the host multiplies the package's inputs
    compute_units: ComputeUnits = "CPU_AND_NE"  # where Core ML may run it by default
    # source and way of the conversion: the weights' SHA-256, layout, style, versions
    source: dict[str, Any] = field(default_factory=dict)
    # warnings of the lint, each with the reason why it was accepted
    warnings: list[dict[str, Any]] = field(default_factory=list)
    format: str = "coreml"  # a name in ``FORMATS``


@dataclass(frozen=True)
class PackageFolder:
    """Packages that are not in a bundle yet, and the folder that holds them."""

    path: Path
    packages: Sequence[PackageRecord]


@dataclass(frozen=True)
class PackageSection:
    """The packages in one format."""

    format: int
    packages: list[PackageRecord]


def section(packages: Sequence[PackageRecord]) -> dict[str, Any]:
    """Return the section of bundle.json for these packages, which all have one format."""
    return {
        "format": FORMAT,
        "packages": [
            {
                key: value
                for key, value in dataclasses.asdict(package).items()
                if key != "format" and (package.format == "coreml" or key not in CORE_ML_FIELDS)
            }
            for package in packages
        ],
    }


def sections_of(packages: Sequence[PackageRecord]) -> dict[str, Any]:
    """Return the sections of bundle.json for these packages, by name."""
    by_format = {name: [package for package in packages if package.format == name] for name in FORMATS}
    return {name: section(members) for name, members in by_format.items() if members}


def read_section(
    sections: Mapping[str, Any], where: str, networks: Collection[str], name: str = "coreml"
) -> list[PackageRecord]:
    """Return the records in a manifest's section ``name`` for these networks, or [] if there is no such section.

    Raises UserError if the section is damaged, or from a later version.
    """
    if name not in sections:
        return []
    content = read_record(PackageSection, sections[name], f"{where}: {name}", DAMAGED)
    if content.format > FORMAT:
        raise UserError(
            f"{where}: its {NAMES[name]} packages have format {content.format}, this version reads format "
            f"{FORMAT}: update tortoise-ane"
        )
    for package in content.packages:
        if not all(file.file.startswith(f"{package.path}/") for file in package.files):
            raise UserError(f"{where}: {name}: {package.path} must have its files in it{DAMAGED}")
    rest = {"format": name} if name == "coreml" else {"format": name, "compute_units": "ALL"}
    return [dataclasses.replace(package, **rest) for package in content.packages if package.network in networks]
