"""Define UnifiedVoice, the GPT-2 that turns a voice and text into mel codes (upstream models/autoregressive.py).

Its input is a sequence of columns (embeddings), (B, T, D): first the voice, then the text, then the codes. The host
looks up the embeddings and adds position embeddings. The output at a column predicts the code after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.backends.decoding import DecoderShape
from ane.bundles.family import Config
from ane.system.errors import UserError

# A function that computes attention between columns, with or without a cache. It takes q, k and v, and returns the
# result. All are (B, heads, T, head_width).
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


# Names of config fields that hold ids of text tokens, and ids of codes.
TEXT_TOKENS = ("start_text_token", "stop_text_token")
CODES = ("start_mel_token", "stop_mel_token", "calm_token", "tail_tokens")


@dataclass(frozen=True)
class UnifiedVoiceConfig(Config):
    layers: int = 30
    model_dim: int = 1024
    heads: int = 16
    max_mel_tokens: int = 604
    max_text_tokens: int = 402
    max_conditioning_inputs: int = 2
    number_text_tokens: int = 255
    start_text_token: int = 255
    stop_text_token: int = 0
    number_mel_codes: int = 8194
    start_mel_token: int = 8192
    stop_mel_token: int = 8193
    calm_token: int = 83  # the code that stands for silence
    calm_run: int = 8  # largest number of silent codes in a row before the latents are cut (upstream api.py)
    tail_tokens: tuple[int, ...] = (45, 45, 248)  # replace the last codes of the padded array (upstream api.py)
    # Attention heads whose attention times words, as (layer, head, delay in codes). If there are none, word_times.py
    # chooses heads for each chunk. The second field is a number of codes that is added to every time.
    alignment_heads: tuple[tuple[int, int, int], ...] = ()
    alignment_shift: float = 0.0

    without_effect: ClassVar[frozenset[str]] = frozenset(("alignment_heads", "alignment_shift"))
    split_widths: ClassVar = (("model_dim", "heads"),)
    identifiers: ClassVar[frozenset[str]] = frozenset((*TEXT_TOKENS, *CODES))

    def check(self, where: str) -> None:
        super().check(where)
        for names, highest in ((TEXT_TOKENS, self.number_text_tokens), (CODES, self.number_mel_codes - 1)):
            for name in names:
                value = getattr(self, name)
                if not all(0 <= token <= highest for token in (value if isinstance(value, tuple) else (value,))):
                    raise UserError(
                        f"{where}: {name} must be from 0 to {highest}, because the decoder has no other embeddings, "
                        f"got {list(value) if isinstance(value, tuple) else value}"
                    )
        for found in self.alignment_heads:
            if not isinstance(found, tuple) or len(found) != 3 or not all(type(item) is int for item in found):
                raise UserError(f"{where}: alignment_heads must be a list of [layer, head, delay], not {found!r}")
            if not (0 <= found[0] < self.layers and 0 <= found[1] < self.heads):
                raise UserError(
                    f"{where}: alignment_heads names head {found[1]} of layer {found[0]}, which the decoder lacks"
                )

    @property
    def text_positions(self) -> int:
        return self.max_text_tokens + 2

    @property
    def decoder_shape(self) -> DecoderShape:
        return DecoderShape(
            self.layers, self.heads, self.model_dim // self.heads, self.model_dim, self.number_mel_codes
        )

    @property
    def code_positions(self) -> int:
        return self.max_mel_tokens + 2 + self.max_conditioning_inputs


class Conv1D(nn.Module):
    """GPT-2's linear layer, whose weight is transposed."""

    weight_layout = "(in, out)"  # nn.Linear stores (out, in)

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight.T, self.bias)


class Linear(nn.Linear):
    """A linear layer that converts its input to the precision of its weight, as ``Conv1D`` does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


class Attention(nn.Module):
    def __init__(self, config: UnifiedVoiceConfig):
        super().__init__()
        self.heads = config.heads
        self.c_attn = Conv1D(config.model_dim, 3 * config.model_dim)
        self.c_proj = Conv1D(config.model_dim, config.model_dim)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        """Project x (B, T, D) to q, k and v, call ``attend``, and project the result. Returns (B, T, D)."""
        return self.c_proj(attend(*self.heads_of(x)).transpose(1, 2).reshape(x.shape))

    def heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x (B, T, D) to q, k and v, each (B, heads, T, head_width)."""
        B, T, D = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        return q, k, v


