"""What FastSpeech declares to bundles, backends and commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.bundles.family import ModelFamily
from ane.bundles.model import Model
from ane.models.fastspeech.checkpoints import FastSpeechCheckpoint, is_fastspeech, source_files
from ane.models.fastspeech.networks import NETWORKS
from ane.models.fastspeech.settings import FastSpeechSettings
from ane.models.fastspeech.stages import FASTSPEECH_STAGES

if TYPE_CHECKING:       # the synthesizer imports libraries for sound, which conversions do not need
    from ane.backends.base import Backend
    from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer


class FastSpeechFamily(ModelFamily):
    name, title = "fastspeech", "FastSpeech"
    networks, stages, settings = NETWORKS, FASTSPEECH_STAGES, FastSpeechSettings

    def synthesizer(self, model: Model, backend: "Backend") -> "FastSpeechSynthesizer":
        from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer

        return FastSpeechSynthesizer(model, backend)

    def recognises(self, path: Path) -> bool:
        return path.suffix not in (".onnx", ".safetensors") and is_fastspeech(path)

    def open_checkpoints(self, path: Path, config: Mapping[str, Any] | None = None, where: str = "",
                         vocoder: Path | None = None) -> Model:
        return FastSpeechCheckpoint(path, config, where, vocoder)

    def source_files(self, path: Path, vocoder: Path | None = None) -> Mapping[str, Path]:
        return source_files(path, vocoder)


FAMILY = FastSpeechFamily()
