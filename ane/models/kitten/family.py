"""Declare KittenTTS to bundles and commands, and read a model's three files from a folder or the hub.

The files are config.json, an ONNX graph and the voices. The keys of config.json are ``type`` ("ONNX1" or "ONNX2"),
``model_file`` and ``voices`` (names of the other files), and optionally ``speed_priors`` {voice: factor},
``voice_aliases`` {name: voice} and ``name``. KittenTTS 0.8.1 reads them in kittentts/get_model.py.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from ane.bundles import Bundle
from ane.bundles.contents import Contents
from ane.bundles.hub import Snapshot, download_files
from ane.models.styletts.graph import CONFIG_FILE, StyleFamily
from ane.models.styletts.settings import KittenSettings
from ane.models.styletts.voices import KITTEN_DEFAULT, StyleVoices, read_tables
from ane.system.errors import UserError
from ane.system.files import read_json

TYPES = ("ONNX1", "ONNX2")
OWNER = "KittenML"  # owner of the hub repositories


def import_kitten(folder: Path) -> Contents:
    """Read the KittenTTS model in a folder. Raises UserError if a file is missing or damaged."""
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder with a KittenTTS model")
    files = files_named_by(folder / CONFIG_FILE)
    for file in files.values():
        if not os.path.isfile(file):
            raise UserError(f"{file} is missing: download the model again")
    read_voices(files["config"], files["voices"])
    FAMILY.check_graph(files["graph"], files["graph"])
    return Contents("kitten", folder, files={role: (file.name, file) for role, file in files.items()})


def read_config(path: Path) -> dict[str, Any]:
    """Read config.json. Raises UserError if it does not describe a KittenTTS model."""
    if not os.path.isfile(path):
        raise UserError(f"{path} is missing: a KittenTTS model has {CONFIG_FILE}, an .onnx file and an .npz file")
    config = read_json(path)
    if not isinstance(config, dict) or config.get("type") not in TYPES:
        kind = config.get("type") if isinstance(config, dict) else None
        raise UserError(f"{path} is not from a KittenTTS model: its type is {kind!r}, not {' or '.join(TYPES)}")
    return config


def files_named_by(path: Path) -> dict[str, Path]:
    """List config.json and the files that it names, by role ("graph", "voices"), even if the files do not exist.

    Raises:
        UserError: config.json is damaged.
    """
    config = read_config(path)
    return {
        "config": path,
        "graph": path.parent / _file_name(path, config, "model_file"),
        "voices": path.parent / _file_name(path, config, "voices"),
    }


def read_voices(path: Path, tables_path: Path) -> StyleVoices:
    """Read the voices, and their aliases and speeds from config.json. Raises UserError if a file is damaged."""
    config = read_config(path)
    priors = _mapping(path, config, "speed_priors", (int, float))
    for voice, prior in priors.items():
        if not 0.01 <= prior <= 100:
            raise UserError(f"{path}: the speed prior of {voice} must be from 0.01 to 100, got {prior}")
    tables, aliases = read_tables(tables_path), _mapping(path, config, "voice_aliases", str)
    for alias, name in aliases.items():
        if name not in tables:
            raise UserError(f"{tables_path} has no voice {name}, which the alias {alias} of config.json names")
    return StyleVoices(tables, KITTEN_DEFAULT, aliases, priors)


def _file_name(path: Path, config: dict[str, Any], key: str) -> str:
    """Return the file name that config.json has under ``key``. Raises UserError if it contains a folder."""
    name = config.get(key)
    if not isinstance(name, str) or not name or PurePath(name).name != name or "\\" in name:
        raise UserError(f"{path}: {key} must be the name of a file in the same folder, got {name!r}")
    return name


def _mapping(path: Path, config: dict[str, Any], key: str, kind: type | tuple[type, ...]) -> dict[str, Any]:
    """Return an optional object of config.json. Raises UserError if a value in it does not have the type ``kind``."""
    values = config.get(key) or {}
    if not isinstance(values, dict) or any(
        not isinstance(value, kind) or isinstance(value, bool) for value in values.values()
    ):
        raise UserError(f"{path}: {key} must map voices to {'names' if kind is str else 'numbers'}")
    return values


def is_kitten_folder(folder: Path) -> bool:
    """Return whether a folder has a config.json that names the files of a KittenTTS model."""
    with suppress(UserError):
        config = read_json(folder / CONFIG_FILE)
        return isinstance(config, dict) and {"type", "model_file", "voices"} <= set(config)
    return False


class KittenFamily(StyleFamily):
    name, title = "kitten", "KittenTTS"
    settings = KittenSettings
    repositories, extra = f"^{OWNER}/", "kitten"
    recognises, import_checkpoints = staticmethod(is_kitten_folder), staticmethod(import_kitten)  # type: ignore[assignment]

    def source_files(self, path: Path) -> dict[str, Path]:  # type: ignore[override]
        return {file.name: file for file in files_named_by(path / CONFIG_FILE).values()}

    def voices(self, model: Bundle) -> StyleVoices:
        return read_voices(model.file("config"), model.file("voices"))

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        """Download config.json and the two files that it names."""
        get = partial(download_files, repository, kind=self.title, progress=progress)
        config = get((CONFIG_FILE,), revision=revision)
        return get(
            tuple(file.name for file in files_named_by(config.directory / CONFIG_FILE).values()),
            revision=config.revision,
        )


FAMILY = KittenFamily()
