"""Layers of the diffusion decoder over packed frames: (N, C), the frames of all rows and utterances one after another.

Layers that read one frame at a time are a single product over all N; layers that read several frames (norms, attention,
convolutions) run utterance by utterance, so that each result is the same as alone and nothing is padded. Channels are
last in memory, which is faster on the CPU: in bfloat16, a 1×1 convolution of 1024 channels and 800 frames takes 1.2 to
1.4 times as long with channels first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.models.tortoise.networks.layers import AttentionBlock, GroupNorm, ImageConv, attention


@dataclass(frozen=True)
class Packing:
    """The layout of frames in a tensor (N, C): for each utterance, ``rows`` times its number of frames (``lengths``).

    The rows of an utterance are the conditional and the unconditional one of guidance, or a batch of one length.
    """

    rows: int
    lengths: tuple[int, ...]

    def split(self, x: Tensor) -> Iterator[Tensor]:
        """(N, C) → (rows, L, C) for each utterance, without a copy."""
        for part, length in zip(x.split([self.rows * length for length in self.lengths]), self.lengths, strict=True):
            yield part.view(self.rows, length, x.shape[1])

    def each(self, function: Callable[..., Tensor], *packed: Tensor) -> Tensor:
        """Packed tensors → ``function`` of every utterance's (rows, L, C), its results packed again."""
        parts = [function(*parts).flatten(0, 1) for parts in zip(*map(self.split, packed), strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def pack(batch: Tensor) -> Tensor:
    """(B, C, L) → (B·L, C)."""
    return batch.transpose(1, 2).flatten(0, 1)


def image(x: Tensor) -> Tensor:
    """(R, L, C) as what torch calls channels last: (R, C, 1, L), without a copy."""
    return x.transpose(1, 2)[:, :, None]


def sequence(x: Tensor) -> Tensor:
    """(R, C, 1, L) → (R, L, C): the inverse of ``image``."""
    return x[:, :, 0].transpose(1, 2)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (N, C), weight (O, C), bias (O,) → (N, O)."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.linear(x, weight, bias)
    # float32 products go to MKL, which on AMD takes twice as long as oneDNN; a convolution goes to oneDNN, on one
    # thread too once it is dilated, which a kernel of one frame does not notice
    return sequence(F.conv2d(image(x[None]), weight[..., None, None], bias, dilation=(1, 2)))[0]


class PointwiseConv(nn.Conv1d):
    """A convolution of one frame: (N, C) → (N, O)."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight[..., 0], self.bias)


class FrameConv(ImageConv):
    """A convolution over neighbouring frames, zeros beyond either end: (R, L, C) → (R, L, O)."""

    def forward(self, x: Tensor) -> Tensor:
        return sequence(super().forward(image(x)))


class FrameNorm(GroupNorm):
    """Over all frames of a row and each group of channels: (R, L, C) → the same."""

    def forward(self, x: Tensor) -> Tensor:
        return sequence(super().forward(image(x)))


class FrameAttention(AttentionBlock):
    """``AttentionBlock`` with its relative bias, over packed frames."""

    normalisation, projection = FrameNorm, PointwiseConv

    def __init__(self, channels: int, heads: int):
        super().__init__(channels, heads, relative=True)

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        qkv = self.qkv(packing.each(self.norm, x))
        return x + self.proj_out(packing.each(self.attend, qkv))

    def attend(self, qkv: Tensor) -> Tensor:
        """(R, L, 3C), q, k and v of each head side by side → (R, L, C)."""
        R, L, _ = qkv.shape
        q, k, v = qkv.view(R, L, self.heads, 3, -1).permute(3, 0, 2, 1, 4)          # (R, heads, L, width)
        return attention(q, k, v, self.relative_pos_embeddings(L, qkv.dtype))
