"""Layers that Whisper's encoder and decoder share (openai/whisper model.py). Tensors are (B, T, D)."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

# q, k, v (B, heads, T, head_width) → (B, heads, T, head_width)
SelfAttend = Callable[[Tensor, Tensor, Tensor], Tensor]
# q (B, heads, T, head_width) → (B, heads, T, head_width); its caller has the keys and values
CrossAttend = Callable[[Tensor], Tensor]


class CastingLinear(nn.Linear):
    """A linear layer that converts its input to the precision of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


class WhisperAttention(nn.Module):
    """The projections of multi-head attention; the key has no bias."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = CastingLinear(width, width)
        self.key = CastingLinear(width, width, bias=False)
        self.value = CastingLinear(width, width)
        self.out = CastingLinear(width, width)

    def forward(self, x: Tensor, attend: SelfAttend) -> Tensor:
        """Self-attention: (B, T, D) → (B, T, D)."""
        return self.out(merge_heads(attend(self.split_heads(self.query(x)), *self.keys_values(x))))

    def cross(self, x: Tensor, attend: CrossAttend) -> Tensor:
        """Cross-attention to keys and values that ``attend`` has: (B, T, D) → (B, T, D)."""
        return self.out(merge_heads(attend(self.split_heads(self.query(x)))))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D) → keys and values (B, heads, T, head_width)."""
        return self.split_heads(self.key(x)), self.split_heads(self.value(x))

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, heads, T, head_width)."""
        B, T, D = x.shape
        return x.view(B, T, self.heads, D // self.heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, T, head_width) → (B, T, D): the inverse of ``split_heads``."""
    B, heads, T, width = x.shape
    return x.transpose(1, 2).reshape(B, T, heads * width)


def feed_forward(width: int) -> nn.Sequential:
    """Two linear layers with the exact GELU between them; their keys are 0 and 2."""
    return nn.Sequential(CastingLinear(width, 4 * width), nn.GELU(), CastingLinear(4 * width, width))


def attend_to_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every position attends to all. Silence is not masked."""
    return F.scaled_dot_product_attention(q, k, v)


def attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each position attends to itself and to those before it, without a cache."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
