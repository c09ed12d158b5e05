"""Define the two encoders of reference clips, and the network that maps noise to the latent of a random voice.

The three networks follow upstream's ConditioningEncoder (models/autoregressive.py), contextual_embedder
(models/diffusion_decoder.py) and models/random_latent_generator.py.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.tortoise.networks.layers import AttentionBlock


@dataclass(frozen=True)
class ConditioningEncoderConfig(Config):
    model_dim: int = 1024
    heads: int = 16

    split_widths: ClassVar = (("model_dim", "heads"),)


class ConditioningEncoder(nn.Module):
    """Encodes the mel of a clip, (B, 80, L), to the decoder's voice latent, (B, D).

    The latent is the output of the attention layers at the first frame.
    """

    mels, blocks = 80, 6

    def __init__(self, config: ConditioningEncoderConfig):
        super().__init__()
        self.init = nn.Conv1d(self.mels, config.model_dim, 1)
        self.attn = nn.Sequential(*(AttentionBlock(config.model_dim, config.heads) for _ in range(self.blocks)))

    def forward(self, mel: Tensor) -> Tensor:
        return self.attn(self.init(mel))[:, :, 0]


@dataclass(frozen=True)
class ContextualEmbedderConfig(Config):
    in_channels: int = 100
    model_channels: int = 1024
    num_heads: int = 16

    split_widths: ClassVar = (("model_channels", "num_heads"),)


class ContextualEmbedder(nn.Sequential):
    """Encodes the mel of a clip, (B, 100, L), to the diffusion decoder's voice latent, (B, 2C).

    The network consists of convolutions, attention layers and a mean over time.
    """

    blocks = 5

    def __init__(self, config: ContextualEmbedderConfig):
        C = config.model_channels
        super().__init__(
            nn.Conv1d(config.in_channels, C, 3, stride=2, padding=1),
            nn.Conv1d(C, 2 * C, 3, stride=2, padding=1),
            *(AttentionBlock(2 * C, config.num_heads, relative=True) for _ in range(self.blocks)),
        )

    def forward(self, mel: Tensor) -> Tensor:
        return super().forward(mel).mean(dim=-1)


@dataclass(frozen=True)
class RandomLatentConverterConfig(Config):
    channels: int = 1024


class EqualLinear(nn.Module):
    """A linear layer and a leaky ReLU. Each call scales the parameters first (StyleGAN 2, Karras et al. 2020)."""

    rate = 0.1

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        self.bias = nn.Parameter(torch.empty(width))
        self.scale = self.rate / math.sqrt(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(F.linear(x, self.weight * self.scale, self.bias * self.rate), 0.2) * math.sqrt(2)


class RandomLatentConverter(nn.Module):
    """Maps standard normal noise (B, channels) to a voice latent (B, channels)."""

    def __init__(self, config: RandomLatentConverterConfig):
        super().__init__()
        width = config.channels
        self.layers = nn.Sequential(*(EqualLinear(width) for _ in range(5)), nn.Linear(width, width))

    def forward(self, noise: Tensor) -> Tensor:
        return self.layers(noise)
