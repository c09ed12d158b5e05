"""bundle.json: the manifest of a bundle.

Version 1 has: format, name, description, licence, created_by, precision, trained, default_voice, source (where the
weights came from, with the SHA-256 of every original file), networks (name → config, file, sha256, bytes, parameters),
voices (each file, sha256, bytes), where the family has them also tokenizer and mel_norms; optionally model (its
family), settings (synthesis settings that suit this model, ``ane.models.tortoise.settings``) and clones. Other sections
are kept as they are.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ane.bundles.bundle_json import FORMAT, MANIFEST_FILE, read_content
from ane.bundles.family import DEFAULT_FAMILY, ModelFamily, find_family
from ane.bundles.hashes import FileRecord
from ane.bundles.json_reader import JsonReader, file_record
from ane.bundles.weights import PRECISIONS
from ane.system.errors import UserError
from ane.system.files import replacing


@dataclass(frozen=True)
class NetworkRecord:
    """One network: its config, the file of its weights and the number of its parameters."""

    config: Any
    weights: FileRecord
    parameters: int


@dataclass(frozen=True)
class Manifest:
    """The content of bundle.json; ``sections`` are the parts that this module does not interpret."""

    name: str
    precision: str
    trained: bool
    default_voice: str
    networks: dict[str, NetworkRecord]
    tokenizer: FileRecord | None = None
    mel_norms: FileRecord | None = None
    voices: dict[str, FileRecord] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    licence: str = ""
    description: str = ""
    created_by: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    clones: bool = True
    family: str = DEFAULT_FAMILY
    sections: dict[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> list[FileRecord]:
        """All files of the bundle except bundle.json."""
        weights = [network.weights for network in self.networks.values()]
        return [*weights, *self.data_files, *self.voices.values()]

    @property
    def data_files(self) -> list[FileRecord]:
        """The tokenizer and the mel norms, where there are any."""
        return [file for file in (self.tokenizer, self.mel_norms) if file is not None]


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write ``directory``/bundle.json. Raises UserError when it cannot be written."""
    plain = {key: value for key, value in dataclasses.asdict(manifest).items()
             if key not in ("networks", "sections", "family") and value is not None}
    networks = {name: {"config": dataclasses.asdict(network.config), **dataclasses.asdict(network.weights),
                       "parameters": network.parameters} for name, network in manifest.networks.items()}
    with replacing(directory / MANIFEST_FILE) as path:
        content = {"format": FORMAT, "model": manifest.family, **plain, "networks": networks, **manifest.sections}
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest:
    """Read ``directory``/bundle.json.

    Raises:
        UserError: there is none, it is damaged, of a format this version does not know, or of a family without
            PyTorch networks.
    """
    path = directory / MANIFEST_FILE
    content = read_content(directory)
    reader = JsonReader(content, str(path))
    family = find_family(reader.take("model", str, DEFAULT_FAMILY))
    if not family.networks:
        raise UserError(f"{directory} is a bundle of {family.title}, which this command or function cannot use; "
                        f"`ane say` and ane.models.{family.name} can")
    precision = reader.take("precision", str)
    if precision not in PRECISIONS:
        raise UserError(f"{path}: precision {precision!r} is none of {', '.join(PRECISIONS)}")
    networks = {name: _network(family, name, reader.at("networks").at(name))
                for name in reader.take("networks", dict) if name in family.networks}   # others are of later versions
    known = {item.name for item in dataclasses.fields(Manifest)} | {"format", "model"}
    return Manifest(
        name=reader.take("name", str), precision=precision, trained=reader.take("trained", bool),
        default_voice=reader.take("default_voice", str), networks=networks,
        **{name: file_record(reader.at(name)) for name in sorted(family.data)},
        voices={name: file_record(reader.at("voices").at(name)) for name in reader.take("voices", dict)},
        source=reader.take("source", dict), licence=reader.take("licence", str),
        description=reader.take("description", str), created_by=reader.take("created_by", str),
        settings=reader.take("settings", dict, {}), clones=reader.take("clones", bool, True),
        family=family.name,
        sections={key: value for key, value in content.items() if key not in known})


def _network(family: ModelFamily, name: str, reader: JsonReader) -> NetworkRecord:
    values = reader.take("config", dict)
    network = family.networks[name]
    cls = network.config
    unknown = set(values) - {item.name for item in dataclasses.fields(cls)}
    if unknown:
        raise UserError(f"{reader.where}: config has {', '.join(sorted(unknown))}, which this version does not know: "
                        "update tortoise-ane")
    where = f"{reader.where}: config"
    for key, value in values.items():
        family.check_value(key, value, getattr(network.official(), key), where)
    config = cls.from_upstream(values)
    family.check_config(name, config, where)
    return NetworkRecord(config, file_record(reader), reader.take("parameters", int))
