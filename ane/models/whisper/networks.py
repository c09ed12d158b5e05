"""Define Whisper's networks for inference, with OpenAI's parameter names (openai/whisper model.py).

Tensors are (B, T, D). The encoder turns the log-mel spectrogram of a window into states, one per 20 ms. The decoder
turns the states and the tokens so far into logits of the next token. Its input is a sequence of columns. A column is
the sum of a token's and a position's embedding, which the host looks up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.backends.decoding import DecoderShape
from ane.bundles.family import Config, Network
from ane.models.whisper.alignment_heads import check_alignment_heads

# A function that computes self-attention from q, k and v. Arguments and result are (B, heads, T, head_width).
SelfAttend = Callable[[Tensor, Tensor, Tensor], Tensor]
# A function that computes cross-attention from q to keys and values that it holds. q and the result are
# (B, heads, T, head_width).
CrossAttend = Callable[[Tensor], Tensor]


class CastingLinear(nn.Linear):
    """A linear layer that converts its input to the precision of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


class WhisperAttention(nn.Module):
    """The linear layers of multi-head attention. The layer for keys has no bias."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = CastingLinear(width, width)
        self.key = CastingLinear(width, width, bias=False)
        self.value = CastingLinear(width, width)
        self.out = CastingLinear(width, width)

    def forward(self, x: Tensor, attend: SelfAttend) -> Tensor:
        """Apply self-attention: (B, T, D) → (B, T, D)."""
        return self.out(merge_heads(attend(self.split_heads(self.query(x)), *self.keys_values(x))))

    def cross(self, x: Tensor, attend: CrossAttend) -> Tensor:
        """Apply cross-attention with ``attend``, which has the memory's keys and values: (B, T, D) → (B, T, D)."""
        return self.out(merge_heads(attend(self.split_heads(self.query(x)))))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project x (B, T, D) to keys and values, each (B, heads, T, head_width)."""
        return self.split_heads(self.key(x)), self.split_heads(self.value(x))

    def split_heads(self, x: Tensor) -> Tensor:
        """Reshape (B, T, D) to (B, heads, T, head_width)."""
        B, T, D = x.shape
        return x.view(B, T, self.heads, D // self.heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Reshape (B, heads, T, head_width) to (B, T, D), the inverse of ``split_heads``."""
    B, heads, T, width = x.shape
    return x.transpose(1, 2).reshape(B, T, heads * width)


def feed_forward(width: int) -> nn.Sequential:
    """Build two linear layers with the exact GELU between them. In checkpoints, these layers have the keys 0 and 2."""
    return nn.Sequential(CastingLinear(width, 4 * width), nn.GELU(), CastingLinear(4 * width, width))


def attend_to_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention in which every position attends to all positions, even to silence."""
    return F.scaled_dot_product_attention(q, k, v)


@dataclass(frozen=True)
class WhisperEncoderConfig(Config):
    """Sizes of the encoder, with OpenAI's names. The defaults are the sizes of the model "base"."""

    n_mels: int = 80
    n_audio_ctx: int = 1500  # number of encoder states per window, which is half the number of its mel frames
    n_audio_state: int = 512
    n_audio_head: int = 8
    n_audio_layer: int = 6

    split_widths: ClassVar = (("n_audio_state", "n_audio_head"),)


class WhisperEncoderBlock(nn.Module):
    """A pre-norm transformer block. The residual stream is float32."""

    # Names of the modules, for the CPU kernel that computes the whole block in one call
    # (``ane.backends.torch.kernel_encoder``).
    encoder_parts = (
        *("attn_ln", "attn.query", "attn.key", "attn.value", "attn.out"),
        *("mlp_ln", "mlp.0", "mlp.1", "mlp.2"),
    )

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attn = WhisperAttention(width, heads)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = feed_forward(width)
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x), attend_to_all)
        return x + self.mlp(self.mlp_ln(x))


