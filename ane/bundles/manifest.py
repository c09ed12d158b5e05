"""bundle.json: the manifest of a bundle.

Version 1 has: format, name, description, licence, created_by, precision, trained, default_voice, source (where the
weights came from, with the SHA-256 of every original file), networks (name → config, file, sha256, bytes, parameters),
tokenizer, mel_norms (null for a model without) and voices (each file, sha256, bytes); optionally model (its family),
settings (synthesis settings that suit this model, ``ane.models.tortoise.settings``) and clones. Other sections are kept
as they are.
"""

import dataclasses
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ane.bundles.family import DEFAULT_FAMILY, ModelFamily, find_family
from ane.bundles.hashes import FileRecord
from ane.bundles.json_reader import JsonReader, file_record
from ane.bundles.weights import PRECISIONS
from ane.system.errors import UserError
from ane.system.files import replacing

FORMAT = 1
MANIFEST_FILE = "bundle.json"


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
    tokenizer: FileRecord
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
        norms = [self.mel_norms] if self.mel_norms else []
        return [*weights, self.tokenizer, *norms, *self.voices.values()]


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write ``directory``/bundle.json. Raises UserError when it cannot be written."""
    plain = {key: value for key, value in dataclasses.asdict(manifest).items()
             if key not in ("networks", "sections", "family")}
    networks = {name: {"config": dataclasses.asdict(network.config), **dataclasses.asdict(network.weights),
                       "parameters": network.parameters} for name, network in manifest.networks.items()}
    with replacing(directory / MANIFEST_FILE) as path:
        content = {"format": FORMAT, "model": manifest.family, **plain, "networks": networks, **manifest.sections}
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest:
    """Read ``directory``/bundle.json.

    Raises:
        UserError: there is none, it is damaged, or of a format this version does not know.
    """
    path = directory / MANIFEST_FILE
    content = _read_json(path)
    version = JsonReader(content, str(path)).take("format", int)
    if version > FORMAT:
        raise UserError(f"{path} has format {version}, this version reads format {FORMAT}: update tortoise-ane")
    reader = JsonReader(content, str(path))
    precision = reader.take("precision", str)
    if precision not in PRECISIONS:
        raise UserError(f"{path}: precision {precision!r} is none of {', '.join(PRECISIONS)}")
    family = find_family(reader.take("model", str, DEFAULT_FAMILY))
    networks = {name: _network(family, name, reader.at("networks").at(name))
                for name in reader.take("networks", dict) if name in family.networks}   # others are of later versions
    known = {item.name for item in dataclasses.fields(Manifest)} | {"format", "model"}
    return Manifest(
        name=reader.take("name", str), precision=precision, trained=reader.take("trained", bool),
        default_voice=reader.take("default_voice", str), networks=networks,
        tokenizer=file_record(reader.at("tokenizer")),
        mel_norms=None if content.get("mel_norms", True) is None else file_record(reader.at("mel_norms")),
        voices={name: file_record(reader.at("voices").at(name)) for name in reader.take("voices", dict)},
        source=reader.take("source", dict), licence=reader.take("licence", str),
        description=reader.take("description", str), created_by=reader.take("created_by", str),
        settings=reader.take("settings", dict, {}), clones=reader.take("clones", bool, True),
        family=family.name,
        sections={key: value for key, value in content.items() if key not in known})


def _read_json(path: Path) -> dict[str, Any]:
    if not os.path.isdir(path.parent):
        raise UserError(f"there is no bundle at {path.parent}: "
                        + ("it is a file" if os.path.exists(path.parent) else "no such directory"))
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):     # opening a named pipe would wait for a writer
            raise UserError(f"cannot read {path}: it is not a regular file")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "; for a directory of .pth files use checkpoints=DIR" if next(path.parent.glob("*.pth"), None) else ""
        raise UserError(f"{path.parent} is not a bundle: it has no {MANIFEST_FILE}{hint}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except RecursionError:
        raise UserError(f"{path} is damaged: its JSON is nested too deeply") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path} is damaged (not JSON: {error}); import or copy the bundle again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it is a {type(content).__name__} instead of an object")
    return content


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
