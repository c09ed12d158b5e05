"""Define HiFi-GAN, versions 1 to 3, which turns a mel spectrogram into sound (Kong et al. 2020, arXiv 2010.05646).

The names of parameters are from jik876/hifi-gan (models.py). NVIDIA's HiFi-GAN (DeepLearningExamples,
PyTorch/SpeechSynthesis/HiFiGAN) is the same network with the same names. Tortoise's HiFi-GAN
(``ane.models.tortoise.networks.hifigan``) has the same levels, but is conditioned on a voice.

All vocoders use two parts of this module: convolutions that treat sound as an image one pixel high, and functions that
compute on how many neighboring frames the sound of a frame depends (its margin).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.system.errors import UserError


class ImageConv(nn.Conv1d):
    """A convolution in time over images one pixel high, with zero padding: (B, C, 1, T) → (B, O, 1, T').

    It exists because torch supports channels last for images, but not for sequences. With channels last, oneDNN does
    not have to reorder the input and output, which takes a tenth to two fifths of a float32 convolution's time. The
    convolution has no groups.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().forward(x[:, :, 0])[:, :, None]
        return F.conv2d(
            x, self.weight[:, :, None], self.bias, (1, *self.stride), (0, *self.padding), (1, *self.dilation)
        )


class ImageConvTranspose(nn.ConvTranspose1d):
    """A transposed convolution over images one pixel high, like ``ImageConv``: (B, C, 1, T) → (B, O, 1, T').

    It has no output padding.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().forward(x[:, :, 0])[:, :, None]
        return F.conv_transpose2d(
            x, self.weight[:, :, None], self.bias, (1, *self.stride), (0, *self.padding), dilation=(1, *self.dilation)
        )


def margins(rates: Sequence[int], reaches: Sequence[int]) -> list[int]:
    """Compute how many frames of margin the input of each level needs, so that padding does not affect the sound.

    A margin is a number of additional frames at both ends. It is large enough for the padding in this level of
    upsampling and in all later levels.

    Args:
        rates: Samples per frame at each level's rate, in order of the levels.
        reaches: Number of samples at each end that a level's padding affects, at the level's rate, for each level.
    """
    levels = [-(-reach // rate) for rate, reach in zip(rates, reaches, strict=True)]
    return [sum(levels[level:]) for level in range(len(levels))]


def affected_samples(size: int, stride: int, pad: int) -> int:
    """Return how many output samples of a transposed convolution depend on the end of its input.

    If the input continued beyond its end, these samples would differ. Their number is the same at both ends.
    """
    return max(size - stride - pad, pad)


# Properties of the sound that a vocoder must have been trained for, with the names of jik876's config.json.
AUDIO = {
    "sampling_rate": 22050,
    "num_mels": 80,
    "hop_size": 256,
    "n_fft": 1024,
    "win_size": 1024,
    "fmin": 0,
    "fmax": 8000,
}
BORDER = 3  # how many positions before and after a position conv_pre and conv_post read (kernel size 7)


@dataclass(frozen=True)
class MelHifiganConfig(Config):
    """Sizes of a HiFi-GAN, named as in jik876's config.json. The defaults are the sizes of version 1."""

    num_mels: int = 80
    resblock: str = "1"
    upsample_rates: tuple[int, ...] = (8, 8, 2, 2)
    upsample_kernel_sizes: tuple[int, ...] = (16, 16, 4, 4)
    upsample_initial_channel: int = 512
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))

    def check(self, where: str) -> None:
        """Raise UserError if the sizes do not fit together, or describe a generator for mels other than ``AUDIO``."""
        levels = len(self.upsample_rates)
        if self.resblock not in ("1", "2"):
            raise UserError(f"{where}: resblock must be 1 or 2, not {self.resblock!r}")
        if not levels or len(self.upsample_kernel_sizes) != levels or self.upsample_initial_channel >> levels < 1:
            raise UserError(
                f"{where}: upsample_rates, upsample_kernel_sizes and upsample_initial_channel do not fit together"
            )
        if len(self.resblock_kernel_sizes) != len(self.resblock_dilation_sizes):
            raise UserError(f"{where}: resblock_kernel_sizes and resblock_dilation_sizes differ in length")
        if any(
            size < rate or (size - rate) % 2
            for size, rate in zip(self.upsample_kernel_sizes, self.upsample_rates, strict=True)
        ):
            raise UserError(f"{where}: upsample_kernel_sizes must be upsample_rates plus an even number")
        if self.hop != AUDIO["hop_size"] or self.num_mels != AUDIO["num_mels"]:
            raise UserError(
                f"{where}: this vocoder takes {self.num_mels} mel bands and makes {self.hop} samples per frame, but "
                f"FastSpeech needs {AUDIO['num_mels']} bands and {AUDIO['hop_size']} samples: use such a vocoder, "
                "or put the vocoder's config.json next to it"
            )

    @property
    def hop(self) -> int:
        """The number of samples per mel frame."""
        return prod(self.upsample_rates)

    @property
    def level_margins(self) -> list[int]:
        """For each level of upsampling, how many frames its input needs as a margin (see ``margins``)."""
        plain = self.resblock == "1"  # blocks of type 1 have an undilated convolution after each dilated one
        blocks = max(
            sum((size - 1) * dilation // 2 + (size - 1) // 2 * plain for dilation in dilations)
            for size, dilations in zip(self.resblock_kernel_sizes, self.resblock_dilation_sizes, strict=True)
        )
        return level_margins(self.upsample_rates, self.upsample_kernel_sizes, blocks)

    @property
    def margin(self) -> int:
        """The number of frames before and after a frame on which the sound of the frame depends."""
        return self.level_margins[0] + BORDER


def level_margins(factors: Sequence[int], kernel_sizes: Sequence[int], blocks: int) -> list[int]:
    """Compute, for each level of upsampling, how many frames its input needs as a margin (see ``margins``).

    Args:
        factors: Upsampling factor of each level.
        kernel_sizes: Kernel size of each level's transposed convolution.
        blocks: Number of samples before and after a sample that the residual blocks of a level read.
    """
    reaches = [
        blocks + affected_samples(size, factor, (size - factor) // 2)
        for size, factor in zip(kernel_sizes, factors, strict=False)
    ]
    reaches[-1] += BORDER
    return margins(list(accumulate(factors, mul)), reaches)


class HifiganResBlock(nn.Module):
    """A residual block of type 1: (B, C, 1, T) → (B, C, 1, T).

    For each dilation, it runs a dilated convolution and a plain convolution, and adds the result to the input of both.
    """

    def __init__(self, channels: int, size: int, dilations: tuple[int, ...]):
        super().__init__()

        def conv(dilation: int) -> ImageConv:
            return ImageConv(channels, channels, size, dilation=dilation, padding=(size - 1) * dilation // 2)

        self.convs1 = nn.ModuleList(conv(dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(conv(1) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.convs1, self.convs2, strict=True):
            y = F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1, inplace=True)
            x = plain(y).add_(x)
        return x


class SmallResBlock(nn.Module):
    """A residual block of type 2, for HiFi-GAN's version 3 (upstream: ResBlock2): (B, C, 1, T) → (B, C, 1, T).

    For each dilation, it runs a dilated convolution, and adds the result to its input.
    """

    def __init__(self, channels: int, size: int, dilations: tuple[int, ...]):
        super().__init__()
        self.convs = nn.ModuleList(
            ImageConv(channels, channels, size, dilation=dilation, padding=(size - 1) * dilation // 2)
            for dilation in dilations
        )

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(F.leaky_relu(x, 0.1)).add_(x)
        return x


class MelHifigan(nn.Module):
    def __init__(self, config: MelHifiganConfig):
        super().__init__()
        self.config = config
        block = HifiganResBlock if config.resblock == "1" else SmallResBlock
        widths = [config.upsample_initial_channel // 2**level for level in range(len(config.upsample_rates) + 1)]
        self.conv_pre = ImageConv(config.num_mels, widths[0], 7, padding=3)
        self.ups = nn.ModuleList(
            ImageConvTranspose(before, after, size, rate, padding=(size - rate) // 2)
            for before, after, size, rate in zip(
                widths, widths[1:], config.upsample_kernel_sizes, config.upsample_rates, strict=False
            )
        )
        self.resblocks = nn.ModuleList(
            block(width, size, dilations)
            for width in widths[1:]
            for size, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        )
        self.conv_post = ImageConv(widths[-1], 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        """Make audio (B, 1, hop · L) within ±1 from a mel (B, M, L) of natural logarithms."""
        x = self.conv_pre(mel[:, :, None].contiguous(memory_format=torch.channels_last))
        return upsampled(x, self.ups, self.resblocks, self.conv_post)


def upsampled(x: Tensor, ups: nn.ModuleList, resblocks: nn.ModuleList, conv_post: nn.Module) -> Tensor:
    """Run HiFi-GAN after its first convolution: x (B, C, 1, L) → audio (B, 1, hop · L) within ±1.

    A level is one of the ``ups``, followed by the mean of its residual blocks. All levels have equally many blocks.
    """
    sizes = len(resblocks) // len(ups)
    for level, up in enumerate(ups):
        x = up(F.leaky_relu(x, 0.1))
        first, *others = resblocks[level * sizes : (level + 1) * sizes]
        total = first(x)
        for block in others:
            total += block(x)
        x = total / sizes
    # The slope is 0.01 here and 0.1 above, because upstream was trained with these slopes.
    return torch.tanh(conv_post(F.leaky_relu(x, 0.01)))[:, :, 0]