class WhisperEncoder(nn.Module):
    """The encoder: mel (B, n_mels, 2 · n_audio_ctx) → states (B, n_audio_ctx, n_audio_state) float32.

    ``positional_embedding`` holds sinusoids, which are loaded from the checkpoint.
    """

    packs_layers = True  # whether the CPU backend may pack the weights of linear layers, for bf16 and int8

    def __init__(self, config: WhisperEncoderConfig):
        super().__init__()
        self.config = config
        D = config.n_audio_state
        self.conv1 = nn.Conv1d(config.n_mels, D, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(D, D, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.empty(config.n_audio_ctx, D))
        self.blocks = nn.ModuleList(WhisperEncoderBlock(D, config.n_audio_head) for _ in range(config.n_audio_layer))
        self.ln_post = nn.LayerNorm(D)

    def forward(self, mel: Tensor) -> Tensor:
        """Encode the mels of windows, (B, n_mels, 2 · n_audio_ctx), to states.

        Raises:
            ValueError: ``mel`` has another number of frames.
        """
        if mel.shape[-1] != 2 * self.config.n_audio_ctx:
            raise ValueError(f"mel must have {2 * self.config.n_audio_ctx} frames, got {mel.shape[-1]}")
        x = F.gelu(self.conv1(mel.to(self.conv1.weight.dtype)))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        x = x.float() + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


@dataclass(frozen=True)
class WhisperDecoderConfig(Config):
    """Sizes of the decoder, with OpenAI's names. The defaults are the sizes of the model "base"."""

    n_vocab: int = 51865
    n_audio_ctx: int = 1500  # number of encoder states per window; every token attends to all states
    n_text_ctx: int = 448  # largest number of tokens in a sequence
    n_text_state: int = 512
    n_text_head: int = 8
    n_text_layer: int = 6
    alignment_heads: tuple[tuple[int, int], ...] = ()  # heads that time words, as (layer, head)

    split_widths: ClassVar = (("n_text_state", "n_text_head"),)

    def check(self, where: str) -> None:
        super().check(where)
        check_alignment_heads(self.alignment_heads, self.n_text_layer, self.n_text_head, where)

    @property
    def decoder_shape(self) -> DecoderShape:
        return DecoderShape(
            self.n_text_layer,
            self.n_text_head,
            self.n_text_state // self.n_text_head,
            self.n_text_state,
            self.n_vocab,
            memory_length=self.n_audio_ctx,
        )


class WhisperDecoderBlock(nn.Module):
    """A pre-norm transformer block with cross-attention. The residual stream keeps the precision of its input."""

    # Names of a norm, a linear layer and a GELU (or None), for the CPU kernel that computes all three in one call
    # (``ane.backends.torch.kernels``).
    joins = (
        ("attn_ln", "attn.query", None),
        ("attn_ln", "attn.key", None),
        ("attn_ln", "attn.value", None),
        (None, "attn.out", None),
        ("cross_attn_ln", "cross_attn.query", None),
        (None, "cross_attn.out", None),
        ("mlp_ln", "mlp.0", "mlp.1"),
        (None, "mlp.2", None),
    )

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
    """The decoder: columns (B, T, D) → hidden states (B, T, D) → logits (B, T, V)."""

    def __init__(self, config: WhisperDecoderConfig):
        super().__init__()
        self.config = config
        D = config.n_text_state
        # This is the output layer. It has the same weight as the token embedding, which the host looks up.
        self.token_embedding = CastingLinear(D, config.n_vocab, bias=False)
        self.positional_embedding = nn.Parameter(torch.empty(config.n_text_ctx, D))
        self.blocks = nn.ModuleList(WhisperDecoderBlock(D, config.n_text_head) for _ in range(config.n_text_layer))
        self.ln = nn.LayerNorm(D)

    def forward(self, x: Tensor, attend: Sequence[SelfAttend] | None, cross_attend: Sequence[CrossAttend]) -> Tensor:
        """Compute the hidden states (B, T, D) of columns (B, T, D).

        Args:
            x: Columns.
            attend: One self-attention function per layer. ``None`` means causal attention without a cache.
            cross_attend: One cross-attention function per layer.
        """
        causal = partial(F.scaled_dot_product_attention, is_causal=True)
        for index, block in enumerate(self.blocks):
            x = block(x, attend[index] if attend else causal, cross_attend[index])
        return self.finish(x)

    def finish(self, x: Tensor) -> Tensor:
        """Compute the hidden states from the output of the last block: (B, T, D) → (B, T, D)."""
        return self.ln(x)

    def memory(self, states: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Compute the keys and values of each layer's cross-attention from states (B, n_audio_ctx, D)."""
        return [block.cross_attn.keys_values(states) for block in self.blocks]

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits (…, V) float32 from hidden states (…, D)."""
        return self.token_embedding(hidden).float()


WHISPER_NETWORKS = {
    network.name: network
    for network in (
        Network(
            "encoder",
            WhisperEncoder,
            WhisperEncoderConfig,
            "model.safetensors",
            prefix="encoder.",
            half_precision=True,
            quantised=True,
            compressed=True,
        ),
        Network(
            "decoder",
            WhisperDecoder,
            WhisperDecoderConfig,
            "model.safetensors",
            prefix="decoder.",
            half_precision=True,
            quantised=True,
            compressed=True,
        ),
    )
}
