"""What Kokoro declares to bundles and commands."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ane.bundles.hub import Snapshot, download_files
from ane.models.kokoro.model_files import DEFAULT_VOICE, KokoroModel, find_model, graphs_in, voices_in
from ane.models.kokoro.settings import KokoroSettings
from ane.models.styletts.bundle import StyleFamily

if TYPE_CHECKING:       # the synthesizer imports libraries for sound
    from ane.backends.base import Backend
    from ane.models.kokoro.synthesizer import KokoroSynthesizer

VOICES = """alloy aoede bella heart jessica kore nicole nova river sarah sky
            adam echo eric fenrir liam michael onyx puck santa  alice emma isabella lily  daniel fable george lewis"""
GROUPS = ("af", 11), ("am", 9), ("bf", 4), ("bm", 4)     # American and British, female and male; how many of VOICES
REQUIRED = "onnx/model.onnx", f"voices/{DEFAULT_VOICE}.bin"         # of a repository


class KokoroFamily(StyleFamily):
    name, title = "kokoro", "Kokoro"
    settings = KokoroSettings
    repositories = "kokoro"

    def synthesizer(self, model: KokoroModel, backend: "Backend") -> "KokoroSynthesizer":
        from ane.models.kokoro.synthesizer import KokoroSynthesizer

        return KokoroSynthesizer(model, backend)

    def recognises(self, path: Path) -> bool:
        if path.is_file():
            return path.suffix == ".onnx"
        return bool(graphs_in(path)) and any(voices_in(path))

    def open_checkpoints(self, path: Path, voices: Path | None = None) -> KokoroModel:     # type: ignore[override]
        return find_model(path, voices)

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        groups = [group for group, count in GROUPS for _ in range(count)]
        voices = [f"voices/{group}_{name}.bin" for group, name in zip(groups, VOICES.split(), strict=True)]
        return download_files(repository, REQUIRED, (REQUIRED[0], "tokenizer.json", *voices), revision=revision,
                              kind=self.title, progress=progress)


FAMILY = KokoroFamily()
