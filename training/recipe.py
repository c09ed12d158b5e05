"""What is trained, and for how long: the one place to change either."""

from dataclasses import dataclass, field

from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.networks.clvp import CLVPConfig
from ane.models.tortoise.networks.conditioning import (
    ConditioningEncoderConfig,
    ContextualEmbedderConfig,
    RandomLatentConverterConfig,
)
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig
from ane.models.tortoise.networks.hifigan import HifiganConfig
from ane.models.tortoise.networks.layers import Config
from ane.models.tortoise.networks.univnet import UnivNetConfig
from training.loop import Plan

CHARACTERS = " abcdefghijklmnopqrstuvwxyz',.?!;:-"
SPECIAL = ("[STOP]", "[UNK]", "[SPACE]")
LETTER_TOKENS = range(len(SPECIAL), len(SPECIAL) + 26)   # of a to z
TOKENS = len(SPECIAL) + len(CHARACTERS) - 1             # the blank is [SPACE]
ENTRIES = 1023                                          # codes of the quantiser
CALM = ENTRIES                                          # a code of its own for the silence after the end
D, C, HEADS = 192, 80, 4

# 16 MB of fp16 in all; the autoregressive decoder, which everything else depends on, gets nearly half
CONFIGS: dict[str, Config] = {
    "autoregressive": UnifiedVoiceConfig(
        layers=7, model_dim=D, heads=HEADS, max_text_tokens=134, max_mel_tokens=261, number_text_tokens=TOKENS,
        start_text_token=TOKENS, stop_text_token=0, number_mel_codes=ENTRIES + 3, start_mel_token=ENTRIES + 1,
        stop_mel_token=ENTRIES + 2, calm_token=CALM, calm_run=3, tail_tokens=(CALM, CALM, CALM)),
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

# what the demo is spoken with where upstream's settings do not suit it: its codes come again and again, so that a
# penalty on repetition would drive it off the right one, it has learned no clip longer than a few sentences, codes near
# silence often follow the last word, and guidance can be heard, but neither ranking nor more steps of diffusion
SETTINGS = {"sampling": {"temperature": 0.6, "repetition_penalty": 1.0, "max_codes": 260}, "split": [80, 125],
            "silence": [0.1, 0.25], "preset": "1x10_guided"}


@dataclass(frozen=True)
class Recipe:
    """The whole training run.

    Attributes:
        hours: of speech, all voices together; held_back: share of it that only the other decoders learn from.
        quantised: hours of speech that the quantiser learns from.
        plans: how long each part learns; batch: crops of a step of the vocoders.
    """

    hours: float = 37.6
    voices: tuple[str, ...] = ("rms", "slt")
    held_back: float = 0.08
    quantised: float = 3.8
    seed: int = 0
    batch: int = 4
    plans: dict[str, Plan] = field(default_factory=lambda: {
        "quantiser": Plan(steps=2600, rate=1e-3),
        "autoregressive": Plan(steps=8200, rate=1e-3, warmup=300),
        "univnet": Plan(steps=11500, rate=1e-3, betas=(0.8, 0.99)),
        "hifigan": Plan(steps=6600, rate=1e-3, betas=(0.8, 0.99)),
        "diffusion": Plan(steps=2700, rate=1e-3),
        "listener": Plan(steps=3000, rate=2e-3),
        "clvp": Plan(steps=6100, rate=1e-3),
        "conditioning_encoder": Plan(steps=600, rate=3e-4),
        "contextual_embedder": Plan(steps=600, rate=3e-4),
        "rlg_auto": Plan(steps=6000, rate=1e-3, decay=0.0),
        "rlg_diffuser": Plan(steps=6000, rate=1e-3, decay=0.0),
    })


def tokenizer_json() -> str:
    """One token a character; what the networks have no letter for is dropped."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    letters = [*SPECIAL, *CHARACTERS.replace(" ", "")]
    tokenizer = Tokenizer(models.WordLevel({letter: index for index, letter in enumerate(letters)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Lowercase(), normalizers.Replace(Regex("[^a-z',.?!;: -]"), "")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer.to_str(pretty=True)
