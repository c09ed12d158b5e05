"""What Tortoise declares to bundles, backends and commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.bundles.family import ModelFamily
from ane.bundles.model import Model
from ane.models.tortoise.checkpoints import MEL_NORMS, REQUIRED, CheckpointDirectory, source_files
from ane.models.tortoise.config_checks import check_config, check_value
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.stages import TORTOISE_STAGES

if TYPE_CHECKING:       # the synthesizer imports libraries for sound, which conversions do not need
    from ane.backends.base import Backend
    from ane.models.tortoise.synthesizer import Synthesizer


class TortoiseFamily(ModelFamily):
    name, title = "tortoise", "Tortoise"
    networks, stages, settings = NETWORKS, TORTOISE_STAGES, Settings
    speaks_voices = presets = True
    import_options = frozenset(("config", "precision"))
    data = frozenset(("tokenizer", "mel_norms"))
    package_formats = frozenset(("coreml", "onnx"))
    required_files, extra_files = REQUIRED, ("tokenizer.json", MEL_NORMS)
    repository = "Manmay/tortoise-tts"      # upstream's default; jbetker/tortoise-tts-v2 lacks hifidecoder.pth

    def synthesizer(self, model: Model, backend: "Backend") -> "Synthesizer":
        from ane.models.tortoise.synthesizer import Synthesizer

        return Synthesizer(model, backend)

    def is_random(self, model: Model) -> bool:
        return True

    def voice_widths(self, model: Model) -> tuple[int, int]:
        """The decoder's D, and the diffusion decoder's C = 2 × its channels."""
        return model.config("autoregressive").model_dim, 2 * model.config("diffusion").model_channels

    def recognises(self, path: Path) -> bool:
        return path.is_dir() and any(path.glob("*.pth"))

    def open_checkpoints(self, path: Path, arguments: Mapping[str, Any] | None, origin: str, **options: Any) -> Model:
        return CheckpointDirectory(path, arguments, origin)

    def source_files(self, path: Path, **options: Any) -> Mapping[str, Path]:
        return source_files(path)

    check_value, check_config = staticmethod(check_value), staticmethod(check_config)


FAMILY = TortoiseFamily()
