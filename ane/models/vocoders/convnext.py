"""Define ConvNeXt blocks for sequences, a stack of such blocks, and the network of the source-filter vocoder.

ConvNeXt is from Liu et al. 2022 (arXiv 2201.03545), and Vocos uses it for speech (arXiv 2306.00814). Axes: B batch,
T positions, L frames, C channels. ``mask`` is 1 at real positions and 0 at padding. Padding does not change the result
at a real position.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.vocoders.margins import FRAME_KERNEL, frame_margin
from ane.models.vocoders.source_filter import PARAMETERS


class ConvNextBlock(nn.Module):
    """A residual block of a depthwise convolution, a norm and two linear layers.

    It turns x (B, T, C) with a mask (B, T, 1) into (B, T, C).
    """

    joins = (("norm", "pw1", "gelu"),)  # layers that a backend may compute together (see ``join_layers``)

    def __init__(self, width: int, inner: int, kernel: int, dilation: int = 1):
        super().__init__()
        self.dw = nn.Conv1d(width, width, kernel, padding=kernel // 2 * dilation, groups=width, dilation=dilation)
        self.norm = nn.LayerNorm(width)
        self.pw1, self.gelu = nn.Linear(width, inner), nn.GELU()
        self.pw2 = nn.Linear(inner, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.norm(self.dw(x.transpose(1, 2)).transpose(1, 2))  # (B, T, C)
        y = self.pw2(self.gelu(self.pw1(y)))  # (B, T, inner) → (B, T, C)
        return x + self.gamma * y * mask


class FrameDecoder(nn.Module):
    """A network over frames: a convolution, ``layers`` ConvNeXt blocks, a norm and a linear layer."""

    def __init__(self, channels: int, width: int, inner: int, layers: int, outputs: int):
        super().__init__()
        self.dec_in = nn.Conv1d(channels, width, FRAME_KERNEL, padding=FRAME_KERNEL // 2)
        self.dec = nn.ModuleList(ConvNextBlock(width, inner, FRAME_KERNEL) for _ in range(layers))
        self.dec_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, frames: Tensor, mask: Tensor) -> Tensor:
        """Compute outputs (B, L, outputs) from frames (B, L, channels) and their mask (B, L, 1)."""
        x = self.dec_in(frames.transpose(1, 2)).transpose(1, 2) * mask
        for block in self.dec:
            x = block(x, mask)
        return self.head(self.dec_norm(x))


@dataclass(frozen=True)
class SourceFilterConfig(Config):
    """Sizes of a network that predicts the parameters of ``ane.models.vocoders.source_filter``."""

    channels: int = 1024  # channels of an input frame: the width of the decoder's latents, or the number of mel bands
    width: int = 192  # channels of the blocks
    inner: int = 512  # channels within a block
    layers: int = 6  # number of blocks

    @property
    def margin(self) -> int:
        return frame_margin(self.layers)


class SourceFilterNetwork(FrameDecoder):
    """Predicts the parameters of the source filter, for frames of 256 samples at 24 kHz."""

    channels_last = True  # tells backends that channels are contiguous in memory, except within convolutions

    def __init__(self, config: SourceFilterConfig):
        super().__init__(config.channels, config.width, config.inner, config.layers, PARAMETERS)
        self.config = config

    def forward(self, frames: Tensor, mask: Tensor) -> Tensor:
        """Compute parameters (B, L, 66) from frames (B, L, channels) and their mask (B, L)."""
        return super().forward(frames, mask[..., None])
