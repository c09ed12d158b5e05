"""What KittenTTS declares to bundles, and its bundles. It has no PyTorch networks: its graph is an ONNX file.

    bundle.json     format, model ("kitten"), name, licence, source, created_by, and files: role → file, sha256, bytes
    config.json     as published
    *.onnx, *.npz   the graph and the voices, under the names in config.json
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.bundles.family import ModelFamily
from ane.bundles.hashes import FileRecord, check_hash, record
from ane.bundles.hub import Snapshot
from ane.bundles.manifest import DAMAGED, FORMAT, MANIFEST_FILE, bundle_family, read_content
from ane.models.kitten.model_files import (
    CONFIG_FILE,
    OWNER,
    KittenModel,
    download_model,
    is_kitten_folder,
    read_model_files,
)
from ane.models.kitten.session import KittenBackend
from ane.models.kitten.settings import KittenSettings
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.records import read_record
from ane.system.version import version

if TYPE_CHECKING:       # the synthesizer imports libraries for sound
    from ane.models.kitten.synthesizer import KittenSynthesizer

NAME = "kitten"


@dataclass(frozen=True)
class KittenFiles:
    """The files of a bundle, by role."""

    config: FileRecord
    graph: FileRecord
    voices: FileRecord


@dataclass(frozen=True)
class KittenManifest:
    """What bundle.json of this family must state."""

    name: str
    files: KittenFiles


def open_bundle(folder: Path) -> KittenModel:
    """The files of a bundle, each compared with its SHA-256.

    Raises:
        UserError: no bundle there, a bundle of another family, or a file that is missing, damaged or not recorded.
    """
    where = str(folder / MANIFEST_FILE)
    family = bundle_family(folder)
    if family != NAME:
        raise UserError(f"{folder} is a bundle of {family}, not of KittenTTS")
    manifest = read_record(KittenManifest, read_content(folder), where, DAMAGED)
    records = list(vars(manifest.files).values())
    for item in records:
        check_hash(folder, item)
    found = dataclasses.replace(read_model_files(folder), name=manifest.name)
    if [item.file for item in records] != [file.name for file in found.files]:
        raise UserError(f"{where} and {CONFIG_FILE} name different files: import the model again")
    return found


def write_bundle(model: KittenModel, destination: Path | str, *, name: str | None = None, licence: str = "",
                 source: Mapping[str, Any] | None = None, overwrite: bool = False) -> KittenModel:
    """Copy a model into a bundle, which appears at ``destination`` complete or not at all.

    ``source`` states where the files came from. Read the voices and open the graph before, to write no damaged model.

    Raises:
        UserError: the destination is taken or not writable.
    """
    from ane.bundles.bundle import check_destination  # imports torch

    destination = Path(destination)
    check_destination(destination, overwrite, model.folder)
    with replacing(destination, directory=True) as folder:
        for file in model.files:
            shutil.copyfile(file, folder / file.name)
        records = dataclasses.asdict(KittenFiles(*(record(folder, file.name) for file in model.files)))
        content = {"format": FORMAT, "model": NAME, "name": name or destination.name, "licence": licence,
                   "source": dict(source or {}), "created_by": f"tortoise-ane {version()}", "files": records}
        (folder / MANIFEST_FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return open_bundle(destination)


class KittenFamily(ModelFamily):
    name, title = NAME, "KittenTTS"
    settings = KittenSettings
    speaks_voices = True
    required_files = (CONFIG_FILE,)
    repository, repositories = "KittenML/kitten-tts-nano-0.8-fp32", f"^{OWNER}/"

    def synthesizer(self, model: KittenModel, backend: KittenBackend) -> "KittenSynthesizer":
        from ane.models.kitten.synthesizer import KittenSynthesizer

        return KittenSynthesizer(model, backend)

    def own_backend(self, model: KittenModel) -> KittenBackend:
        return KittenBackend(model)

    def voice_names(self, model: KittenModel) -> list[str]:
        return model.read_voices().names

    def recognises(self, path: Path) -> bool:
        return is_kitten_folder(path)

    def open_bundle(self, folder: Path) -> KittenModel:
        return open_bundle(folder)

    def open_checkpoints(self, path: Path, arguments: Mapping[str, Any] | None, origin: str,
                         **options: Any) -> KittenModel:
        """The model in a folder as published. Raises UserError for ``arguments``: it states its own sizes."""
        if arguments:
            raise UserError(f"{origin}: a KittenTTS model states its own sizes: leave the config out")
        return read_model_files(path)

    def source_files(self, path: Path, **options: Any) -> dict[str, Path]:
        return {file.name: file for file in read_model_files(path).files}

    def write_bundle(self, model: KittenModel, destination: Path, **options: Any) -> KittenModel:
        return write_bundle(model, destination, **options)

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        return download_model(repository, revision, progress)


FAMILY = KittenFamily()
