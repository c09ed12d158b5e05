"""What Tortoise declares to bundles and backends."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ane.bundles.family import ModelFamily
from ane.bundles.model import Model
from ane.models.tortoise.checkpoints import MEL_NORMS, REQUIRED, CheckpointDirectory
from ane.models.tortoise.config_checks import check_config, check_value
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.stages import TORTOISE_STAGES


def voice_widths(model: Model) -> tuple[int, int]:
    """The decoder's D, and the diffusion decoder's C = 2 × its channels."""
    return model.config("autoregressive").model_dim, 2 * model.config("diffusion").model_channels


def open_checkpoints(directory: Path, arguments: Mapping[str, Any] | None, origin: str) -> CheckpointDirectory:
    """Open a directory of official .pth files and compare every key and shape with the config."""
    model = CheckpointDirectory(directory, arguments, origin)
    model.check()
    return model


FAMILY = ModelFamily(
    "tortoise", NETWORKS, TORTOISE_STAGES, check_value, check_config, voice_widths, open_checkpoints,
    required_files=REQUIRED, extra_files=("tokenizer.json", MEL_NORMS),
    repository="Manmay/tortoise-tts")       # upstream's default; jbetker/tortoise-tts-v2 lacks hifidecoder.pth
