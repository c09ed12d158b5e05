"""What FastSpeech declares to bundles, backends and commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.bundles.family import ModelFamily
from ane.bundles.model import Model
from ane.models.fastspeech.checkpoints import FastSpeechCheckpoint, is_fastspeech, source_files
from ane.models.fastspeech.config_checks import check_config, check_value
from ane.models.fastspeech.networks import NETWORKS
from ane.models.fastspeech.settings import FastSpeechSettings
from ane.models.fastspeech.stages import FASTSPEECH_STAGES
from ane.system.errors import UserError

if TYPE_CHECKING:       # the synthesizer imports libraries for sound, which conversions do not need
    from ane.backends.base import Backend
    from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer


class FastSpeechFamily(ModelFamily):
    name, title = "fastspeech", "FastSpeech"
    networks, stages, settings = NETWORKS, FASTSPEECH_STAGES, FastSpeechSettings
    kept = True
    import_options = frozenset(("config", "precision", "vocoder"))
    package_formats = frozenset(("coreml", "onnx"))

    def synthesizer(self, model: Model, backend: "Backend") -> "FastSpeechSynthesizer":
        from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer

        return FastSpeechSynthesizer(model, backend)

    def is_random(self, model: Model) -> bool:
        return "waveglow" in model.networks

    def check_option(self, model: Model, name: str) -> None:
        if name == "seed" and not self.is_random(model):
            raise UserError(f"seed has no effect on {model.name}: only a WaveGlow vocoder draws random numbers, and it "
                            "has none; leave it out", "seed")
        super().check_option(model, name)

    def recognises(self, path: Path) -> bool:
        return path.suffix != ".onnx" and is_fastspeech(path)

    def open_checkpoints(self, path: Path, arguments: Mapping[str, Any] | None, origin: str, **options: Any) -> Model:
        return FastSpeechCheckpoint(path, arguments, origin, **options)

    def source_files(self, path: Path, **options: Any) -> Mapping[str, Path]:
        return source_files(path, **options)

    check_value, check_config = staticmethod(check_value), staticmethod(check_config)


FAMILY = FastSpeechFamily()
