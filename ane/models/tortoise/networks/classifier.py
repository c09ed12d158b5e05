"""The classifier that predicts whether Tortoise made a clip (upstream models/classifier.py)."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.tortoise.networks.layers import AttentionBlock, GroupNorm


@dataclass(frozen=True)
class ClassifierConfig(Config):
    classes: int = 2
    spec_dim: int = 1
    embedding_dim: int = 512
    depth: int = 5
    downsample_factor: int = 4
    resnet_blocks: int = 2
    attn_blocks: int = 4
    num_attn_heads: int = 4
    base_channels: int = 32
    kernel_size: int = 5

    split_widths: ClassVar = (("embedding_dim", "num_attn_heads"),)


class ClassifierResBlock(nn.Module):
    def __init__(self, channels: int, size: int):
        super().__init__()
        # indices as in upstream, where activations and dropout are between
        self.in_layers = nn.ModuleDict({
            "0": GroupNorm(channels), "2": nn.Conv1d(channels, channels, size, padding=size // 2)})
        self.out_layers = nn.ModuleDict({
            "0": GroupNorm(channels), "3": nn.Conv1d(channels, channels, size, padding=size // 2)})

    def forward(self, x: Tensor) -> Tensor:
        h = self.in_layers["2"](F.silu(self.in_layers["0"](x)))
        return x + self.out_layers["3"](F.silu(self.out_layers["0"](h)))


class Downsample(nn.Module):
    def __init__(self, channels: int, factor: int):
        super().__init__()
        self.op = nn.Conv1d(channels, 2 * channels, 5, stride=factor, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x)


class AudioMiniEncoder(nn.Module):
    """(B, 1, samples) → (B, width)."""

    def __init__(self, config: ClassifierConfig):
        super().__init__()
        channels = config.base_channels
        self.init = nn.Sequential(nn.Conv1d(config.spec_dim, channels, 3, padding=1))
        stages: list[nn.Module] = []
        for _ in range(config.depth):
            stages += [ClassifierResBlock(channels, config.kernel_size) for _ in range(config.resnet_blocks)]
            stages.append(Downsample(channels, config.downsample_factor))
            channels *= 2
        self.res = nn.Sequential(*stages)
        self.final = nn.Sequential(GroupNorm(channels), nn.SiLU(), nn.Conv1d(channels, config.embedding_dim, 1))
        self.attn = nn.Sequential(
            *(AttentionBlock(config.embedding_dim, config.num_attn_heads) for _ in range(config.attn_blocks)))

    def forward(self, audio: Tensor) -> Tensor:
        return self.attn(self.final(self.res(self.init(audio))))[:, :, 0]


class Classifier(nn.Module):
    """Audio at 24 kHz (B, 1, samples) → logits (B, 2); their softmax begins with the probability of Tortoise."""

    def __init__(self, config: ClassifierConfig):
        super().__init__()
        self.enc = AudioMiniEncoder(config)
        self.head = nn.Linear(config.embedding_dim, config.classes)

    def forward(self, audio: Tensor) -> Tensor:
        return self.head(self.enc(audio))
