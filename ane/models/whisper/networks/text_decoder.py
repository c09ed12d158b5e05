"""Whisper's decoder: tokens so far and a window's states to the next token (openai/whisper model.py).

Its input is a sequence of columns (B, T, D), token embeddings with positions added, looked up outside the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ane.backends.base import DecoderShape
from ane.bundles.family import Config
from ane.models.whisper.alignment_heads import check_alignment_heads
from ane.models.whisper.networks.layers import (
    CastingLinear,
    CrossAttend,
    SelfAttend,
    WhisperAttention,
    attend_causally,
    feed_forward,
)


@dataclass(frozen=True)
class WhisperDecoderConfig(Config):
    """Sizes of the decoder under OpenAI's names; the defaults are those of "base"."""

    n_vocab: int = 51865
    n_audio_ctx: int = 1500         # states of a window, to which every token attends
    n_text_ctx: int = 448           # tokens of a sequence
    n_text_state: int = 512
    n_text_head: int = 8
    n_text_layer: int = 6
    alignment_heads: tuple[tuple[int, int], ...] = ()       # (layer, head) by which words are timed, where known

    split_widths: ClassVar = (("n_text_state", "n_text_head"),)

    def check(self, where: str) -> None:
        super().check(where)
        check_alignment_heads(self.alignment_heads, self.n_text_layer, self.n_text_head, where)

    @property
    def decoder_shape(self) -> DecoderShape:
        return DecoderShape(self.n_text_layer, self.n_text_head, self.n_text_state // self.n_text_head,
                            self.n_text_state, self.n_vocab, memory_length=self.n_audio_ctx)


class WhisperDecoderBlock(nn.Module):
    """Pre-norm transformer block with cross-attention; the residual stream keeps the precision of its input."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attn = WhisperAttention(width, heads)
        self.attn_ln = nn.LayerNorm(width)
        self.cross_attn = WhisperAttention(width, heads)
        self.cross_attn_ln = nn.LayerNorm(width)
        self.mlp = feed_forward(width)
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor, attend: SelfAttend, cross_attend: CrossAttend) -> Tensor:
        x = x + self.attn(self.attn_ln(x), attend)
        x = x + self.cross_attn.cross(self.cross_attn_ln(x), cross_attend)
        return x + self.mlp(self.mlp_ln(x))


class WhisperDecoder(nn.Module):
    """Columns (B, T, D) → hidden (B, T, D) → logits (B, T, V)."""

    def __init__(self, config: WhisperDecoderConfig):
        super().__init__()
        self.config = config
        D = config.n_text_state
        # looked up outside, it is here the output layer, which shares its weight
        self.token_embedding = CastingLinear(D, config.n_vocab, bias=False)
        self.positional_embedding = nn.Parameter(torch.empty(config.n_text_ctx, D))
        self.blocks = nn.ModuleList(WhisperDecoderBlock(D, config.n_text_head) for _ in range(config.n_text_layer))
        self.ln = nn.LayerNorm(D)

    def forward(self, x: Tensor, attend: Sequence[SelfAttend] | None, cross_attend: Sequence[CrossAttend]) -> Tensor:
        """Columns → hidden, (B, T, D) each; ``attend`` and ``cross_attend`` have a function for each layer (None:
        causal, no cache)."""
        for index, block in enumerate(self.blocks):
            x = block(x, attend[index] if attend else attend_causally, cross_attend[index])
        return self.ln(x)

    def memory(self, states: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The encoder's states (B, n_audio_ctx, D) → keys and values of each layer's cross-attention."""
        return [block.cross_attn.keys_values(states) for block in self.blocks]

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, V) float32."""
        return self.token_embedding(hidden).float()
