"""What KittenTTS declares to bundles and commands."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ane.bundles.hub import Snapshot
from ane.models.kitten.model_files import OWNER, KittenModel, download_model, is_kitten_folder, read_model_files
from ane.models.kitten.settings import KittenSettings
from ane.models.styletts.bundle import StyleFamily

if TYPE_CHECKING:       # the synthesizer imports libraries for sound
    from ane.backends.base import Backend
    from ane.models.kitten.synthesizer import KittenSynthesizer


class KittenFamily(StyleFamily):
    name, title = "kitten", "KittenTTS"
    settings = KittenSettings
    repositories = f"^{OWNER}/"

    def synthesizer(self, model: KittenModel, backend: "Backend") -> "KittenSynthesizer":
        from ane.models.kitten.synthesizer import KittenSynthesizer

        return KittenSynthesizer(model, backend)

    def recognises(self, path: Path) -> bool:
        return is_kitten_folder(path)

    def open_checkpoints(self, path: Path) -> KittenModel:     # type: ignore[override]
        return read_model_files(path)

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        return download_model(repository, revision, progress)


FAMILY = KittenFamily()
