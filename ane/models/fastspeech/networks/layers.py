"""The FFT block of FastSpeech: self-attention, then two convolutions, each with a residual and a norm.

Tensors are (B, T, C). Names of parameters are those of NVIDIA's example (DeepLearningExamples,
CUDA-Optimized/FastSpeech), so its state dict loads as it is. ``mask`` is (B, T, 1): 1 at real positions, 0 at padding.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.backends.base import MASKED

HEAD_WIDTH = 64         # of queries, keys and values, whatever the width of the model


class WideNorm(nn.LayerNorm):
    """Layer normalisation (…, C) → the same, computed in float32 for any dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


class HeadAttention(nn.Module):
    """Scaled dot-product attention: q, k, v (B, h, T, 64), bias (B, 1, 1, T) added to the scores → (B, T, h · 64)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return joined_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=bias))


def joined_heads(heads: Tensor) -> Tensor:
    """(B, h, T, C) → (B, T, h · C)."""
    return heads.transpose(1, 2).flatten(2)


class Residual(nn.Module):
    """The sum of a layer's output and its input; a module, so that the sum has a path (`ane verify --layers`)."""

    def forward(self, output: Tensor, x: Tensor) -> Tensor:
        return output + x


class SelfAttention(nn.Module):
    """Multi-head self-attention with a residual and a norm after it; (B, T, C) → the same, 0 at padding."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(width, heads * 3 * HEAD_WIDTH)      # its rows: for each head q, then k, then v
        self.attention = HeadAttention()
        self.fc = nn.Linear(heads * HEAD_WIDTH, width)
        self.residual = Residual()
        self.layer_norm = WideNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.linear(x).view(B, T, self.heads, 3, HEAD_WIDTH).permute(3, 0, 2, 1, 4)       # each (B, h, T, 64)
        bias = (1 - mask).mul(MASKED).transpose(1, 2)[:, None]                                      # (B, 1, 1, T)
        return self.layer_norm(self.residual(self.fc(self.attention(q, k, v, bias)), x)) * mask


class ConvFeedForward(nn.Module):
    """Two convolutions with a ReLU between them, a residual and a norm; (B, T, C) → the same, 0 at padding.

    With ``exact`` the mask is applied between the convolutions too, so that padding changes nothing.
    """

    def __init__(self, width: int, inner: int, kernel: int, exact: bool):
        super().__init__()
        self.exact = exact
        self.w_1 = nn.Conv1d(width, inner, kernel, padding=kernel // 2)
        self.w_2 = nn.Conv1d(inner, width, kernel, padding=kernel // 2)
        self.residual = Residual()
        self.layer_norm = WideNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        inner = F.relu(self.w_1(x.transpose(1, 2)))                     # (B, inner, T)
        if self.exact:
            inner = inner * mask.transpose(1, 2)
        return self.layer_norm(self.residual(self.w_2(inner).transpose(1, 2), x)) * mask


class FFTBlock(nn.Module):
    """Feed-forward Transformer block (Ren et al. 2019, arXiv 1905.09263, section 3.1)."""

    def __init__(self, width: int, heads: int, inner: int, kernel: int, exact: bool):
        super().__init__()
        self.slf_attn = SelfAttention(width, heads)
        self.pos_ffn = ConvFeedForward(width, inner, kernel, exact)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.pos_ffn(self.slf_attn(x, mask), mask)


class PositionEncoding(nn.Module):
    """Adds the encodings of its positions to x (B, T, C), but not to its padding."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + position_table(x.shape[1], x.shape[2]).to(x) * mask


class FFTStack(nn.Module):
    """Positions are added, then the blocks follow; x (B, T, C), mask (B, T, 1) → (B, T, C), 0 at padding."""

    def __init__(self, layers: int, width: int, heads: int, inner: int, kernel: int, exact: bool):
        super().__init__()
        self.positions = PositionEncoding()
        self.layer_stack = nn.ModuleList(FFTBlock(width, heads, inner, kernel, exact) for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.positions(x, mask)
        for block in self.layer_stack:
            x = block(x, mask)
        return x


@lru_cache(maxsize=64)
def position_table(length: int, width: int) -> Tensor:
    """The encodings of positions 1 … length: (length, width) float32, sines at even channels, cosines at odd ones.

    The angle is position / 10000^(2·⌊channel / 2⌋ / width). NVIDIA's checkpoints store this table, after a row of zeros
    for padding; it is a constant.
    """
    positions = torch.arange(1, length + 1, dtype=torch.float64)[:, None]
    channels = torch.arange(width) // 2 * 2
    angles = positions / 10000 ** (channels.double() / width)
    return torch.where(torch.arange(width) % 2 == 0, angles.sin(), angles.cos()).float()
