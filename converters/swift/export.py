"""Writes a Swift package: a bundle's Core ML packages, tables, a runtime in Swift, and its tests."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.packaged.selection import select_packages
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import check_hashes
from ane.bundles.packages import PackageRecord
from ane.models.tortoise.settings import Settings
from ane.system.errors import UserError
from ane.system.files import check_output_folder, link_or_copy, replacing
from ane.voices import Voice
from converters.swift.golden import golden_vectors
from converters.swift.tables import DECODER, NETWORKS, check_exportable, model_tables

TEMPLATE = Path(__file__).parent / "template"
MODEL = Path("Sources", "TortoiseCoreML", "Model")
GOLDEN = Path("Tests", "TortoiseTests", "Golden")
TABLES = MODEL / "tortoise.json"


def check_bundle(bundle: Any, precision: str = "auto") -> dict[str, PackageRecord]:
    """The packages that are exported, by network. Raises UserError for a model that cannot be exported."""
    if bundle.family.name != "tortoise":
        raise UserError(f"{bundle.name} is a {bundle.family.title} model; a Swift package speaks with Tortoise's")
    packages = select_packages(bundle, precision)
    check_exportable(bundle, packages)
    return {network: packages[network] for network in NETWORKS}


def check_package_destination(destination: Path, overwrite: bool) -> None:
    """Refuse a destination where a Swift package must not be written: only an exported one is replaced, on request.

    Raises:
        UserError: a file or another directory is there, or an exported package and ``overwrite`` is False.
    """
    check_output_folder(destination, TABLES, "a Swift package", overwrite)


def export_swift(bundle: Bundle, destination: Path, voices: Mapping[str, Voice], precision: str = "auto",
                 overwrite: bool = False, progress: Callable[[str], None] = lambda activity: None) -> Path:
    """Write the package; it appears at ``destination`` complete or not at all.

    Args:
        voices: those that it can speak with, by name; the first is its default.
        precision: of the Core ML packages.

    Raises:
        UserError: the model cannot be exported, a voice is of another model, the destination is taken or not writable.
    """
    check_package_destination(destination, overwrite)
    packages = check_bundle(bundle, precision)
    settings = Settings.of("fastest", bundle.settings)
    tables = model_tables(bundle, packages, settings)
    for voice in voices.values():
        voice.check_widths(bundle.widths)
    default = next(iter(voices))
    with replacing(destination, directory=True) as folder:
        progress("copying packages")
        shutil.copytree(TEMPLATE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        (folder / MODEL).mkdir()
        tables |= {"packages": {network: copy_package(bundle, package, folder / MODEL)
                                for network, package in packages.items()},
                   "voices": list(voices), "defaultVoice": default,
                   "arrays": write_arrays(folder / MODEL / "tables.f32", model_arrays(bundle, voices))}
        write_content(folder / TABLES, tables)
        progress("recording golden vectors")
        golden, arrays = golden_vectors(bundle, precision, default, voices[default], settings)
        (folder / GOLDEN).mkdir()
        golden["arrays"] = write_arrays(folder / GOLDEN / "golden.f32", arrays)
        write_content(folder / GOLDEN / "golden.json", golden)
    return destination


def model_arrays(bundle: Bundle, voices: Mapping[str, Voice]) -> dict[str, np.ndarray]:
    """The decoder's embedding tables, and the decoder's latent (1, D) of each voice; float32."""
    weights = bundle.tensors(DECODER)
    tables = {name: weights[key].float().numpy() for name, key in bundle.family.stages.decoder.tables.items()}
    return tables | {f"voice/{name}": voice.ar for name, voice in voices.items()}


def copy_package(bundle: Bundle, package: PackageRecord, folder: Path) -> dict[str, str]:
    """Copy a Core ML package, its files checked; what the tables state of it."""
    check_hashes(bundle.path, package.files)
    for file in package.files:
        target = folder / file.file
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(bundle.path / file.file, target)
    digests = "".join(file.sha256 for file in package.files)
    return {"path": package.path, "computeUnits": package.compute_units,
            "identity": hashlib.sha256(digests.encode()).hexdigest()[:16]}


def write_content(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Write arrays one after the other, as little-endian float32; return shape and offset (in floats) by name."""
    index, offset = {}, 0
    with path.open("wb") as file:
        for name, array in arrays.items():
            index[name] = {"shape": list(array.shape), "offset": offset}
            file.write(np.ascontiguousarray(array, "<f4").tobytes())
            offset += array.size
    return index
