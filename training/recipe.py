"""Define what is trained: the networks' configurations, the tokenizer, and the recipe.

The recipe has the voices and the schedule of each part of the training. It is read from TOML files.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ane.bundles import demo_bundle
from ane.bundles.family import Config
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.networks.clvp import CLVPConfig
from ane.models.tortoise.networks.conditioning import (
    ConditioningEncoderConfig,
    ContextualEmbedderConfig,
    RandomLatentConverterConfig,
)
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig
from ane.models.tortoise.networks.hifigan import HifiganConfig
from ane.models.tortoise.networks.univnet import UnivNetConfig
from ane.models.vocoders.convnext import SourceFilterConfig
from ane.system.errors import UserError
from training.speech import STAND_IN
from training.trainer import PartSchedule

Made = TypeVar("Made")

CHARACTERS = " abcdefghijklmnopqrstuvwxyz',.?!;:-"
SPECIAL = ("[STOP]", "[UNK]", "[SPACE]")
TOKENS = len(SPECIAL) + len(CHARACTERS) - 1  # the first of CHARACTERS is the token [SPACE], which SPECIAL counts
ENTRIES = 1023  # number of entries in the quantiser's codebook
CALM_TOKEN = ENTRIES  # code for the silence after the end, which is not in the codebook
D, C, HEADS = 192, 80, 4  # width of the autoregressive decoder, width of the diffusion decoder, heads of both

# All networks together have 16 MB in fp16. Nearly half of this is the autoregressive decoder, because later networks
# cannot correct its errors
CONFIGS: dict[str, Config] = {
    "autoregressive": UnifiedVoiceConfig(
        layers=7,
        model_dim=D,
        heads=HEADS,
        max_text_tokens=134,
        max_mel_tokens=261,
        number_text_tokens=TOKENS,
        start_text_token=TOKENS,
        stop_text_token=0,
        number_mel_codes=ENTRIES + 3,
        start_mel_token=ENTRIES + 1,
        stop_mel_token=ENTRIES + 2,
        calm_token=CALM_TOKEN,
        calm_run=3,
        tail_tokens=(CALM_TOKEN,) * 3,
    ),
    "conditioning_encoder": ConditioningEncoderConfig(model_dim=D, heads=HEADS),
    "diffusion": DiffusionConfig(
        model_channels=C, num_layers=4, in_latent_channels=D, in_tokens=ENTRIES + 2, num_heads=HEADS, prediction="x0"
    ),
    "contextual_embedder": ContextualEmbedderConfig(model_channels=C, num_heads=HEADS),
    "clvp": CLVPConfig(
        dim_text=64,
        dim_speech=64,
        dim_latent=64,
        num_text_tokens=TOKENS + 1,
        text_enc_depth=3,
        text_heads=2,
        num_speech_tokens=ENTRIES + 1,
        speech_enc_depth=3,
        speech_heads=2,
    ),
    "univnet": UnivNetConfig(channel_size=16, kpnet_conv_size=1, kpnet_hidden_channels=32),
    "hifigan": HifiganConfig(
        in_channels=D,
        cond_channels=D,
        upsample_initial_channel=96,
        resblock_kernel_sizes=(3, 7),
        resblock_dilation_sizes=((1, 3, 5), (1, 3, 5)),
    ),
    "source_filter": SourceFilterConfig(channels=D, inner=448),
    "mel_source_filter": SourceFilterConfig(channels=100, width=160, inner=384, layers=4),
    "rlg_auto": RandomLatentConverterConfig(channels=D),
    "rlg_diffuser": RandomLatentConverterConfig(channels=2 * C),
}

# Settings that differ from upstream's settings, and their reasons:
# - repetition_penalty: this model repeats codes often, so a penalty would exclude correct codes.
# - max_codes, split: the model was trained on clips of at most a few sentences.
# - silence: codes close to silence often follow the last word.
# - codes_per_word: after a single word, the model may invent more words.
# - preset: ranking makes no audible difference, and speech sounds better without diffusion.
SETTINGS = {
    "sampling": {"temperature": 0.45, "repetition_penalty": 1.0, "max_codes": 260},
    "split": [80, 125],
    "silence": [0.1, 0.25],
    "codes_per_word": 25,
    "preset": "fastest",
}

CONFIG = Path(__file__).parent / "config"  # recipe of the Tortoise in ane/demo: one file per part, and speech.toml
TRAINED_PARTS = (  # the networks to train, in this order
    "quantiser",
    "autoregressive",
    "hifigan",
    "univnet",
    "source_filter",
    "mel_source_filter",
    "diffusion",
    "clvp",
    "conditioning_encoder",
    "contextual_embedder",
    "rlg_auto",
    "rlg_diffuser",
)


class TaughtVoice(BaseModel):
    """A voice to train: the name of the teacher that speaks for it (``speech.teacher_of``), and the hours of speech."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    teacher: str
    hours: Annotated[float, Field(gt=0)]


class Recipe(BaseModel):
    """The configuration of a training run. ``config/speech.toml`` explains the fields.

    The decoder is not trained on the share ``held_back`` of the speech. The networks that take the decoder's latents
    are trained only on this share. ``parts`` has the schedule of each of ``TRAINED_PARTS``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    voices: dict[str, TaughtVoice]
    shard_clips: Annotated[int, Field(gt=0)]
    held_back: Annotated[float, Field(gt=0, le=0.5)]
    quantiser_hours: float
    seed: int
    precision: Literal["fp32", "fp16", "bf16"]
    parts: dict[str, PartSchedule]

    def tiny(self, steps: int) -> "Recipe":
        """Return a recipe to try the training: ``steps`` steps per part, on a few short clips of tones.

        A step takes a quarter of the examples that a step of the whole training takes.
        """
        voices = {name: TaughtVoice(teacher=STAND_IN, hours=0.01) for name in self.voices}
        parts = {
            name: part.model_copy(update={"steps": (steps,), "warmup": 0, "batch": max(part.batch // 4, 2)})
            for name, part in self.parts.items()
        }
        return self.model_copy(update={"voices": voices, "shard_clips": 3, "held_back": 0.5, "parts": parts})


def load_recipe(folder: Path = CONFIG) -> Recipe:
    """Read a recipe from a folder with speech.toml and one file for each of ``TRAINED_PARTS``.

    Raises:
        UserError: A file is missing or is not TOML, or a field is missing, unknown or wrong.
    """

    def read(name: str, make: Callable[..., Made], **more: Any) -> Made:
        path = folder / f"{name}.toml"
        try:
            return make(**tomllib.loads(path.read_text(encoding="utf-8")), **more)
        except (OSError, ValueError, TypeError) as error:
            reason = error
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise UserError(f"cannot read {path} as a part of a training recipe: {reason}") from error

    return read("speech", Recipe, parts={name: read(name, PartSchedule) for name in TRAINED_PARTS})


def tokenizer_json() -> str:
    """Return tokenizer.json of the bundle `demo`. It makes one token per character, and drops unknown characters."""
    return (demo_bundle() / "tokenizer.json").read_text(encoding="utf-8")
