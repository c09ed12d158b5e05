"""Read and write bundle.json, the manifest of a bundle.

In format 1, bundle.json has these keys:

format, name, description, licence, created_by, precision, trained, default_voice
source                         origin of the weights, with the SHA-256 of every original file
networks                       config, file, sha256, bytes and parameters (their number) of each network, by name
voices                         file, sha256 and bytes of each voice, by name
tokenizer, mel_norms, files    records of these files, if the family has them (``files`` by role)
model                          name of the family (optional)
settings                       synthesis settings that suit this model (optional, ``ane.models.tortoise.settings``)
clones                         whether the model can copy voices from clips (optional)

All other keys are kept unchanged when the bundle is written again. Earlier versions wrote bundles of KittenTTS and
Kokoro with only name, licence, source, created_by and files.
"""

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ane.bundles.family import DEFAULT_FAMILY, ModelFamily, find_family, recognised_family
from ane.bundles.hashes import DAMAGED, FileRecord
from ane.system.checked import read_record
from ane.system.errors import NotFoundError, UserError
from ane.system.files import no_such_file, read_json, replacing

FORMAT = 1
MANIFEST_FILE = "bundle.json"
# values for the keys that old bundles of KittenTTS and Kokoro lack
WITHOUT_NETWORKS: dict[str, Any] = {
    "precision": "fp32",
    "trained": True,
    "default_voice": "",
    "networks": {},
    "voices": {},
    "source": {},
    "licence": "",
    "description": "",
    "created_by": "",
}


@dataclass(frozen=True)
class ManifestHeader:
    """The keys that bundle.json has for every family."""

    format: int
    model: str = DEFAULT_FAMILY


@dataclass(frozen=True)
class NetworkRecord(FileRecord):
    """The record of a network in bundle.json: the file with its weights, its config and its number of parameters."""

    config: Any
    parameters: int

    @property
    def weights(self) -> FileRecord:
        return self


@dataclass(frozen=True)
class Manifest:
    """The content of bundle.json. ``sections`` has the keys that this module does not know, with their values."""

    name: str
    precision: Literal["fp32", "fp16", "bf16"]
    trained: bool
    default_voice: str
    networks: dict[str, NetworkRecord]
    voices: dict[str, FileRecord]
    source: dict[str, Any]
    licence: str
    description: str
    created_by: str
    tokenizer: FileRecord | None = None
    mel_norms: FileRecord | None = None
    files: dict[str, FileRecord] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    clones: bool = True
    family: str = DEFAULT_FAMILY
    sections: dict[str, Any] = field(default_factory=dict)

    @property
    def all_files(self) -> list[FileRecord]:
        """The records of all files in the bundle except bundle.json and the packages."""
        return [*self.networks.values(), *self.data_files, *self.files.values(), *self.voices.values()]

    @property
    def data_files(self) -> list[FileRecord]:
        """The records of the tokenizer and the mel norms, if the bundle has them."""
        return [file for file in (self.tokenizer, self.mel_norms) if file is not None]


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write ``directory``/bundle.json. Raises UserError if it cannot be written."""
    content = {key: value for key, value in dataclasses.asdict(manifest).items() if value is not None}
    if not manifest.files:
        del content["files"]
    sections = content.pop("sections")
    content = {"format": FORMAT, "model": content.pop("family"), **content, **sections}
    with replacing(directory / MANIFEST_FILE) as path:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_content(directory: Path) -> dict[str, Any]:
    """Read ``directory``/bundle.json as a dictionary.

    Raises:
        UserError: bundle.json is missing or damaged, or has a format that this version does not know.
    """
    path = directory / MANIFEST_FILE
    if not os.path.isdir(directory):
        if not os.path.exists(directory):
            raise NotFoundError(f"there is no bundle at {directory}: {no_such_file(directory)}")
        raise UserError(
            f"there is no bundle at {directory}: it is a file, so import it first with `ane import {directory} -o NAME`"
        )
    if not os.path.exists(path):
        hint = f": make a bundle with `ane import {directory} -o NAME`" if _has_checkpoints(directory) else ""
        raise UserError(f"{directory} is not a bundle, because it has no {MANIFEST_FILE}{hint}")
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it is a {type(content).__name__} instead of an object")
    version = read_record(ManifestHeader, content, str(path), DAMAGED).format
    if version > FORMAT:
        raise UserError(f"{path} has format {version}, but this version reads format {FORMAT}: update tortoise-ane")
    return content


def _has_checkpoints(directory: Path) -> bool:
    try:
        return recognised_family(directory) is not None
    except UserError:  # a checkpoint is damaged
        return True


def read_manifest(directory: Path) -> Manifest:
    """Read and check ``directory``/bundle.json.

    Raises:
        UserError: bundle.json is missing or damaged, or has a format that this version does not know.
    """
    content, where = read_content(directory), str(directory / MANIFEST_FILE)
    content["family"] = content.pop("model", DEFAULT_FAMILY)
    del content["format"]
    family = find_family(content["family"])
    if family.files:
        content = WITHOUT_NETWORKS | content
    if isinstance(content.get("networks"), dict):  # drops networks that only later versions know
        content["networks"] = {name: value for name, value in content["networks"].items() if name in family.networks}
    known = {item.name for item in dataclasses.fields(Manifest)} - {"sections"}
    content["sections"] = {key: content[key] for key in content if key not in known}
    manifest = read_record(Manifest, content, where, DAMAGED)
    voice = manifest.default_voice
    if voice not in manifest.voices and (
        Path(voice).name != voice or voice.startswith((".", "~")) or Path(voice).suffix
    ):
        raise UserError(f"{where}: default_voice must be the name of a voice, got {voice!r}{DAMAGED}")
    missing = [
        *(name for name in sorted(family.data) if getattr(manifest, name) is None),
        *(f"files: {role}" for role in family.files if role not in manifest.files),
    ]
    if missing:
        raise UserError(f"{where}: {missing[0]} is missing{DAMAGED}")
    return dataclasses.replace(
        manifest,
        networks={
            name: dataclasses.replace(network, config=_config(family, name, network.config, where))
            for name, network in manifest.networks.items()
        },
    )


def _config(family: ModelFamily, name: str, values: Any, where: str) -> Any:
    network, where = family.networks[name], f"{where}: networks: {name}: config"
    if not isinstance(values, dict):
        raise UserError(f"{where} must be an object{DAMAGED}")
    unknown = set(values) - {item.name for item in dataclasses.fields(network.config)}
    if unknown:
        raise UserError(
            f"{where} has {', '.join(sorted(unknown))}, which this version does not know: update tortoise-ane"
        )
    for key, value in values.items():
        network.official().check_value(key, value, where)
    config = network.config.from_upstream(values)
    config.check(where)
    return config