class MLP(nn.Module):
    def __init__(self, config: UnifiedVoiceConfig):
        super().__init__()
        self.c_fc = Conv1D(config.model_dim, 4 * config.model_dim)
        self.act = nn.GELU("tanh")
        self.c_proj = Conv1D(4 * config.model_dim, config.model_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


class Block(nn.Module):
    """A transformer block with pre-layer normalisation. The residual stream keeps the precision of its input."""

    # Names of a norm (or None), a linear layer, and an activation (or None). One kernel of
    # ``ane.backends.torch.kernels`` can compute all three together.
    joins = (
        ("ln_1", "attn.c_attn", None),
        (None, "attn.c_proj", None),
        ("ln_2", "mlp.c_fc", "mlp.act"),
        (None, "mlp.c_proj", None),
    )

    def __init__(self, config: UnifiedVoiceConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.model_dim, eps=1e-5)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.model_dim, eps=1e-5)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        x = x + self.attn(self.ln_1(x), attend)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config: UnifiedVoiceConfig):
        super().__init__()
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.model_dim, eps=1e-5)


class PositionTable(nn.Module):
    def __init__(self, positions: int, width: int):
        super().__init__()
        self.emb = nn.Embedding(positions, width)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend without a cache: each position attends to itself and to all earlier positions."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class UnifiedVoice(nn.Module):
    """The decoder: columns (B, T, D) → hidden states (B, T, D) → logits (B, T, V).

    A hidden state is the output of GPT-2's ln_f, followed by ``final_norm``, as in upstream. A column's hidden
    state is the *latent* of the code that the column predicts. The diffusion and HiFi-GAN take latents as input.
    """

    def __init__(self, config: UnifiedVoiceConfig):
        super().__init__()
        self.config = config
        D = config.model_dim
        self.text_embedding = nn.Embedding(config.number_text_tokens + 1, D)
        self.mel_embedding = nn.Embedding(config.number_mel_codes, D)
        self.text_pos_embedding = PositionTable(config.text_positions, D)
        self.mel_pos_embedding = PositionTable(config.code_positions, D)
        self.gpt = GPT(config)
        self.final_norm = nn.LayerNorm(D, eps=1e-5)
        self.mel_head = Linear(D, config.number_mel_codes)

    def forward(self, x: Tensor, attend: Sequence[Attend] | None = None) -> Tensor:
        """Compute hidden states (B, T, D) from columns (B, T, D).

        ``attend`` holds one attention function per layer. ``None`` means ``causal`` for all layers.
        """
        for index, block in enumerate(self.gpt.h):
            x = block(x, attend[index] if attend else causal)
        return self.finish(x)

    @property
    def blocks(self) -> nn.ModuleList:
        return self.gpt.h

    def finish(self, x: Tensor) -> Tensor:
        """Compute hidden states from the output of the last block."""
        return self.final_norm(self.gpt.ln_f(x))

    def prefix_scores(self, x: Tensor, prefix: int, heads: Sequence[tuple[int, int]]) -> Tensor:
        """Compute the attention scores between the columns (inputs) after the prefix and the columns of the prefix.

        The method does not run layers after the last layer in ``heads``.

        Args:
            x: Columns, (1, T, D).
            prefix: Number of columns in the prefix.
            heads: Attention heads whose scores are returned, as (layer, head).

        Returns:
            Scores q·k / √head_width before the softmax, (heads, T − prefix, prefix) float32.
        """
        found: dict[tuple[int, int], Tensor] = {}
        last = max(layer for layer, _ in heads)

        def score(layer: int, q: Tensor, k: Tensor) -> None:
            for head in (head for one, head in heads if one == layer):
                found[layer, head] = q[0, head, prefix:].float() @ k[0, head, :prefix].float().T * q.shape[-1] ** -0.5

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            score(layer, q, k)
            return causal(q, k, v)

        for layer in range(last):
            x = self.gpt.h[layer](x, partial(attend, layer))
        block = self.gpt.h[last]
        q, k, _ = block.attn.heads_of(block.ln_1(x))
        score(last, q, k)
        return torch.stack([found[layer, head] for layer, head in heads])

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits (…, V) float32 from hidden states (…, D)."""
        return self.mel_head(hidden).float()

    @staticmethod
    def unused(config: UnifiedVoiceConfig) -> dict[str, tuple[int, ...]]:
        """Return the keys and shapes of the head that predicts text.

        The official file has this head, but only training uses it.
        """
        rows = config.number_text_tokens + 1
        return {"text_head.weight": (rows, config.model_dim), "text_head.bias": (rows,)}
