"""Building blocks of the graphs, in the layout that the Neural Engine likes: (batch, channels, 1, sequence).

Weights are taken from the twin of a block in ``ane.models.tortoise.networks``: ``kernel`` is the one place that knows how each kind of
layer stores them. The principles that the blocks follow, cited by number below:

1. Channels first, rank 4, the long axis last: the engine pads the last axis to 64 bytes, so a singleton there costs 32
   times its memory. (Apple, "Deploying Transformers on the Apple Neural Engine", principle 1; coreai-models,
   neural_engine_rules.md.)
2. A linear layer is a 1×1 convolution: the engine is a convolution engine. (ml-ane-transformers, principle 1.)
3. No transposes, and no reshapes that touch the last axis: each is a full copy. (ml-ane-transformers, principle 3.)
4. The highest operation there is (layer_norm, softmax, gelu) rather than its parts. (coreai-models.)
5. Attention without the engine's fused operation, which may drop its mask when there are many queries: either one
   matmul for all heads, or head by head ``bchq,bkhc->bkhq``. Which one stays on the engine is for a measurement on a
   Mac to say. (ml-ane-transformers, principle 2; coreai-models.)
6. Masks are added, finite (−1e4) and come from the host; nothing in a graph compares, gathers or counts.
   (coreai-models.)
7. A residual stream is kept divided by a power of two, folded into the weights that write to it: trained networks have
   single channels of several thousand, whose squares overflow fp16 (65504). Norms do not see the scale, but for
   their eps, which is divided by its square. Exact, and no operation more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ane.models.tortoise.networks.autoregressive import Conv1D
from ane.models.tortoise.networks.conditioning import EqualLinear
from ane.models.tortoise.networks.layers import AttentionBlock, RelativePositionBias
from converters.coreml.graph import Style, Var, array, mb, spelt

MASKED = -1e4


def kernel(twin: nn.Module) -> tuple[np.ndarray, np.ndarray | None]:
    """Weight (out, in, 1, k) and bias (out,) of a layer, float32, whatever way it stores them."""
    if isinstance(twin, EqualLinear):
        return array(twin.weight)[:, :, None, None] * twin.scale, array(twin.bias) * twin.rate
    weight = array(twin.weight)
    if isinstance(twin, Conv1D):                        # GPT-2: (in, out)
        weight = weight.T[:, :, None, None]
    elif isinstance(twin, nn.Linear):                   # (out, in)
        weight = weight[:, :, None, None]
    elif isinstance(twin, nn.Conv1d | nn.ConvTranspose1d):      # (out, in, k); transposed: (in, out, k)
        weight = weight[:, :, None]
    else:
        raise TypeError(f"{type(twin).__name__} has no kernel")
    return weight, None if twin.bias is None else array(twin.bias)


def conv(s: Style, x: Var, weight: np.ndarray, bias: np.ndarray | None, name: str | None = None, **options) -> Var:
    """Convolution along the last axis (principles 1 and 2): (B, C, 1, S) → (B, O, 1, S'); no padding unless asked for.

    Args:
        weight: (O, C, 1, k) float32. bias: (O,) float32.
        options: of ``mb.conv``: pad_type, pad, strides, dilations.
    """
    given = {} if bias is None else {"bias": s.const(bias)}
    label = {"name": spelt(name)} if name else {}
    return mb.conv(x=x, weight=s.const(weight), pad_type=options.pop("pad_type", "valid"), **given, **label, **options)


def linear(s: Style, x: Var, twin: nn.Module, name: str | None = None, scale: float = 1.0) -> Var:
    """A twin of any linear kind, or a convolution of one column, its output times ``scale`` (principle 2)."""
    weight, bias = kernel(twin)
    return conv(s, x, weight * scale, None if bias is None else bias * scale, name)


def same_conv(s: Style, x: Var, twin: nn.Conv1d, name: str | None = None, scale: float = 1.0) -> Var:
    """A twin convolution with its own padding (zeros), stride and dilation: (B, C, 1, S) → (B, O, 1, S')."""
    weight, bias = kernel(twin)
    pad, = twin.padding
    return conv(s, x, weight * scale, None if bias is None else bias * scale, name, pad_type="custom",
                pad=[0, 0, pad, pad], strides=[1, *twin.stride], dilations=[1, *twin.dilation])


def scaled(s: Style, x: Var, factor: float) -> Var:
    return x if factor == 1 else mb.mul(x=x, y=s.dtype(factor))


def layer_norm(s: Style, x: Var, twin: nn.LayerNorm, name: str | None = None, scale: float = 1.0) -> Var:
    """Over channels: (B, C, 1, S). ``scale`` is that of ``x``, whose norm does not see it (principles 4 and 7).

    Its eps, 1e-8 after scaling, is 0 in fp16, which costs less (70 dB at a variance of 0.016, 83 at 0.3) than the
    smallest number there would (55 and 80). No column may be constant, then (``ane.backends.packaged.decoder.packed``).
    """
    def normalised(x: Var, dtype: type) -> Var:
        return mb.layer_norm(x=x, axes=[1], gamma=array(twin.weight).astype(dtype), beta=array(twin.bias).astype(dtype),
                             epsilon=dtype(twin.eps * scale * scale), **({"name": spelt(name)} if name else {}))

    return s.widened("norm", normalised, x)


@dataclass(frozen=True)
class Frames:
    """Which places of a bucket are of the sequence and which are padding, as inputs of a graph.

    Attributes:
        inside: (1, 1, 1, S): 1 inside the sequence, 0 in the padding.
        share: (1, 1, 1, S): inside divided by the number of places inside, so that a mean is a sum.
        mask: (1, 1, 1, S): 0 inside, −1e4 in the padding, to be added to the scores of keys.
        weight: (1, 1, 1, S): share times S, so that a mean over the places inside is a mean over the bucket. In fp16
            the share of a small square would be lost below 6e-8.
    """

    inside: Var
    share: Var
    mask: Var
    weight: Var

    @classmethod
    def of(cls, s: Style, inside: Var, share: Var) -> "Frames":
        mask = mb.mul(x=mb.sub(x=inside, y=s.dtype(1)), y=s.dtype(-MASKED))
        return cls(inside, share, mask, mb.mul(x=share, y=s.dtype(share.shape[3])))


MAGNIFIED = 16      # variances of group norms, whose eps would be lost below 6e-8 in fp16 when it has a stream's scale


def group_norm(s: Style, x: Var, twin: nn.GroupNorm, frames: Frames | None = None, scale: float = 1.0,
               modulation: tuple[Var, Var] | None = None, name: str | None = None) -> Var:
    """Over groups of channels and the places inside: (B, C, 1, S), never above rank 4 (principle 1).

    ``scale`` is that of the stream ``x`` (principle 7). ``modulation`` is a pair of (1, C, 1, 1): the result times
    1 + the first, plus the second.
    """
    B, C, _, S = x.shape
    grouped = (1, twin.num_groups, C // twin.num_groups, 1)

    def normalised(x: Var, dtype: type) -> Var:
        def given(value: Var) -> Var:
            return value if dtype is s.dtype else mb.cast(x=value, dtype="fp32")

        def mean(values: Var) -> Var:
            if frames is None:
                return mb.reduce_mean(x=values, axes=[2, 3], keep_dims=True)
            values = mb.mul(x=mb.reduce_mean(x=values, axes=[2], keep_dims=True), y=given(frames.weight))
            return mb.reduce_mean(x=values, axes=[3], keep_dims=True)

        gain, shift = (values.reshape(grouped).astype(dtype) for values in
                       (array(twin.weight) * MAGNIFIED ** 0.5, array(twin.bias)))
        if modulation is not None:
            more, besides = (mb.reshape(x=given(part), shape=grouped) for part in modulation)
            more = mb.add(x=more, y=dtype(1))
            gain, shift = mb.mul(x=more, y=gain), mb.add(x=mb.mul(x=more, y=shift), y=besides)
        x = mb.reshape(x=x, shape=(B, *grouped[1:3], S))
        centred = mb.sub(x=x, y=mean(x))
        variance = mb.mul(x=mean(mb.square(x=centred)), y=dtype(MAGNIFIED))
        spread = mb.rsqrt(x=variance, epsilon=dtype(twin.eps * scale * scale * MAGNIFIED))
        # the factors meet each other before the sequence: one product less of that size, and one rounding
        return mb.add(x=mb.mul(x=centred, y=mb.mul(x=spread, y=gain)), y=shift)

    y = s.widened("norm", normalised, x)
    return mb.reshape(x=y, shape=(B, C, 1, S), **({"name": spelt(name)} if name else {}))


def masked(scores: Var, mask: Var | None) -> Var:
    return scores if mask is None else mb.add(x=scores, y=mask)


def softmax(s: Style, x: Var, axis: int) -> Var:
    return s.widened("softmax", lambda x, _: mb.softmax(x=x, axis=axis), x)


def in_heads(x: Var, heads: int) -> Var:
    """(B, C, 1, S) → (B, heads, C / heads, S): the last axis stays (principle 3)."""
    B, C, _, S = x.shape
    return mb.reshape(x=x, shape=(B, heads, C // heads, S))


def together(x: Var) -> Var:
    """(B, heads, width, S) → (B, heads · width, 1, S)."""
    B, heads, width, S = x.shape
    return mb.reshape(x=x, shape=(B, heads * width, 1, S))


@dataclass(frozen=True)
class Pool:
    """Keys and values of earlier calls, one layer's: (1, heads, width, N slots) each."""

    keys: Var
    values: Var


def attention(s: Style, q: Var, k: Var, v: Var, heads: int, mask: Var | None, pool: Pool | None = None) -> Var:
    """Attention of the columns of a call to a pool of slots, and to each other (principles 5 and 6).

    Args:
        q, k, v: (B, C, 1, S), heads outermost in the channels; q carries the factor 1/√width already.
        mask: (1, 1, S or 1, N + S), added to the scores: row per query; the pool's slots first, then the columns.
            None: every column sees every other.

    Returns:
        (B, C, 1, S).
    """
    return (_by_matmul if s.heads == "matmul" else _by_einsum)(s, q, k, v, heads, mask, pool)


def _by_matmul(s: Style, q: Var, k: Var, v: Var, heads: int, mask: Var, pool: Pool | None) -> Var:
    """All heads at once; no transposes, the scores (B, heads, S, N + S) with the keys last."""
    q, k, v = (in_heads(x, heads) for x in (q, k, v))
    scores = mb.matmul(x=q, y=k, transpose_x=True)
    if pool is not None:
        scores = mb.concat(values=[mb.matmul(x=q, y=pool.keys, transpose_x=True), scores], axis=3)
    weight = softmax(s, masked(scores, mask), axis=3)
    if pool is None:
        return together(mb.matmul(x=v, y=weight, transpose_y=True))
    of_pool, of_columns = mb.split(x=weight, split_sizes=[pool.keys.shape[3], k.shape[3]], axis=3)
    return together(mb.add(x=mb.matmul(x=pool.values, y=of_pool, transpose_y=True),
                           y=mb.matmul(x=v, y=of_columns, transpose_y=True)))


def _by_einsum(s: Style, q: Var, k: Var, v: Var, heads: int, mask: Var, pool: Pool | None) -> Var:
    """Head by head, the scores (B, keys, 1, S) with the keys on the channel axis, where softmax is a column's own."""
    if s.heads != "einsum":
        raise ValueError(f"attention by {s.heads!r}: it is by matmul or by einsum")
    width = q.shape[1] // heads
    if mask is not None:
        mask = mb.transpose(x=mask, perm=(0, 3, 1, 2))                      # (1, N + S, 1, S)
    q, v = (_split(x, heads, 1) for x in (q, v))                            # (B, width, 1, S) a head

    def by_key(keys: Var) -> Sequence[Var]:
        """(B, heads, width, n) → (B, n, 1, width) a head: the one transpose of this form."""
        return _split(mb.transpose(x=keys, perm=(0, 3, 1, 2)), heads, 2)

    sources = [(by_key(in_heads(k, heads)), v)]
    if pool is not None:
        values = mb.reshape(x=pool.values, shape=(1, heads * width, 1, pool.values.shape[3]))
        sources.insert(0, (by_key(pool.keys), _split(values, heads, 1)))
    parts = []
    for head in range(heads):
        scores = [mb.einsum(values=(keys[head], q[head]), equation="bkhc,bchq->bkhq") for keys, _ in sources]
        joined = scores[0] if len(scores) == 1 else mb.concat(values=scores, axis=1)
        weight = softmax(s, masked(joined, mask), axis=1)
        weights = [weight] if len(scores) == 1 else mb.split(
            x=weight, split_sizes=[score.shape[1] for score in scores], axis=1)
        heard = [mb.einsum(values=(values[head], w), equation="bchk,bkhq->bchq")
                 for (_, values), w in zip(sources, weights, strict=True)]
        parts.append(heard[0] if len(heard) == 1 else mb.add(x=heard[0], y=heard[1]))
    return mb.concat(values=parts, axis=1)


def _split(x: Var, parts: int, axis: int) -> Sequence[Var]:
    """``mb.split``, which gives no sequence when there is one part."""
    return [x] if parts == 1 else mb.split(x=x, num_splits=parts, axis=axis)


BLOCK = 128     # queries at a time in relative attention: bounds the scores, and the bias that must be stored
REACH = 64      # beyond this distance the bias of a side is one number (ane.models.tortoise.networks.layers: from 50 on)


def relative_attention(s: Style, q: Var, k: Var, v: Var, heads: int, bias: RelativePositionBias,
                       mask: Var | None) -> Var:
    """Attention among all places with a bias by distance, in blocks of queries (principle 5, in the form of a matmul).

    A whole bias (heads, S, S) would be 150 MB a layer at S = 2176. It is one number per head beyond ``REACH`` on either
    side, so what is stored is the band between, (heads, BLOCK, BLOCK + 2·REACH), which all blocks and buckets share.

    Args:
        q, k, v: (B, C, 1, S); q and k carry width^−¼ each. mask: (1, 1, 1, S), added to the scores.
    """
    q, k, v = (in_heads(x, heads) for x in (q, k, v))
    B, _, width, S = q.shape
    block = min(BLOCK, S)
    everywhere = array(bias(block + 2 * REACH, torch.float32))      # (heads, query, key)
    band = everywhere[None, :, REACH:REACH + block]
    before, after = (everywhere[None, :, [row], [column]][..., None] for row, column in ((-1, 0), (0, -1)))
    heard, nears = [], {}
    for start in range(0, S, block):
        size = min(block, S - start)
        left, right = max(start - REACH, 0), min(start + size + REACH, S)
        inner = size, left - (start - REACH), right - (start - REACH)
        if inner not in nears:
            nears[inner] = mb.const(val=s.const(band[:, :, :size, inner[1]:inner[2]]))
        end = (B, heads, width, start + size)
        queries = q if size == S else mb.slice_by_index(x=q, begin=(0, 0, 0, start), end=end)
        scores = mb.matmul(x=queries, y=k, transpose_x=True)                                    # (B, heads, size, S)
        sides = [(left, s.const(before)), (right - left, nears[inner]), (S - right, s.const(after))]
        sides = [(places, value) for places, value in sides if places]
        parts = [scores] if len(sides) == 1 else mb.split(x=scores, split_sizes=[n for n, _ in sides], axis=3)
        parts = [mb.add(x=part, y=value) for part, (_, value) in zip(parts, sides, strict=True)]
        scores = masked(parts[0] if len(parts) == 1 else mb.concat(values=parts, axis=3), mask)
        heard.append(mb.matmul(x=v, y=softmax(s, scores, axis=3), transpose_y=True))
    return together(heard[0] if len(heard) == 1 else mb.concat(values=heard, axis=3))


def attention_block(s: Style, x: Var, twin: AttentionBlock, frames: Frames | None = None, scale: float = 1.0,
                    name: str | None = None, places: int | None = None) -> Var:
    """Normalise, attend among all places, project, add: x (B, C, 1, S) of ``scale`` → the same (principle 7).

    ``places``: only that many of the first places are computed, (B, C, 1, places); not with a relative bias.
    """
    B, C, *_ = x.shape
    heads, bias = twin.heads, twin.relative_pos_embeddings
    y = group_norm(s, x, twin.norm, frames, scale)
    asked = y
    if places is not None:
        x, asked = (mb.slice_by_index(x=whole, begin=(0, 0, 0, 0), end=(B, C, 1, places)) for whole in (x, y))
    q, k, v = (conv(s, source, *part) for source, part in zip((asked, y, y), _by_kind(twin), strict=True))
    mask = frames and frames.mask
    y = attention(s, q, k, v, heads, mask) if bias is None else relative_attention(s, q, k, v, heads, bias, mask)
    return mb.add(x=x, y=linear(s, y, twin.proj_out, scale=scale), **({"name": spelt(name)} if name else {}))


def _by_kind(twin: AttentionBlock) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weight and bias of the queries, of the keys and of the values, which the twin keeps head by head; queries and
    keys with their width^−¼."""
    weight, bias = kernel(twin.qkv)
    width = weight.shape[1] // twin.heads
    factors = np.array([width ** -0.25, width ** -0.25, 1], np.float32)[None, :, None]

    def parts(values: np.ndarray) -> np.ndarray:
        values = values.reshape(twin.heads, 3, -1) * factors
        return values.swapaxes(0, 1).reshape(3, twin.heads * width, -1)

    return [(w[:, :, None, None], b[:, 0]) for w, b in zip(parts(weight), parts(bias), strict=True)]
