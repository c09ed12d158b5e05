"""Convolutions of vocoders on images one pixel high, and how many frames the sound of a frame depends on."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class ImageConv(nn.Conv1d):
    """A zero-padded convolution in time (no groups) of images one pixel high: (B, C, 1, T) → (B, O, 1, T').

    torch supports channels last for images, not for sequences. With it, oneDNN need not reorder input and output, which
    takes a tenth to two fifths of a float32 convolution's time.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().forward(x[:, :, 0])[:, :, None]
        return F.conv2d(x, self.weight[:, :, None], self.bias, (1, *self.stride), (0, *self.padding),
                        (1, *self.dilation))


class ImageConvTranspose(nn.ConvTranspose1d):
    """``ImageConv`` for a transposed convolution (no output padding): (B, C, 1, T) → (B, O, 1, T')."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().forward(x[:, :, 0])[:, :, None]
        return F.conv_transpose2d(x, self.weight[:, :, None], self.bias, (1, *self.stride), (0, *self.padding),
                                  dilation=(1, *self.dilation))


def margins(rates: Sequence[int], reaches: Sequence[int]) -> list[int]:
    """Frames on either side that the input of each level needs as margin, for padding in that and all later levels.

    Args:
        rates: samples per frame of each level, in order.
        reaches: samples, at the level's own rate, at either end that padding in this level affects.
    """
    own = [-(-reach // rate) for rate, reach in zip(rates, reaches, strict=True)]
    return [sum(own[level:]) for level in range(len(own))]


def affected_samples(size: int, stride: int, pad: int) -> int:
    """Output samples at an end that a transposed convolution would compute differently if its input continued there."""
    return max(size - stride - pad, pad)
