"""What KittenTTS declares to bundles and commands, and the three files of a model: config.json, the ONNX graph and the
voices, in a folder or on the hub.

config.json has ``type`` ("ONNX1" or "ONNX2"), ``model_file``, ``voices``, and optionally ``speed_priors`` {voice:
factor}, ``voice_aliases`` {name: voice} and ``name``. Source: kittentts/get_model.py of KittenTTS 0.8.1.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from ane.bundles.hub import Snapshot, download_files
from ane.models.styletts.bundle import CONFIG_FILE, StyleFamily, StyleModel
from ane.models.styletts.settings import KittenSettings
from ane.models.styletts.voices import KITTEN_DEFAULT, StyleVoices, read_tables
from ane.system.errors import UserError
from ane.system.files import read_json

TYPES = ("ONNX1", "ONNX2")
OWNER = "KittenML"          # of the published repositories


@dataclass(frozen=True)
class KittenModel(StyleModel):
    """A model in a folder. ``speed_priors`` and ``voice_aliases`` are those of config.json."""

    speed_priors: dict[str, float]
    voice_aliases: dict[str, str]
    kind, extra = "kitten", "kitten"

    @property
    def files(self) -> dict[str, Path]:
        return {path.name: path for path in (self.folder / CONFIG_FILE, self.graph, self.voices_path)}

    def write_files(self, folder: Path) -> list[str]:
        for name, path in self.files.items():
            shutil.copyfile(path, folder / name)
        return list(self.files)

    def read_voices(self) -> StyleVoices:
        tables = read_tables(self.voices_path)
        for alias, name in self.voice_aliases.items():
            if name not in tables:
                raise UserError(f"{self.voices_path} has no voice {name}, which the alias {alias} of config.json names")
        return StyleVoices(tables, KITTEN_DEFAULT, self.voice_aliases, self.speed_priors)


def read_model_files(folder: Path) -> KittenModel:
    """The model in a folder. Raises UserError when there is none, or a file that config.json names is missing."""
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder with a KittenTTS model")
    found = read_config(folder / CONFIG_FILE)
    for file in found.files.values():
        if not os.path.isfile(file):
            raise UserError(f"{file} is missing: download the model again")
    return found


def read_config(path: Path) -> KittenModel:
    """Read config.json; the files it names need not be there. Raises UserError when it is none of KittenTTS."""
    if not os.path.isfile(path):
        raise UserError(f"{path} is missing: a KittenTTS model has {CONFIG_FILE}, an .onnx file and an .npz file")
    config = read_json(path)
    if not isinstance(config, dict) or config.get("type") not in TYPES:
        kind = config.get("type") if isinstance(config, dict) else None
        raise UserError(f"{path} is not of a KittenTTS model: its type is {kind!r}, not {' or '.join(TYPES)}")
    priors = _mapping(path, config, "speed_priors", (int, float))
    for voice, prior in priors.items():
        if not 0.01 <= prior <= 100:
            raise UserError(f"{path}: the speed prior of {voice} is {prior}, it must be from 0.01 to 100")
    graph, voices = (path.parent / _file_name(path, config, key) for key in ("model_file", "voices"))
    return KittenModel(path.parent, str(config.get("name") or path.parent.name), graph, voices, priors,
                       _mapping(path, config, "voice_aliases", str))


def _file_name(path: Path, config: dict[str, Any], key: str) -> str:
    """A file in the folder of config.json."""
    name = config.get(key)
    if not isinstance(name, str) or not name or PurePath(name).name != name or "\\" in name:
        raise UserError(f"{path}: {key} must be the name of a file in its folder, got {name!r}")
    return name


def _mapping(path: Path, config: dict[str, Any], key: str, kind: type | tuple[type, ...]) -> dict[str, Any]:
    """An optional object of config.json whose values are of one kind."""
    values = config.get(key) or {}
    if not isinstance(values, dict) or any(
            not isinstance(value, kind) or isinstance(value, bool) for value in values.values()):
        raise UserError(f"{path}: {key} must map voices to {'names' if kind is str else 'numbers'}")
    return values


def is_kitten_folder(folder: Path) -> bool:
    """Whether a folder has a config.json that names the files of a KittenTTS model."""
    with suppress(UserError):
        config = read_json(folder / CONFIG_FILE)
        return isinstance(config, dict) and {"type", "model_file", "voices"} <= set(config)
    return False


class KittenFamily(StyleFamily):
    name, title = "kitten", "KittenTTS"
    settings = KittenSettings
    repositories = f"^{OWNER}/"

    def recognises(self, path: Path) -> bool:
        return is_kitten_folder(path)

    def open_checkpoints(self, path: Path) -> KittenModel:     # type: ignore[override]
        return read_model_files(path)

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        """Of the three files, which config.json names."""
        get = partial(download_files, repository, kind=self.title, progress=progress)
        config = get((CONFIG_FILE,), revision=revision)
        return get(tuple(read_config(config.directory / CONFIG_FILE).files), revision=config.revision)


FAMILY = KittenFamily()
