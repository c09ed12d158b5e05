"""The sections "coreml" and "onnx" of bundle.json: which packages a bundle holds, and what was measured of them.

Version 1 of either: {"format": 1, "packages": [record, …]}, a record being ``PackageRecord``. Core ML packages lie in
the bundle as ``packages/<network>-<precision>.mlpackage``, ONNX packages as ``packages/<network>-<precision>.onnx``: a
folder with a graph for each function and the weights that they share. A version that knows no ONNX leaves that section
unread.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ane.bundles.hashes import FileRecord
from ane.bundles.json_reader import Reader, file_record
from ane.system.errors import UserError

FORMATS = ("coreml", "onnx")            # names of the sections
NAMES = {"coreml": "Core ML", "onnx": "ONNX"}
FORMAT = 1
WEIGHTS = "bundle_weights_sha256"        # in a record's source: of the weights of the same network in the bundle
# UnivNet predicts convolution kernels, and amplifies what fp16 does to its mel: 40 dB are left of a trained one.
ALWAYS_FP32 = frozenset({"univnet"})
# Only these are compressed: a vocoder's rounding is heard, and the others are small.
COMPRESSED = frozenset({"autoregressive", "diffusion", "clvp"})
COMPUTE_UNITS = ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL")
OF_CORE_ML = ("scale", "units", "warnings")     # what a record of another format does not state


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
        network: whose weights it holds.
        precision: "fp32" or "fp16"; of Core ML also "8bit", "6bit" or "4bit", of ONNX "int8" or "int4".
        path: of the package directory, inside the bundle.
        files: every file in it.
        functions: by name. Those of ONNX take any length, and have no bucket.
        format: of ``FORMATS``.
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
    format: str = "coreml"


def section(packages: Sequence[PackageRecord]) -> dict[str, Any]:
    """The section that states these packages, all of one format."""
    return {"format": FORMAT, "packages": [_stated(package) for package in packages]}


def sections_of(packages: Sequence[PackageRecord]) -> dict[str, Any]:
    """The sections that state these packages, by name."""
    found = {name: [package for package in packages if package.format == name] for name in FORMATS}
    return {name: section(those) for name, those in found.items() if those}


def _stated(package: PackageRecord) -> dict[str, Any]:
    left_out = {"format", *(() if package.format == "coreml" else OF_CORE_ML)}
    return {key: value for key, value in dataclasses.asdict(package).items() if key not in left_out}


def read_section(sections: Mapping[str, Any], where: str, networks: Collection[str],
                 name: str = "coreml") -> list[PackageRecord]:
    """The packages of these networks that a manifest's section ``name`` states; none without the section.

    Raises:
        UserError: the section is damaged, or of a later version.
    """
    if name not in sections:
        return []
    reader = Reader(sections, where).at(name)
    version = reader.take("format", int)
    if version > FORMAT:
        raise UserError(f"{where}: its {NAMES[name]} packages have format {version}, this version reads format "
                        f"{FORMAT}: update tortoise-ane")
    found = [_package(item, name) for item in reader.each("packages")]
    return [package for package in found if package.network in networks]


def _package(reader: Reader, name: str) -> PackageRecord:
    core_ml = {} if name == "coreml" else {"scale": 1.0, "units": "ALL"}
    path, units = reader.take("path", str), reader.take("units", str, core_ml.get("units"))
    functions = {name: _function(reader.at("functions").at(name)) for name in reader.take("functions", dict)}
    files = [file_record(item) for item in reader.each("files")]
    if units not in COMPUTE_UNITS:
        raise reader.damaged(f"units {units!r} is none of {', '.join(COMPUTE_UNITS)}")
    if not functions or not files or not all(file.file.startswith(f"{path}/") for file in files):
        raise reader.damaged(f"{path} must have functions, and files that lie in it")
    return PackageRecord(
        network=reader.take("network", str), precision=reader.take("precision", str), path=path, files=files,
        functions=functions, scale=float(reader.take("scale", (float, int), core_ml.get("scale"))), units=units,
        source=reader.take("source", dict, {}), warnings=reader.take("warnings", list, []), format=name)


def _function(reader: Reader) -> FunctionRecord:
    bucket, parity = reader.take("bucket", dict), reader.take("parity", dict, {})
    if not all(isinstance(length, int) and length > 0 for length in bucket.values()):
        raise reader.damaged("bucket must map names to positive numbers")
    if not all(isinstance(value, int | float) for value in parity.values()):
        raise reader.damaged("parity must map names to numbers")
    return FunctionRecord(reader.take("kind", str), bucket, parity)


def directory(bundle: Path, record: PackageRecord) -> Path:
    return bundle / record.path
