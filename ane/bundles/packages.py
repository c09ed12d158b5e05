"""The sections "coreml" and "onnx" of bundle.json: the packages of a bundle, with the results of their tests.

Version 1 of either: {"format": 1, "packages": [record, …]}, a record being ``PackageRecord``. Core ML packages are
stored as ``packages/<network>-<precision>.mlpackage``, ONNX packages as ``packages/<network>-<precision>.onnx``: a
folder with a graph for each function and the weights that they share.
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
PUBLISHED = "published"  # key in a record's source: the graph of the model's author that it is cut from
ComputeUnits = Literal["CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL"]
COMPUTE_UNITS = get_args(ComputeUnits)
CORE_ML_FIELDS = ("scale", "compute_units", "warnings")  # only in records of Core ML packages


@dataclass(frozen=True)
class FunctionRecord:
    """One function: its kind, the lengths of its bucket, its signal-to-noise ratio in dB by kind of arithmetic."""

    kind: str
    bucket: dict[str, PositiveInt]
    parity: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PackageRecord:
    """One package."""

    network: str  # name of the network whose weights it holds
    precision: str  # "fp32" or "fp16"; of Core ML also "8bit", "6bit" or "4bit", of ONNX "int8" or "int4"
    path: str  # of the package directory, inside the bundle
    files: Annotated[list[FileRecord], Field(min_length=1)]
    # by name; ONNX functions take any length and have an empty bucket
    functions: Annotated[dict[str, FunctionRecord], Field(min_length=1)]
    scale: float = 1.0  # of the residual stream; the host multiplies its inputs by it
    compute_units: ComputeUnits = "CPU_AND_NE"  # where Core ML may run it by default
    # what it was converted from and how: weights' SHA-256, layout, style, versions
    source: dict[str, Any] = field(default_factory=dict)
    # the lint's, each with the reason it was accepted
    warnings: list[dict[str, Any]] = field(default_factory=list)
    format: str = "coreml"  # of ``FORMATS``


@dataclass(frozen=True)
class PackageFolder:
    """Packages that are not in a bundle yet, and the folder that has them."""

    path: Path
    packages: Sequence[PackageRecord]


@dataclass(frozen=True)
class PackageSection:
    """The packages of one format."""

    format: int
    packages: list[PackageRecord]


def section(packages: Sequence[PackageRecord]) -> dict[str, Any]:
    """The section of bundle.json for these packages, all of one format."""
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
    """The sections of bundle.json for these packages, by name."""
    found = {name: [package for package in packages if package.format == name] for name in FORMATS}
    return {name: section(those) for name, those in found.items() if those}


def read_section(
    sections: Mapping[str, Any], where: str, networks: Collection[str], name: str = "coreml"
) -> list[PackageRecord]:
    """The packages of these networks in a manifest's section ``name``; [] without the section. Raises UserError: the
    section is damaged, or of a later version.
    """
    if name not in sections:
        return []
    found = read_record(PackageSection, sections[name], f"{where}: {name}", DAMAGED)
    if found.format > FORMAT:
        raise UserError(
            f"{where}: its {NAMES[name]} packages have format {found.format}, this version reads format "
            f"{FORMAT}: update tortoise-ane"
        )
    for package in found.packages:
        if not all(file.file.startswith(f"{package.path}/") for file in package.files):
            raise UserError(f"{where}: {name}: {package.path} must have its files in it{DAMAGED}")
    rest = {"format": name} if name == "coreml" else {"format": name, "compute_units": "ALL"}
    return [dataclasses.replace(package, **rest) for package in found.packages if package.network in networks]
