"""Define the diffusion decoder's layers over packed frames (N, C): the frames of all utterances, one after the other.

A layer that works on single frames is one matrix product over all N. Layers that combine frames (norms, attention,
convolutions) run on one utterance after the other. So an utterance's result is the same as in a separate call, and no
frames are padded. Channels are last in memory, which is faster on the CPU: with channels first, a bfloat16 1×1
convolution of 1024 channels and 800 frames takes 1.2 to 1.4 times as long.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.models.tortoise.networks.layers import AttentionBlock, GroupNorm, relative_attention
from ane.models.vocoders.hifigan import ImageConv


@dataclass(frozen=True)
class Packing:
    """The layout of packed frames (N, C), which are the rows of all utterances one after another, without padding.

    Each utterance has ``rows`` rows of equal length. With guidance, these are the conditional and the unconditional
    row. ``lengths`` has, for each utterance, the number of frames in a row.
    """

    rows: int
    lengths: tuple[int, ...]

    def split(self, x: Tensor) -> Iterator[Tensor]:
        """Return the frames of each utterance, as a view (rows, L, C) of the packed x (N, C)."""
        # an exported graph would keep a split into one part
        parts = x.split([self.rows * length for length in self.lengths]) if len(self.lengths) > 1 else [x]
        return (part.view(self.rows, length, x.shape[1]) for part, length in zip(parts, self.lengths, strict=True))

    def each(self, function: Callable[..., Tensor], *packed: Tensor) -> Tensor:
        """Apply ``function`` to the frames (rows, L, C) of each utterance, and pack the results."""
        parts = [function(*parts).flatten(0, 1) for parts in zip(*map(self.split, packed), strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def pack(batch: Tensor) -> Tensor:
    """Pack (B, C, L) to (B·L, C)."""
    return batch.transpose(1, 2).flatten(0, 1)


def image(x: Tensor) -> Tensor:
    """View (R, L, C) as (R, C, 1, L) in torch's channels-last format."""
    return x.transpose(1, 2).unsqueeze(2)


def sequence(x: Tensor) -> Tensor:
    """View (R, C, 1, L) as (R, L, C), the inverse of ``image``."""
    return x.squeeze(2).transpose(1, 2)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear layer with weight (O, C) and bias (O,) to x (N, C). Returns (N, O)."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16) or torch.compiler.is_exporting():
        return F.linear(x, weight, bias)
    # This calls a convolution, which uses oneDNN, instead of F.linear. In float32, F.linear uses MKL, which takes twice
    # as long on AMD. In bfloat16, the result of F.linear depends on the number of threads (AMX). On one thread, a
    # convolution uses oneDNN only if it is dilated. Dilation does not change the result of a 1×1 kernel. An exported
    # graph has F.linear, which is one operation instead of nine.
    return sequence(F.conv2d(image(x[None]), weight[..., None, None], bias, dilation=(1, 2)))[0]


class PointwiseConv(nn.Conv1d):
    """A 1×1 convolution over packed frames: (N, C) → (N, O)."""

    over_frames = True  # tells backends that they may replace this layer by one with packed weights

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight[..., 0], self.bias)


class FrameConv(ImageConv):
    """A convolution over neighboring frames, with zeros beyond both ends: (R, L, C) → (R, L, O)."""

    over_frames = True

    def forward(self, x: Tensor) -> Tensor:
        return sequence(super().forward(image(x)))


class FrameNorm(GroupNorm):
    """Group normalisation over the frames of a row: (R, L, C) → (R, L, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return sequence(super().forward(image(x)))


class FrameAttention(AttentionBlock):
    """``AttentionBlock``, including its relative bias, for packed frames (all utterances without padding)."""

    normalisation, projection = FrameNorm, PointwiseConv
    # Names of the layers, for backends that compute the whole block in one call.
    attention_parts = "norm", "qkv", "proj_out", "relative_pos_embeddings"
    attention_dtype: torch.dtype | None = None  # dtype to which q, k and v are cast; None leaves their dtype

    def __init__(self, channels: int, heads: int):
        super().__init__(channels, heads, relative=True)

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        qkv = self.qkv(packing.each(self.norm, x))
        return x + self.proj_out(packing.each(self.attend, qkv))

    def attend(self, qkv: Tensor) -> Tensor:
        """Compute attention among the L frames of each row: (R, L, 3C) → (R, L, C).

        The channels of ``qkv`` are q, k and v of the first head, then q, k and v of the second head, and so on.
        """
        R, L, _ = qkv.shape
        qkv = qkv.to(self.attention_dtype or qkv.dtype)
        q, k, v = qkv.view(R, L, self.heads, 3, -1).permute(3, 0, 2, 1, 4)  # (R, heads, L, width)
        return relative_attention(q, k, v, self.relative_pos_embeddings, L)
