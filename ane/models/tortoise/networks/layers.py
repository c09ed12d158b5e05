"""Define layers that several of Tortoise's networks share (upstream models/arch_util.py, xtransformers.py).

Tensors are (B, C, T) unless a docstring says otherwise.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCORES = 2**20  # number of attention scores per step on the CPU: 2 MB, which fit into a core's cache


class GroupNorm(nn.GroupNorm):
    """Group normalisation in float32, whatever the dtype of its input: (…, C, …, T) → (…, C, …, T)."""

    def __init__(self, channels: int):
        groups = 8 if channels <= 16 else 16 if channels <= 64 else 32
        while channels % groups:
            groups //= 2
        super().__init__(groups, channels, eps=1e-5)
        self.two_pass = False  # whether to compute the variance after the mean, which is slower but more exact

    def forward(self, x: Tensor) -> Tensor:
        if self.two_pass:
            return self._two_pass(x)
        if x.device.type == "cpu":
            return super().forward(x)  # the CPU kernel sums in float32 if the parameters are float32
        return super().forward(x.float()).to(x.dtype)

    def _two_pass(self, x: Tensor) -> Tensor:
        """Normalise x in two passes: first compute the mean, then the variance from the differences to the mean.

        torch (channels last) and ONNX compute the variance as E[x²] − E[x]². That formula loses precision if x hardly
        varies, as in the unconditional row of guidance. With random weights, the formula has an SNR of 68 dB, and the
        two passes of this method have an SNR of 102 dB.
        """
        groups = x.float().reshape(x.shape[0], self.num_groups, -1)
        centred = groups - groups.mean(dim=-1, keepdim=True)
        y = centred * torch.rsqrt((centred * centred).mean(dim=-1, keepdim=True) + self.eps)
        weight, bias = (part.view(-1, *[1] * (x.ndim - 2)) for part in (self.weight, self.bias))
        return (y.reshape(x.shape) * weight + bias).to(x.dtype)


class RelativePositionBias(nn.Module):
    """T5's bidirectional bias for attention scores. It depends on the distance q − k (Raffel et al. 2020).

    There are 32 buckets of distances. From distance 8 to distance 64, they are spaced logarithmically.
    """

    buckets, exact, furthest = 16, 8, 64  # per direction; each distance below `exact` has a separate bucket

    def __init__(self, heads: int, scale: float):
        super().__init__()
        self.scale = scale
        self.relative_attention_bias = nn.Embedding(2 * self.buckets, heads)
        self.kept: tuple[int, torch.dtype, Tensor] | None = (
            None  # length, dtype and bias of the last call in inference mode
        )

    def forward(self, length: int, dtype: torch.dtype) -> Tensor:
        """Return the bias of attention scores, (heads, length, length), indexed by head, query and key.

        On a GPU, the module caches its last result, because each layer would otherwise launch a kernel to compute it
        again.
        """
        if self.relative_attention_bias.weight.device.type == "cpu":
            return self.last_query_first(length, dtype).flip(1)
        return self._kept(length, dtype, lambda: self.computed(length, dtype).unfold(1, length, 1).flip(1))

    def last_query_first(self, length: int, dtype: torch.dtype) -> Tensor:
        """Return the rows of ``forward`` in reverse order, as views into ``by_distance``, which take no memory."""
        return self.by_distance(length, dtype).unfold(1, length, 1)

    def by_distance(self, length: int, dtype: torch.dtype) -> Tensor:
        """Return the biases (heads, 2·length − 1) for the distances q − k from length − 1 down to 1 − length.

        In inference mode, the method caches its last result, because all steps of a diffusion have the same length.
        """
        return self._kept(length, dtype, lambda: self.computed(length, dtype))

    def _kept(self, length: int, dtype: torch.dtype, compute: Callable[[], Tensor]) -> Tensor:
        kept = self.kept  # read the attribute once, because another thread may replace it
        if kept is not None and kept[:2] == (length, dtype) and torch.is_inference_mode_enabled():
            return kept[2]
        bias = compute()
        self.kept = (length, dtype, bias) if torch.is_inference_mode_enabled() else None
        return bias

    def computed(self, length: int, dtype: torch.dtype) -> Tensor:
        """Compute the result of ``by_distance``."""
        weight = self.relative_attention_bias.weight
        offset = torch.arange(length - 1, -length, -1, device=weight.device)  # q − k, (2·length − 1,)
        distance = offset.abs()
        log = torch.log(distance.clamp(min=1).float() / self.exact) / math.log(self.furthest / self.exact)
        log_bucket = (self.exact + (log * (self.buckets - self.exact)).long()).clamp(max=self.buckets - 1)
        bucket = torch.where(distance < self.exact, distance, log_bucket) + self.buckets * (offset < 0)
        return (weight[bucket].T.float() * self.scale).to(dtype)


def exact_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention in upstream's order of operations. q, k, v and the result are (B, heads, width, T).

    The function stores all scores. Use this function for the encoders, which run once on short sequences. With random
    weights, another order of operations would change the decoder's voice latent by ten times upstream's rounding error.
    """
    scale = q.shape[-2] ** -0.25
    scores = (q * scale).transpose(-1, -2) @ (k * scale)
    return v @ torch.softmax(scores.float(), dim=-1).to(v.dtype).transpose(-1, -2)


