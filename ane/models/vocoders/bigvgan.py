"""Define BigVGAN, a vocoder with periodic activations (Lee et al. 2023, arXiv 2206.04658).

It has the levels and blocks of HiFi-GAN, but its activations are Snakes, x + sin²(αx)/β (Ziyin et al. 2020, arXiv
2006.08195), instead of leaky ReLUs. A Snake is computed at twice the sample rate, between two low-pass filters, so that
its overtones do not alias. We wrote the code from the papers, and compared it with NVIDIA/BigVGAN (MIT).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.vocoders.hifigan import BORDER, ImageConv, ImageConvTranspose, level_margins
from ane.system.errors import UserError

TAPS = 12  # taps per low-pass filter, at twice the sample rate
REACH = 6  # how many samples an activation reads before and after a sample
HOP, BANDS = 256, 100


@dataclass(frozen=True)
class BigVGANConfig(Config):
    """Sizes of a BigVGAN, named as in NVIDIA's JSON files. The defaults are the sizes of bigvgan_24khz_100band."""

    identifiers: ClassVar[frozenset[str]] = frozenset(("snake_logscale", "use_tanh_at_final", "use_bias_at_final"))

    num_mels: int = BANDS
    upsample_rates: tuple[int, ...] = (4, 4, 2, 2, 2, 2)
    upsample_kernel_sizes: tuple[int, ...] = (8, 8, 4, 4, 4, 4)
    upsample_initial_channel: int = 1536
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    resblock: str = "1"
    activation: str = "snakebeta"
    snake_logscale: bool = True  # whether α and β are stored as logarithms
    use_tanh_at_final: bool = True  # whether tanh limits the sound; version 2 of BigVGAN clips it instead
    use_bias_at_final: bool = True

    def check(self, where: str) -> None:
        levels = len(self.upsample_rates)
        if self.resblock != "1" or self.activation not in ("snake", "snakebeta"):
            raise UserError(
                f"{where}: resblock must be '1', and activation must be snake or snakebeta, not {self.resblock!r} "
                f"and {self.activation!r}"
            )
        if (
            len(self.upsample_kernel_sizes) != levels
            or self.upsample_initial_channel >> levels < 1
            or any(
                size < rate or (size - rate) % 2
                for size, rate in zip(self.upsample_kernel_sizes, self.upsample_rates, strict=False)
            )
            or (len(self.resblock_kernel_sizes) != len(self.resblock_dilation_sizes))
        ):
            raise UserError(f"{where}: the sizes of the levels and of the blocks do not fit together")
        if prod(self.upsample_rates) != HOP or self.num_mels != BANDS:
            raise UserError(
                f"{where}: this BigVGAN takes {self.num_mels} mel bands and makes {prod(self.upsample_rates)} samples "
                f"per frame, but Tortoise needs {BANDS} bands and {HOP} samples, as in bigvgan_24khz_100band"
            )

    @property
    def level_margins(self) -> list[int]:
        """For each level of upsampling, how many frames its input needs as a margin (see ``hifigan.margins``)."""
        blocks = max(
            sum((size - 1) * (dilation + 1) // 2 + 2 * REACH for dilation in dilations)
            for size, dilations in zip(self.resblock_kernel_sizes, self.resblock_dilation_sizes, strict=True)
        )
        return level_margins(self.upsample_rates, self.upsample_kernel_sizes, blocks + REACH)

    @property
    def margin(self) -> int:
        """The number of frames before and after a frame on which the sound of the frame depends."""
        return self.level_margins[0] + BORDER


def is_bigvgan(keys: Iterable[str]) -> bool:
    return any(str(key).endswith("activation_post.act.alpha") for key in keys)


def low_pass() -> np.ndarray:
    """Return the 12 taps of a Kaiser-windowed sinc, a low-pass filter at half the rate, as float32.

    The sum of the taps is 1.
    """
    attenuation = 2.285 * (TAPS // 2 - 1) * np.pi * 4 * 0.3 + 7.95  # Kaiser's formula for a transition band of 0.3
    taps = np.kaiser(TAPS, 0.1102 * (attenuation - 8.7)) * np.sinc((np.arange(TAPS) - TAPS // 2 + 0.5) / 2)
    return (taps / taps.sum()).astype(np.float32)


class Snake(nn.Module):
    """The activation x + sin²(αx)/β. If the config's ``activation`` is "snake", β is equal to α."""

    def __init__(self, channels: int, config: BigVGANConfig):
        super().__init__()
        self.logarithms = config.snake_logscale
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels)) if config.activation == "snakebeta" else None

    def scales(self) -> tuple[Tensor, Tensor]:
        """Return α and β, both (C,). A tiny number is added to β, so that it is never 0."""
        alpha, beta = self.alpha, self.alpha if self.beta is None else self.beta
        if self.logarithms:
            alpha, beta = alpha.exp(), beta.exp()
        return alpha, beta + 1e-9

    def forward(self, x: Tensor) -> Tensor:
        alpha, beta = self.scales()
        return x + torch.sin(x * alpha[:, None, None]).square() / beta[:, None, None]


class Activation(nn.Module):
    """A Snake activation, computed at twice the sample rate: (B, C, 1, T) → (B, C, 1, T).

    Beyond the ends of the input, it reads the first or the last sample again.
    """

    def __init__(self, channels: int, config: BigVGANConfig):
        super().__init__()
        self.act = Snake(channels, config)
        self.register_buffer("taps", torch.from_numpy(low_pass())[None, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        taps, half = self.taps.expand(channels, -1, -1, -1), TAPS // 2
        x = F.pad(x, (half - 1, half - 1, 0, 0), mode="replicate")
        x = F.conv_transpose2d(x, 2 * taps, stride=(1, 2), groups=channels)
        crop = TAPS + half - 3  # samples that come from the repeated ends and from half of the filter
        x = self.act(x[..., crop:-crop])
        x = F.pad(x, (half - 1, half, 0, 0), mode="replicate")
        return F.conv2d(x, taps, stride=(1, 2), groups=channels)


class PeriodicBlock(nn.Module):
    """A residual block: (B, C, 1, T) → (B, C, 1, T).

    For each dilation, it runs an activation, a dilated convolution, an activation and a plain convolution, and adds the
    result to the input of the first activation.
    """

    def __init__(self, channels: int, size: int, dilations: tuple[int, ...], config: BigVGANConfig):
        super().__init__()
        self.convs1 = nn.ModuleList(
            ImageConv(channels, channels, size, dilation=dilation, padding=(size - 1) * dilation // 2)
            for dilation in dilations
        )
        self.convs2 = nn.ModuleList(ImageConv(channels, channels, size, padding=size // 2) for _ in dilations)
        self.activations = nn.ModuleList(Activation(channels, config) for _ in range(2 * len(dilations)))

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain, first, second in zip(
            self.convs1, self.convs2, self.activations[::2], self.activations[1::2], strict=True
        ):
            x = x + plain(second(dilated(first(x))))
        return x


class BigVGAN(nn.Module):
    def __init__(self, config: BigVGANConfig):
        super().__init__()
        self.config = config
        widths = [config.upsample_initial_channel >> level for level in range(len(config.upsample_rates) + 1)]
        self.conv_pre = ImageConv(config.num_mels, widths[0], 7, padding=3)
        self.ups = nn.ModuleList(
            nn.ModuleList([ImageConvTranspose(before, after, size, rate, padding=(size - rate) // 2)])
            for before, after, size, rate in zip(
                widths, widths[1:], config.upsample_kernel_sizes, config.upsample_rates, strict=False
            )
        )
        self.resblocks = nn.ModuleList(
            PeriodicBlock(width, size, dilations, config)
            for width in widths[1:]
            for size, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        )
        self.activation_post = Activation(widths[-1], config)
        self.conv_post = ImageConv(widths[-1], 1, 7, padding=3, bias=config.use_bias_at_final)

    def forward(self, mel: Tensor) -> Tensor:
        """Make audio (B, 1, 256 · L) within ±1 from a mel (B, M, L) of natural logarithms."""
        x = self.conv_pre(mel[:, :, None])
        sizes = len(self.config.resblock_kernel_sizes)
        for level, [up] in enumerate(self.ups):
            x = up(x)
            x = sum(block(x) for block in self.resblocks[level * sizes : (level + 1) * sizes]) / sizes
        x = self.conv_post(self.activation_post(x))[:, :, 0]
        return torch.tanh(x) if self.config.use_tanh_at_final else x.clamp(-1, 1)
