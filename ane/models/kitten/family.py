"""What KittenTTS declares to bundles, and its bundles. It has no PyTorch networks: its graph is an ONNX file.

    bundle.json     format, model ("kitten"), name, licence, source, created_by, and files: role → file, sha256, bytes
    config.json     as published
    *.onnx, *.npz   the graph and the voices, under the names in config.json
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ane.bundles.bundle_json import FORMAT, MANIFEST_FILE, bundle_family, read_content
from ane.bundles.family import ModelFamily
from ane.bundles.hashes import check_hash, record
from ane.bundles.json_reader import JsonReader, file_record
from ane.models.kitten.model_files import CONFIG_FILE, KittenFiles, read_model_files
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.version import version

NAME = "kitten"


def open_bundle(folder: Path) -> KittenFiles:
    """The files of a bundle, each compared with its SHA-256.

    Raises:
        UserError: no bundle there, a bundle of another family, or a file that is missing, damaged or not recorded.
    """
    where = str(folder / MANIFEST_FILE)
    reader = JsonReader(read_content(folder), where)
    family = bundle_family(folder)
    if family != NAME:
        raise UserError(f"{folder} is a bundle of {family}, not of KittenTTS")
    files = reader.at("files")
    records = [file_record(files.at(role)) for role in ("config", "graph", "voices")]
    for item in records:
        check_hash(folder, item)
    found = dataclasses.replace(read_model_files(folder), name=reader.take("name", str))
    if [item.file for item in records] != list(found.files):
        raise UserError(f"{where} and {CONFIG_FILE} name different files: import the model again")
    return found


def write_bundle(files: KittenFiles, destination: Path | str, *, name: str | None = None, licence: str = "",
                 source: Mapping[str, Any] | None = None, overwrite: bool = False) -> KittenFiles:
    """Copy a model into a bundle, which appears at ``destination`` complete or not at all.

    ``source`` states where the files came from. Read the voices and open the graph before, to write no damaged model.

    Raises:
        UserError: the destination is taken or not writable.
    """
    from ane.bundles.bundle import check_destination  # imports torch

    destination = Path(destination)
    check_destination(destination, overwrite, files.folder)
    with replacing(destination, directory=True) as folder:
        for file in files.files:
            shutil.copyfile(files.folder / file, folder / file)
        records = {role: dataclasses.asdict(record(folder, file))
                   for role, file in zip(("config", "graph", "voices"), files.files, strict=True)}
        content = {"format": FORMAT, "model": NAME, "name": name or destination.name, "licence": licence,
                   "source": dict(source or {}), "created_by": f"tortoise-ane {version()}", "files": records}
        (folder / MANIFEST_FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return open_bundle(destination)


def _unused(*arguments: Any) -> Any:
    raise UserError("a KittenTTS model has no PyTorch networks: ane.models.kitten.open_kitten opens it")


FAMILY = ModelFamily(
    NAME, title="KittenTTS", networks={}, stages=None, check_value=_unused, check_config=_unused,
    open_checkpoints=_unused, synthesizer=_unused, read_options=_unused, options=frozenset(),
    required_files=(CONFIG_FILE,),
    repository="KittenML/kitten-tts-nano-0.8-fp32")