class AttentionBlock(nn.Module):
    """Residual attention over time: (B, C, T) → (B, C, T).

    The output channels of ``qkv`` are q, k and v of the first head, then q, k and v of the second head, and so on
    (upstream: QKVAttentionLegacy).
    """

    normalisation, projection = GroupNorm, nn.Conv1d

    def __init__(self, channels: int, heads: int, relative: bool = False):
        super().__init__()
        self.heads = heads
        self.norm = self.normalisation(channels)
        self.qkv = self.projection(channels, 3 * channels, 1)
        self.proj_out = self.projection(channels, channels, 1)
        self.relative_pos_embeddings = RelativePositionBias(heads, math.sqrt(channels // heads)) if relative else None

    def forward(self, x: Tensor) -> Tensor:
        B, C, T = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, self.heads, 3, C // self.heads, T).unbind(2)
        if self.relative_pos_embeddings is None:
            y = exact_attention(q, k, v)
        else:  # make channels contiguous, because torch would otherwise use a kernel that stores all scores
            q, k, v = (part.transpose(-1, -2).contiguous() for part in (q, k, v))
            bias = self.relative_pos_embeddings(T, q.dtype)[None]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(-1, -2)
        return x + self.proj_out(y.reshape(B, C, T))


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last axis: x / max(‖x‖ / √d, 1e-8) · g."""

    float32 = True  # its parameter stays float32 in every precision

    def __init__(self, width: int):
        super().__init__()
        self.g = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        norm = wide.norm(dim=-1, keepdim=True) * wide.shape[-1] ** -0.5
        return (wide / norm.clamp(min=1e-8) * self.g).to(x.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute attention with q, k, v (B, heads, T, width) and a bias (heads, T, T) that is added to the scores.

    Returns (B, T, heads · width).
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and not torch.cpu._is_amx_tile_supported():
        return attention_in_blocks(q, k, v, bias)
    mask = None if bias is None else bias[None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


def relative_attention(q: Tensor, k: Tensor, v: Tensor, bias: nn.Module, length: int) -> Tensor:
    """Run ``attention`` over ``length`` positions with a ``RelativePositionBias``.

    During a conversion, ``bias`` can be a module that takes the place of the ``RelativePositionBias``.
    """
    if q.device.type != "cpu" or not isinstance(bias, RelativePositionBias):
        return attention(q, k, v, bias(length, q.dtype))
    # In reverse order of the queries, the bias is a view into few numbers. So attention over 400 frames takes a third
    # less time, in float32 and also in bfloat16 if the CPU has AMX.
    return attention(q.flip(2), k, v, bias.last_query_first(length, q.dtype)).flip(1)


def attention_in_blocks(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Run ``attention`` for a few heads at a time, so that the scores of all heads are never stored together.

    Use this function for bfloat16 on a CPU without AMX, where it takes half as long as torch's kernel. On a CPU with
    AMX, it takes twice as long.
    """
    B, heads, T, width = q.shape
    q, k, v = (x.contiguous() for x in (q, k, v))  # otherwise every product would copy them
    bias = q.new_zeros(1, 1, 1).expand(heads, 1, 1) if bias is None else bias
    block = max(1, min(heads, SCORES // T**2))
    out = q.new_empty(B, T, heads, width)
    for first in range(0, heads, block):
        part = slice(first, first + block)
        for row in range(B):
            scores = torch.baddbmm(bias[part], q[row, part], k[row, part].transpose(1, 2), alpha=width**-0.5)
            out[row, :, part] = (F.softmax(scores, dim=-1) @ v[row, part]).transpose(0, 1)
    return out.flatten(2)


class RotaryAttention(nn.Module):
    """Bidirectional attention over (B, T, width) with rotary position embeddings.

    A head has 64 channels. The layer rotates the first 32 channels of q, of k and also of v.
    """

    head_width, rotated = 64, 32
    attention_dtype: torch.dtype | None = None  # dtype to which q, k and v are cast; None leaves their dtype

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        inner = heads * self.head_width
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_k = nn.Linear(width, inner, bias=False)
        self.to_v = nn.Linear(width, inner, bias=False)
        self.to_out = nn.Linear(inner, width)

    def forward(self, x: Tensor, angle: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (
            self.rotate(project(x).view(B, T, self.heads, -1).transpose(1, 2), angle).to(
                self.attention_dtype or x.dtype
            )
            for project in (self.to_q, self.to_k, self.to_v)
        )
        return self.to_out(attention(q, k, v))

    def rotate(self, x: Tensor, angle: Tensor) -> Tensor:
        """Apply the rotary position embedding (Su et al. 2021) to x (B, heads, T, 64) with angles (T, 32)."""
        to_rotate, rest = x.split((self.rotated, self.head_width - self.rotated), dim=-1)
        first, second = to_rotate.float().chunk(2, dim=-1)
        rotated = to_rotate * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()
        return torch.cat((rotated.to(x.dtype), rest), dim=-1)


class GatedFeedForward(nn.Module):
    """A feed-forward layer with GEGLU (Shazeer 2020): Linear(x · GELU(gate)). Its keys are net.0.proj and net.3."""

    def __init__(self, width: int):
        super().__init__()
        gate = nn.Module()
        gate.proj = nn.Linear(width, 4 * width)
        self.net = nn.ModuleDict({"0": gate, "3": nn.Linear(2 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.net["0"].proj(x).chunk(2, dim=-1)
        return self.net["3"](x * F.gelu(gate))


class Wrap(nn.Module):
    """Adds ``wrap.`` to the keys of a block, like the module with which upstream wraps CLVP's blocks in training."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.wrap = block

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.wrap(*inputs)


class RotaryEncoder(nn.Module):
    """The encoder of x-transformers with the options that CLVP uses: (B, T, width) → (B, T, width)."""

    def __init__(self, width: int, depth: int, heads: int):
        super().__init__()

        def layer(block: nn.Module) -> nn.ModuleList:
            return nn.ModuleList([nn.ModuleList([RMSNorm(width)]), Wrap(block)])

        self.attn_layers = nn.Module()
        self.attn_layers.layers = nn.ModuleList(
            layer(block) for _ in range(depth) for block in (RotaryAttention(width, heads), GatedFeedForward(width))
        )
        self.attn_layers.rotary_pos_emb = nn.Module()
        exponent = torch.arange(0, RotaryAttention.rotated, 2).float() / RotaryAttention.rotated
        self.attn_layers.rotary_pos_emb.register_buffer("inv_freq", 10000.0**-exponent)
        self.norm = nn.LayerNorm(width, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        frequency = self.attn_layers.rotary_pos_emb.inv_freq.float()
        angle = torch.arange(x.shape[1], device=x.device).float()[:, None] * frequency
        angle = torch.cat((angle, angle), dim=-1)  # (T, 32)
        for index, ((norm,), block) in enumerate(self.attn_layers.layers):
            x = x + (block(norm(x), angle) if index % 2 == 0 else block(norm(x)))
        return self.norm(x.float()).to(x.dtype)
