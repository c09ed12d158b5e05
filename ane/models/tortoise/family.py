"""What Tortoise declares to bundles, backends and commands."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.bundles.family import ModelFamily
from ane.bundles.hub import Snapshot, download_files
from ane.bundles.model import Model
from ane.models.tortoise.checkpoints import FILES, REQUIRED, CheckpointDirectory, source_files
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.stages import TORTOISE_STAGES

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
        return path.is_dir() and any(path.glob("*.pth"))

    def open_checkpoints(self, path: Path, config: Mapping[str, Any] | None = None, where: str = "") -> Model:
        return CheckpointDirectory(path, config, where)

    def source_files(self, path: Path) -> Mapping[str, Path]:
        return source_files(path)

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        return download_files(repository, REQUIRED, FILES, revision=revision, kind=self.title, progress=progress)


FAMILY = TortoiseFamily()
