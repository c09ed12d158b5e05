"""Define HiFi-GAN, the vocoder that takes latents (Kong et al. 2020; upstream models/hifigan_decoder.py)."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.vocoders.hifigan import BORDER, HifiganResBlock, ImageConv, ImageConvTranspose, level_margins, upsampled


@dataclass(frozen=True)
class HifiganConfig(Config):
    in_channels: int = 1024
    out_channels: int = 1
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    upsample_kernel_sizes: tuple[int, ...] = (16, 16, 4, 4)
    upsample_initial_channel: int = 512
    upsample_factors: tuple[int, ...] = (8, 8, 2, 2)
    cond_channels: int = 1024

    @property
    def hop(self) -> int:
        return prod(self.upsample_factors)

    @property
    def level_margins(self) -> list[int]:
        """For each level of upsampling, how many frames of margin its input needs (``vocoders.hifigan.margins``)."""
        blocks = max(
            sum((size - 1) * dilation // 2 + (size - 1) // 2 for dilation in dilations)
            for size, dilations in zip(self.resblock_kernel_sizes, self.resblock_dilation_sizes, strict=True)
        )
        return level_margins(self.upsample_factors, self.upsample_kernel_sizes, blocks)

    @property
    def margin(self) -> int:
        """The number of frames before and after a frame on which the sound of the frame depends."""
        return self.level_margins[0] + BORDER


class Hifigan(nn.Module):
    def __init__(self, config: HifiganConfig):
        super().__init__()
        self.config = config
        widths = [config.upsample_initial_channel // 2**level for level in range(len(config.upsample_factors) + 1)]
        self.conv_pre = ImageConv(config.in_channels, widths[0], 7, padding=3)
        self.cond_layer = nn.Conv1d(config.cond_channels, widths[0], 1)
        self.ups = nn.ModuleList(
            ImageConvTranspose(before, after, size, factor, padding=(size - factor) // 2)
            for before, after, size, factor in zip(
                widths, widths[1:], config.upsample_kernel_sizes, config.upsample_factors, strict=False
            )
        )
        self.resblocks = nn.ModuleList(
            HifiganResBlock(width, size, dilations)
            for width in widths[1:]
            for size, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        )
        self.conv_post = ImageConv(widths[-1], config.out_channels, 7, padding=3)

    def forward(self, frames: Tensor, conditioning: Tensor) -> Tensor:
        """Make audio (B, 1, 256·L) from latents (B, D, L) at the rate of mel frames and a voice latent (B, D)."""
        x = frames[:, :, None].contiguous(memory_format=torch.channels_last)
        x = self.conv_pre(x) + self.cond_layer(conditioning[..., None])[..., None]
        return upsampled(x, self.ups, self.resblocks, self.conv_post)
