"""Declare Tortoise's networks. They are PyTorch modules for inference, with the parameter names of upstream."""

from ane.bundles.family import Network
from ane.models.tortoise.networks.autoregressive import UnifiedVoice, UnifiedVoiceConfig
from ane.models.tortoise.networks.clvp import CLVP, CLVPConfig
from ane.models.tortoise.networks.conditioning import (
    ConditioningEncoder,
    ConditioningEncoderConfig,
    ContextualEmbedder,
    ContextualEmbedderConfig,
    RandomLatentConverter,
    RandomLatentConverterConfig,
)
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig, DiffusionTts
from ane.models.tortoise.networks.hifigan import Hifigan, HifiganConfig
from ane.models.tortoise.networks.univnet import UnivNet, UnivNetConfig
from ane.models.vocoders.bigvgan import BigVGAN, BigVGANConfig
from ane.models.vocoders.convnext import SourceFilterConfig, SourceFilterNetwork

NETWORKS = {
    network.name: network
    for network in (
        Network(
            "autoregressive",
            UnifiedVoice,
            UnifiedVoiceConfig,
            "autoregressive.pth",
            unused=UnifiedVoice.unused,
            half_precision=True,
            quantised=True,
            compressed=True,
            for_speech=True,
            random=True,
            voice_width=lambda config: config.model_dim,
        ),
        Network(
            "conditioning_encoder",
            ConditioningEncoder,
            ConditioningEncoderConfig,
            "autoregressive.pth",
            prefix="conditioning_encoder.",
        ),
        Network(
            "diffusion",
            DiffusionTts,
            DiffusionConfig,
            "diffusion_decoder.pth",
            unused=DiffusionTts.unused,
            half_precision=True,
            compressed=True,
            for_speech=True,
            voice_width=lambda config: 2 * config.model_channels,
        ),
        Network(
            "contextual_embedder",
            ContextualEmbedder,
            ContextualEmbedderConfig,
            "diffusion_decoder.pth",
            prefix="contextual_embedder.",
        ),
        Network("clvp", CLVP, CLVPConfig, "clvp2.pth", half_precision=True, compressed=True, for_speech=True),
        Network(
            "univnet", UnivNet, UnivNetConfig, "vocoder.pth", wrapper="model_g", fp16_package=False, for_speech=True
        ),
        Network("bigvgan", BigVGAN, BigVGANConfig, "bigvgan_24khz_100band.pth", wrapper="generator", for_speech=True),
        Network("hifigan", Hifigan, HifiganConfig, "hifidecoder.pth", for_speech=True),
        # Upstream does not have these two. They predict the parameters of a source filter
        # (ane.models.vocoders.source_filter), the first from latents and the second from a mel.
        Network("source_filter", SourceFilterNetwork, SourceFilterConfig, "source_filter.pth", for_speech=True),
        Network(
            "mel_source_filter",
            SourceFilterNetwork,
            SourceFilterConfig,
            "mel_source_filter.pth",
            for_speech=True,
            defaults=(("channels", 100),),
        ),
        Network("rlg_auto", RandomLatentConverter, RandomLatentConverterConfig, "rlg_auto.pth"),
        Network(
            "rlg_diffuser",
            RandomLatentConverter,
            RandomLatentConverterConfig,
            "rlg_diffuser.pth",
            defaults=(("channels", 2048),),
        ),
    )
}
