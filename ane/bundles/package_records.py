"""Record a bundle's packages and their test results in the sections "coreml" and "onnx" of bundle.json.

A section in format 1 is {"format": 1, "packages": [record, …]}, where every record is a ``PackageRecord``. A Core ML
package is the folder ``packages/<network>-<precision>.mlpackage``. An ONNX package is the folder
``packages/<network>-<precision>.onnx``, which has a graph for each function and a file of weights that all graphs
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
FORMATS = tuple(NAMES)  # formats of packages, which are also the names of the sections
FORMAT = 1
WEIGHTS = "bundle_weights_sha256"  # key of ``PackageRecord.source``: SHA-256 of the network's weights in the bundle
PUBLISHED = "published"  # key of ``PackageRecord.source``: the author's graph, if the package is a cut of this graph
ComputeUnits = Literal["CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL"]
COMPUTE_UNITS = get_args(ComputeUnits)
CORE_ML_FIELDS = ("scale", "compute_units", "warnings")  # fields that only records of Core ML packages have


@dataclass(frozen=True)
class FunctionRecord:
    """A function of a package: its kind, the lengths for which it was built, and its signal-to-noise ratios in dB.

    The converter records a signal-to-noise ratio for each arithmetic in which it has checked the function.
    """

    kind: str
    bucket: dict[str, PositiveInt]
    parity: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PackageRecord:
    """The record of a package in bundle.json."""

    network: str  # name of the network that was converted
    precision: str  # "fp32" or "fp16"; for Core ML also "8bit", "6bit" or "4bit"; for ONNX also "int8" or "int4"
    path: str  # path of the package's folder inside the bundle
    files: Annotated[list[FileRecord], Field(min_length=1)]
    # functions by name; an ONNX function takes any length, so its ``bucket`` is empty
    functions: Annotated[dict[str, FunctionRecord], Field(min_length=1)]
    scale: float = 1.0  # scale of the residual stream in the package: the host multiplies the inputs by it
    compute_units: ComputeUnits = "CPU_AND_NE"  # compute units on which Core ML may run the package, by default
    # facts about the conversion: SHA-256 of the weights, layout, style, versions
    source: dict[str, Any] = field(default_factory=dict)
    # warnings of the converter's lint, each with the reason why it was accepted
    warnings: list[dict[str, Any]] = field(default_factory=list)
    format: str = "coreml"  # one of ``FORMATS``


@dataclass(frozen=True)
class PackageFolder:
    """Packages that are not in a bundle yet, and the folder that contains them."""

    path: Path
    packages: Sequence[PackageRecord]


@dataclass(frozen=True)
class PackageSection:
    """A section of bundle.json: the packages in one format."""

    format: int
    packages: list[PackageRecord]


def section(packages: Sequence[PackageRecord]) -> dict[str, Any]:
    """Make a section of bundle.json from packages that all have the same format."""
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
    """Make the sections of bundle.json, by name, from packages of any format."""
    by_format = {name: [package for package in packages if package.format == name] for name in FORMATS}
    return {name: section(members) for name, members in by_format.items() if members}


def read_section(
    sections: Mapping[str, Any], where: str, networks: Collection[str], name: str = "coreml"
) -> list[PackageRecord]:
    """Read the packages of these networks from a section of bundle.json.

    Args:
        sections: Sections of bundle.json.
        where: Path of bundle.json, for messages.
        networks: Names of the networks.
        name: Name of the section. If there is no such section, the result is empty.

    Raises:
        UserError: The section is damaged, or a later version has written it.
    """
    if name not in sections:
        return []
    content = read_record(PackageSection, sections[name], f"{where}: {name}", DAMAGED)
    if content.format > FORMAT:
        raise UserError(
            f"{where}: its {NAMES[name]} packages have format {content.format}, but this version reads format "
            f"{FORMAT}: update tortoise-ane"
        )
    for package in content.packages:
        if not all(file.file.startswith(f"{package.path}/") for file in package.files):
            raise UserError(f"{where}: {name}: {package.path} must have its files in it{DAMAGED}")
    rest = {"format": name} if name == "coreml" else {"format": name, "compute_units": "ALL"}
    return [dataclasses.replace(package, **rest) for package in content.packages if package.network in networks]
