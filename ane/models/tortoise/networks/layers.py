"""Blocks that several networks share (upstream models/arch_util.py, xtransformers.py).

Tensors are (B, C, T) unless stated otherwise.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCORES = 2**20      # attention scores computed at a time on the CPU: 2 MB, which fit in a core's cache


class ImageConv(nn.Conv1d):
    """A convolution in time (groups of 1, zeros beyond either end) of images: (B, C, 1, T) → (B, O, 1, T').

    As an image one pixel high, torch accepts a sequence with its channels last. oneDNN then reorders neither its
    input nor its output, which takes a tenth to two fifths of a float32 convolution's time.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().forward(x[:, :, 0])[:, :, None]
        return F.conv2d(x, self.weight[:, :, None], self.bias, (1, *self.stride), (0, *self.padding),
                        (1, *self.dilation))


class ImageConvTranspose(nn.ConvTranspose1d):
    """The same for a transposed convolution (no output padding): (B, C, 1, T) → (B, O, 1, T')."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().forward(x[:, :, 0])[:, :, None]
        return F.conv_transpose2d(x, self.weight[:, :, None], self.bias, (1, *self.stride), (0, *self.padding),
                                  dilation=(1, *self.dilation))


class GroupNorm(nn.GroupNorm):
    """Group normalisation computed in float32, whatever the dtype of its input."""

    def __init__(self, channels: int):
        groups = 8 if channels <= 16 else 16 if channels <= 64 else 32
        while channels % groups:
            groups //= 2
        super().__init__(groups, channels, eps=1e-5)
        self.two_pass = False       # True: by definition, slower and more exact

    def forward(self, x: Tensor) -> Tensor:
        if self.two_pass:
            return self._two_pass(x)
        if x.device.type == "cpu":
            return super().forward(x)       # torch sums in float32 there, given parameters in float32
        return super().forward(x.float()).to(x.dtype)

    def _two_pass(self, x: Tensor) -> Tensor:
        """torch (channels last) and ONNX compute the variance as E[x²] − E[x]², which cancels where x hardly varies,
        as in the unconditioned half of guidance: with random weights torch keeps 68 dB there, this method 102 dB."""
        groups = x.float().reshape(x.shape[0], self.num_groups, -1)
        centred = groups - groups.mean(dim=-1, keepdim=True)
        y = centred * torch.rsqrt((centred * centred).mean(dim=-1, keepdim=True) + self.eps)
        weight, bias = (part.view(-1, *[1] * (x.ndim - 2)) for part in (self.weight, self.bias))
        return (y.reshape(x.shape) * weight + bias).to(x.dtype)


class RelativePositionBias(nn.Module):
    """T5's bucketed bias over q − k, bidirectional: 32 buckets, log-spaced from 8 to 64 (Raffel et al. 2020)."""

    buckets, exact, furthest = 16, 8, 64      # for each direction; distances below `exact` have one bucket each

    def __init__(self, heads: int, scale: float):
        super().__init__()
        self.scale = scale
        self.relative_attention_bias = nn.Embedding(2 * self.buckets, heads)

    def forward(self, length: int, dtype: torch.dtype) -> Tensor:
        """Bias to add to the attention scores: (heads, length, length), indexed by query, key."""
        return self.by_distance(length, dtype).unfold(1, length, 1).flip(1)         # row i starts at distance i

    def by_distance(self, length: int, dtype: torch.dtype) -> Tensor:
        """(heads, 2·length − 1): for the distances length − 1, …, 1 − length."""
        weight = self.relative_attention_bias.weight
        distance = torch.arange(length - 1, -length, -1, device=weight.device)      # q − k, (2·length − 1,)
        far = distance.abs()
        log = torch.log(far.clamp(min=1).float() / self.exact) / math.log(self.furthest / self.exact)
        logged = (self.exact + (log * (self.buckets - self.exact)).long()).clamp(max=self.buckets - 1)
        bucket = torch.where(far < self.exact, far, logged) + self.buckets * (distance < 0)
        return (weight[bucket].T.float() * self.scale).to(dtype)


def exact_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that stores all scores, channels first as in upstream: (B, heads, width, T) each, and the result.

    For the short sequences of the encoders, which run once. The order of operations is upstream's: on random weights
    another order changes the decoder's conditioning latent by ten times upstream's own rounding.
    """
    scale = q.shape[-2] ** -0.25
    scores = (q * scale).transpose(-1, -2) @ (k * scale)
    return v @ torch.softmax(scores.float(), dim=-1).to(v.dtype).transpose(-1, -2)


def flash_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The same with ``bias`` (heads, T, T) added to the scores, which are never stored."""
    # contiguous in channels, else torch falls back to storing them
    q, k, v = (x.transpose(-1, -2).contiguous() for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None]).transpose(-1, -2)


