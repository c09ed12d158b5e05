"""What is trained: the networks' configurations, the tokenizer, and the recipe read from a TOML file."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ane.bundles.family import DEFAULT_FAMILY, Config
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
from ane.system.errors import UserError
from training.trainer import PartSchedule

Made = TypeVar("Made")

CHARACTERS = " abcdefghijklmnopqrstuvwxyz',.?!;:-"
SPECIAL = ("[STOP]", "[UNK]", "[SPACE]")
LETTER_TOKENS = range(len(SPECIAL), len(SPECIAL) + 26)  # a to z
TOKENS = len(SPECIAL) + len(CHARACTERS) - 1             # [SPACE] is also the first of CHARACTERS
ENTRIES = 1023                                          # of the quantiser's codebook
CALM_TOKEN = ENTRIES                                    # code of silence after the end, outside the codebook
D, C, HEADS = 192, 80, 4

# 16 MB of fp16 in all; nearly half for the autoregressive decoder, whose errors the later networks cannot correct
CONFIGS: dict[str, Config] = {
    "autoregressive": UnifiedVoiceConfig(
        layers=7, model_dim=D, heads=HEADS, max_text_tokens=134, max_mel_tokens=261, number_text_tokens=TOKENS,
        start_text_token=TOKENS, stop_text_token=0, number_mel_codes=ENTRIES + 3, start_mel_token=ENTRIES + 1,
        stop_mel_token=ENTRIES + 2, calm_token=CALM_TOKEN, calm_run=3, tail_tokens=(CALM_TOKEN,) * 3),
    "conditioning_encoder": ConditioningEncoderConfig(model_dim=D, heads=HEADS),
    "diffusion": DiffusionConfig(model_channels=C, num_layers=4, in_latent_channels=D, in_tokens=ENTRIES + 2,
                                 num_heads=HEADS, prediction="x0"),
    "contextual_embedder": ContextualEmbedderConfig(model_channels=C, num_heads=HEADS),
    "clvp": CLVPConfig(dim_text=64, dim_speech=64, dim_latent=64, num_text_tokens=TOKENS + 1, text_enc_depth=3,
                       text_heads=2, num_speech_tokens=ENTRIES + 1, speech_enc_depth=3, speech_heads=2),
    "univnet": UnivNetConfig(channel_size=16, kpnet_conv_size=1, kpnet_hidden_channels=32),
    "hifigan": HifiganConfig(in_channels=D, cond_channels=D, upsample_initial_channel=96, resblock_kernel_sizes=(3, 7),
                             resblock_dilation_sizes=((1, 3, 5), (1, 3, 5))),
    "rlg_auto": RandomLatentConverterConfig(channels=D),
    "rlg_diffuser": RandomLatentConverterConfig(channels=2 * C),
}

# settings that differ from upstream's: the embedded voice repeats codes often, so a repetition penalty would exclude
# correct codes; it was trained on clips of a few sentences at most; codes close to silence often follow the last word;
# ranking makes no audible difference, and HiFi-GAN sounds better than diffusion and UnivNet
SETTINGS = {"sampling": {"temperature": 0.6, "repetition_penalty": 1.0, "max_codes": 260}, "split": [80, 125],
            "silence": [0.1, 0.25], "preset": "fastest"}

FOLDER = Path(__file__).parent
EMBEDDED_VOICE = FOLDER / "embedded_voice.toml"     # of the bundle in ane/demo
# trained in this order
TRAINED_PARTS = ("quantiser", "autoregressive", "univnet", "hifigan", "diffusion", "listener", "clvp",
                 "conditioning_encoder", "contextual_embedder", "rlg_auto", "rlg_diffuser")


@dataclass(frozen=True)
class EarlierVoice:
    """A voice whose weights the networks start from.

    Attributes:
        bundle: name or folder of its bundle. commit: the commit of this repository that holds ``bundle``, if the
            bundle is in its history. identity: ``Bundle.identity`` that it must have; empty: any.
    """

    bundle: str
    commit: str = ""
    identity: str = ""


@dataclass(frozen=True)
class Recipe:
    """The configuration of a training run.

    Attributes:
        voices: of CMU Flite. hours: of speech, all voices together.
        held_back: share of the speech that the autoregressive decoder is not trained on; the networks that take its
            latents are trained on that share alone.
        quantiser_hours: of speech that the quantiser is trained on.
        crops: in a vocoder's batch. precision: of the bundle's weights.
        parts: the schedule of each of ``TRAINED_PARTS``.
        earlier_voice: None: every network starts from random weights.
    """

    voices: tuple[str, ...]
    hours: float
    held_back: float
    quantiser_hours: float
    seed: int
    crops: int
    precision: str
    parts: dict[str, PartSchedule]
    earlier_voice: EarlierVoice | None = None


def load_recipe(path: Path = EMBEDDED_VOICE) -> Recipe:
    """Read a recipe.

    Raises:
        UserError: the file is missing, is not TOML, or its keys are not those of ``Recipe``.
    """
    def make(values: dict[str, Any], parts: dict[str, PartSchedule]) -> Recipe:
        earlier = values.pop("earlier_voice", None)
        return Recipe(**tuples(values), parts=parts, earlier_voice=earlier and EarlierVoice(**earlier))

    return read_recipe(path, make, TRAINED_PARTS)


def read_recipe(path: Path, make: Callable[[dict[str, Any], dict[str, PartSchedule]], Made],
                trained_parts: Sequence[str]) -> Made:
    """``make(values, schedules of the parts)`` of a recipe's file.

    Raises:
        UserError: the file is missing, is not TOML, or its keys are not those that ``make`` takes.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        parts = {name: PartSchedule(**tuples(part)) for name, part in values.pop("parts").items()}
        recipe = make(values, parts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a training recipe: {error}") from error
    if set(parts) != set(trained_parts):
        raise UserError(f"{path}: [parts] must hold {', '.join(trained_parts)}")
    for name, part in parts.items():
        if not part.steps or list(part.steps) != sorted(set(part.steps)) or part.steps[0] < 1:
            raise UserError(f"{path}: steps of {name} must be positive and ascending, got {list(part.steps)}")
    return recipe


def family_of(path: Path) -> str:
    """The family of the model that a recipe is for: "tortoise" unless it names another. Raises no error."""
    try:
        return str(tomllib.loads(path.read_text(encoding="utf-8")).get("family", DEFAULT_FAMILY))
    except (OSError, ValueError):
        return DEFAULT_FAMILY


def tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def tokenizer_json() -> str:
    """A tokenizer with one token for each character; it drops characters without a token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    letters = [*SPECIAL, *CHARACTERS.replace(" ", "")]
    tokenizer = Tokenizer(models.WordLevel({letter: index for index, letter in enumerate(letters)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Lowercase(), normalizers.Replace(Regex("[^a-z',.?!;: -]"), "")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer.to_str(pretty=True)
