"""The networks of Tortoise in plain PyTorch, inference only, with upstream's parameter names."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ane.models.tortoise.networks.autoregressive import UnifiedVoice, UnifiedVoiceConfig
from ane.models.tortoise.networks.classifier import Classifier, ClassifierConfig
from ane.models.tortoise.networks.clvp import CLVP, CVVP, CLVPConfig, CVVPConfig
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
from ane.models.tortoise.networks.layers import Config
from ane.models.tortoise.networks.univnet import UnivNet, UnivNetConfig


def nothing(config: Config) -> dict[str, tuple[int, ...]]:
    return {}


@dataclass(frozen=True)
class Network:
    """Where a network's parameters lie in the official files, and what they are made into."""

    name: str
    cls: type[nn.Module]
    config: type[Config]
    file: str
    prefix: str = ""                    # the network's keys begin with this inside the file
    wrapped: str | None = None          # the file is a dictionary, the parameters under this key
    defaults: tuple[tuple[str, int], ...] = ()      # official arguments that differ from the config's defaults
    unused: Callable[[Config], dict[str, tuple[int, ...]]] = nothing    # keys that only training needs, with shapes

    def official(self) -> Config:
        return self.config(**dict(self.defaults))


NETWORKS = {network.name: network for network in (
    Network("autoregressive", UnifiedVoice, UnifiedVoiceConfig, "autoregressive.pth", unused=UnifiedVoice.unused),
    Network("conditioning_encoder", ConditioningEncoder, ConditioningEncoderConfig, "autoregressive.pth",
            prefix="conditioning_encoder."),
    Network("diffusion", DiffusionTts, DiffusionConfig, "diffusion_decoder.pth", unused=DiffusionTts.unused),
    Network("contextual_embedder", ContextualEmbedder, ContextualEmbedderConfig, "diffusion_decoder.pth",
            prefix="contextual_embedder."),
    Network("clvp", CLVP, CLVPConfig, "clvp2.pth"),
    Network("cvvp", CVVP, CVVPConfig, "cvvp.pth"),
    Network("univnet", UnivNet, UnivNetConfig, "vocoder.pth", wrapped="model_g"),
    Network("hifigan", Hifigan, HifiganConfig, "hifidecoder.pth"),
    Network("rlg_auto", RandomLatentConverter, RandomLatentConverterConfig, "rlg_auto.pth"),
    Network("rlg_diffuser", RandomLatentConverter, RandomLatentConverterConfig, "rlg_diffuser.pth",
            defaults=(("channels", 2048),)),
    Network("classifier", Classifier, ClassifierConfig, "classifier.pth"),
)}