class AttentionBlock(nn.Module):
    """Normalise, attend over time, project, add. Heads are split before q, k and v (QKVAttentionLegacy)."""

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
        bias = self.relative_pos_embeddings
        y = exact_attention(q, k, v) if bias is None else flash_attention(q, k, v, bias(T, q.dtype))
        return x + self.proj_out(y.reshape(B, C, T))


class RMSNorm(nn.Module):
    """x / max(‖x‖ / √d, 1e-8) · g."""

    float32 = True      # its parameter stays float32 in every precision

    def __init__(self, width: int):
        super().__init__()
        self.g = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        norm = wide.norm(dim=-1, keepdim=True) * wide.shape[-1] ** -0.5
        return (wide / norm.clamp(min=1e-8) * self.g).to(x.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """(B, heads, T, width) each, a bias (heads, T, T) on the scores → (B, T, heads · width)."""
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        return attention_in_blocks(q, k, v, bias)
    mask = None if bias is None else bias[None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


def attention_in_blocks(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same, storing the scores of a few heads at a time.

    For bfloat16 on the CPU, where torch's own kernel takes twice as long because its products are not oneDNN's.
    """
    B, heads, T, width = q.shape
    bias = q.new_zeros(1, 1, 1).expand(heads, 1, 1) if bias is None else bias
    block = max(1, min(heads, SCORES // T**2))
    out = q.new_empty(B, T, heads, width)
    for first in range(0, heads, block):
        some = slice(first, first + block)
        for row in range(B):
            scores = torch.baddbmm(bias[some], q[row, some], k[row, some].transpose(1, 2), alpha=width ** -0.5)
            out[row, :, some] = (F.softmax(scores, dim=-1) @ v[row, some]).transpose(0, 1)
    return out.flatten(2)


class RotaryAttention(nn.Module):
    """Bidirectional attention over (B, T, width); the first 32 of 64 channels a head are rotated in q, k *and* v."""

    head_width, rotated = 64, 32

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
        q, k, v = (self.rotate(project(x).view(B, T, self.heads, -1).transpose(1, 2), angle)
                   for project in (self.to_q, self.to_k, self.to_v))                # (B, heads, T, 64)
        return self.to_out(attention(q, k, v))

    def rotate(self, x: Tensor, angle: Tensor) -> Tensor:
        turned, rest = x.split((self.rotated, self.head_width - self.rotated), dim=-1)
        first, second = turned.float().chunk(2, dim=-1)
        turned = turned * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()
        return torch.cat((turned.to(x.dtype), rest), dim=-1)


class GatedFeedForward(nn.Module):
    """Linear(x · GELU(gate)) (Shazeer 2020, GEGLU), with upstream's key names net.0.proj and net.3."""

    def __init__(self, width: int, multiple: int):
        super().__init__()
        gate = nn.Module()
        gate.proj = nn.Linear(width, 2 * multiple * width)
        self.net = nn.ModuleDict({"0": gate, "3": nn.Linear(multiple * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.net["0"].proj(x).chunk(2, dim=-1)
        return self.net["3"](x * F.gelu(gate))


class Wrap(nn.Module):
    """Adds ``wrap.`` to a block's keys, as CLVP's checkpointing wrapper does."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.wrap = block

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.wrap(*inputs)


class RotaryEncoder(nn.Module):
    """x-transformers' encoder as CLVP and CVVP use it: (B, T, width) → (B, T, width)."""

    def __init__(self, width: int, depth: int, heads: int, multiple: int, wrapped: bool):
        super().__init__()

        def layer(block: nn.Module) -> nn.ModuleList:
            return nn.ModuleList([nn.ModuleList([RMSNorm(width)]), Wrap(block) if wrapped else block])

        self.attn_layers = nn.Module()
        self.attn_layers.layers = nn.ModuleList(
            layer(block) for _ in range(depth)
            for block in (RotaryAttention(width, heads), GatedFeedForward(width, multiple)))
        self.attn_layers.rotary_pos_emb = nn.Module()
        exponent = torch.arange(0, RotaryAttention.rotated, 2).float() / RotaryAttention.rotated
        self.attn_layers.rotary_pos_emb.register_buffer("inv_freq", 10000.0 ** -exponent)
        self.norm = nn.LayerNorm(width, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        frequency = self.attn_layers.rotary_pos_emb.inv_freq.float()
        angle = torch.arange(x.shape[1], device=x.device).float()[:, None] * frequency
        angle = torch.cat((angle, angle), dim=-1)                                   # (T, 32)
        for index, ((norm,), block) in enumerate(self.attn_layers.layers):
            x = x + (block(norm(x), angle) if index % 2 == 0 else block(norm(x)))
        return self.norm(x.float()).to(x.dtype)
