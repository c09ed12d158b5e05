"""What is trained for the fast voice: its two networks, and the recipe read from a TOML file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ane.bundles.family import Config
from ane.models.fastspeech.networks.acoustic import FastSpeechConfig
from ane.models.vocoders.hifigan import MelHifiganConfig
from training.recipe import FOLDER, read_recipe
from training.trainer import PartSchedule

FAST_VOICE = FOLDER / "fast_voice.toml"     # of the bundle demo-fast
FAST_PARTS = ("fastspeech", "vocoder")

# 7.4 MB of fp16 in all. The vocoder does most of the work of a second of speech, 0.45 billion multiplications, so its
# rates are those that need fewest: each of its four levels costs the same.
FAST_CONFIGS: Mapping[str, Config] = {
    # as many positions as the longest texts that it is trained on; longer chunks are split
    "fastspeech": FastSpeechConfig(
        max_seq_len=1536, d_model=192, phoneme_side_n_layer=3, phoneme_side_conv1d_filter_size=320, mel_side_n_layer=3,
        mel_side_conv1d_filter_size=256, duration_predictor_filter_size=128),
    "vocoder": MelHifiganConfig(
        resblock="2", upsample_rates=(4, 4, 4, 4), upsample_kernel_sizes=(8, 8, 8, 8), upsample_initial_channel=256,
        resblock_kernel_sizes=(3, 7), resblock_dilation_sizes=((1, 2), (3, 12))),
}


@dataclass(frozen=True)
class FastRecipe:
    """The configuration of a training run of the fast voice.

    Attributes:
        voice: of CMU Flite. hours: of its speech. vocoder_hours: of that, what the vocoder is trained on.
        crops: in a vocoder's batch. precision: of the bundle's weights.
        predicted_from: the step of the vocoder from which its mels are those that FastSpeech predicts.
        parts: the schedule of each of ``FAST_PARTS``.
    """

    voice: str
    hours: float
    vocoder_hours: float
    seed: int
    crops: int
    precision: str
    predicted_from: int
    parts: dict[str, PartSchedule]


def load_fast_recipe(path: Path = FAST_VOICE) -> FastRecipe:
    """Read a recipe. Raises UserError: see ``read_recipe``."""
    def make(values: dict[str, Any], parts: dict[str, PartSchedule]) -> FastRecipe:
        values.pop("family")
        return FastRecipe(**values, parts=parts)

    return read_recipe(path, make, FAST_PARTS)
