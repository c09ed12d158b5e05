"""What Tortoise declares to bundles, backends and commands."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ane.bundles.family import ModelFamily
from ane.bundles.hub import Snapshot, download_files
from ane.bundles.model import Model
from ane.bundles.opening import open_model
from ane.models.tortoise.checkpoint_files import REQUIRED, official_names
from ane.models.tortoise.checkpoints import FILES, CheckpointDirectory, source_files
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.stages import TORTOISE_STAGES
from ane.system.errors import UserError

if TYPE_CHECKING:       # the synthesizer imports libraries for sound, which conversions do not need
    from ane.backends.base import Backend
    from ane.models.tortoise.synthesizer import Synthesizer


class TortoiseFamily(ModelFamily):
    name, title = "tortoise", "Tortoise"
    networks, stages, settings = NETWORKS, TORTOISE_STAGES, Settings
    data = frozenset(("tokenizer", "mel_norms"))

    def synthesizer(self, model: Model, backend: "Backend") -> "Synthesizer":
        from ane.models.tortoise.synthesizer import Synthesizer

        return Synthesizer(model, backend)

    def recognises(self, path: Path) -> bool:
        if path.is_dir():
            return any(path.glob("*.pth")) or any(path.glob("models/*.pth"))
        return path.suffix in (".pth", ".safetensors") and bool(official_names(path))

    def open_checkpoints(self, path: Path, config: Mapping[str, Any] | None = None, where: str = "",
                         base: str | None = None, vocoder: Path | None = None) -> Model:
        return CheckpointDirectory(path, config, where, base_model(base), vocoder)

    def source_files(self, path: Path, base: str | None = None, vocoder: Path | None = None) -> Mapping[str, Path]:
        return source_files(path, base_model(base), vocoder)

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        owner, name, *parts = repository.split("/")
        get = partial(download_files, f"{owner}/{name}", revision=revision, kind=self.title, progress=progress)
        if not parts:
            return get(REQUIRED, FILES)
        file = PurePosixPath(*parts)
        found = get((str(file),), (str(file), str(file.with_name("tokenizer.json"))))
        return replace(found, directory=found.directory / file)


def base_model(base: str | None) -> Model | None:
    """What a checkpoint is completed from: a bundle, or a directory of checkpoints. Raises UserError."""
    if base is None:
        return None
    directory = Path(base).is_dir() and not (Path(base) / "bundle.json").is_file()
    model = open_model(checkpoints=base) if directory else open_model(bundle=base)
    if model.family.name != TortoiseFamily.name:
        raise UserError(f"{base} is a {model.family.title} model; the networks must be Tortoise's", "base")
    return model


FAMILY = TortoiseFamily()
