"""What FastSpeech declares to bundles, backends and commands."""

from typing import TYPE_CHECKING

from ane.bundles.family import ModelFamily
from ane.bundles.model import Model
from ane.models.fastspeech.checkpoints import FastSpeechCheckpoint, is_fastspeech, source_files
from ane.models.fastspeech.config_checks import check_config, check_value
from ane.models.fastspeech.networks import NETWORKS
from ane.models.fastspeech.settings import OPTIONS, read_options
from ane.models.fastspeech.stages import FASTSPEECH_STAGES

if TYPE_CHECKING:       # the synthesizer imports libraries for sound, which conversions do not need
    from ane.backends.base import Backend
    from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer


def make_synthesizer(model: Model, backend: "Backend") -> "FastSpeechSynthesizer":
    from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer

    return FastSpeechSynthesizer(model, backend)


FAMILY = ModelFamily(
    "fastspeech", "FastSpeech", NETWORKS, FASTSPEECH_STAGES, check_value, check_config, FastSpeechCheckpoint,
    make_synthesizer, read_options, OPTIONS, source_files, is_fastspeech,
    import_options=frozenset(("config", "precision", "vocoder")),
    package_formats=frozenset(("coreml", "onnx")), kept=True)
