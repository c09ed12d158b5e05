"""What Kokoro declares to bundles and commands."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.models.kokoro.model_files import DEFAULT_VOICE, KokoroModel, find_model, graphs_in, voices_in
from ane.models.kokoro.settings import KokoroSettings
from ane.models.styletts.bundle import StyleFamily
from ane.models.styletts.graph import StyleBackend

if TYPE_CHECKING:       # the synthesizer imports libraries for sound
    from ane.models.kokoro.synthesizer import KokoroSynthesizer

VOICES = """alloy aoede bella heart jessica kore nicole nova river sarah sky
            adam echo eric fenrir liam michael onyx puck santa  alice emma isabella lily  daniel fable george lewis"""
GROUPS = ("af", 11), ("am", 9), ("bf", 4), ("bm", 4)     # American and British, female and male; how many of VOICES


class KokoroFamily(StyleFamily):
    name, title = "kokoro", "Kokoro"
    settings = KokoroSettings
    import_options = frozenset(("voices",))
    required_files = ("onnx/model.onnx", f"voices/{DEFAULT_VOICE}.bin")
    repository, repositories = "onnx-community/Kokoro-82M-v1.0-ONNX", "kokoro"

    def __init__(self) -> None:
        groups = [group for group, count in GROUPS for _ in range(count)]
        named = [f"{group}_{name}" for group, name in zip(groups, VOICES.split(), strict=True)]
        self.extra_files = (self.required_files[0], "tokenizer.json", *(f"voices/{voice}.bin" for voice in named))

    def synthesizer(self, model: KokoroModel, backend: StyleBackend) -> "KokoroSynthesizer":
        from ane.models.kokoro.synthesizer import KokoroSynthesizer

        return KokoroSynthesizer(model, backend)

    def recognises(self, path: Path) -> bool:
        if path.is_file():
            return path.suffix == ".onnx"
        return bool(graphs_in(path)) and any(voices_in(path))

    def read_folder(self, path: Path, **options: Any) -> KokoroModel:
        return find_model(path, options.get("voices"))


FAMILY = KokoroFamily()
