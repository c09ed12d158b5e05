"""What Tortoise declares to bundles, backends and commands."""

from pathlib import Path
from typing import TYPE_CHECKING

from ane.bundles.family import ModelFamily
from ane.bundles.model import Model
from ane.models.tortoise.checkpoints import MEL_NORMS, REQUIRED, CheckpointDirectory, source_files
from ane.models.tortoise.config_checks import check_config, check_value
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.options import OPTIONS, read_options
from ane.models.tortoise.stages import TORTOISE_STAGES

if TYPE_CHECKING:       # the synthesizer imports libraries for sound, which conversions do not need
    from ane.backends.base import Backend
    from ane.models.tortoise.synthesizer import Synthesizer


def voice_widths(model: Model) -> tuple[int, int]:
    """The decoder's D, and the diffusion decoder's C = 2 × its channels."""
    return model.config("autoregressive").model_dim, 2 * model.config("diffusion").model_channels


def has_pth_files(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.pth"))


def make_synthesizer(model: Model, backend: "Backend") -> "Synthesizer":
    from ane.models.tortoise.synthesizer import Synthesizer

    return Synthesizer(model, backend)


FAMILY = ModelFamily(
    "tortoise", "Tortoise", NETWORKS, TORTOISE_STAGES, check_value, check_config, CheckpointDirectory,
    make_synthesizer, read_options, OPTIONS, source_files, recognises=has_pth_files,
    import_options=frozenset(("config", "precision")), speak_arguments=("voice", "seed", "speed", "word_times"),
    data=frozenset(("tokenizer", "mel_norms")), voice_widths=voice_widths, required_files=REQUIRED,
    extra_files=("tokenizer.json", MEL_NORMS), package_formats=frozenset(("coreml", "onnx")),
    repository="Manmay/tortoise-tts")       # upstream's default; jbetker/tortoise-tts-v2 lacks hifidecoder.pth
