"""Build Core ML graphs from blocks in the Neural Engine's layout: (batch, channels, 1, sequence).

Each block takes its weights from a layer of the reference network, and ``kernel`` knows how each kind of layer stores
them. The blocks follow these principles, which comments cite by number:

1. Channels first, rank 4, the long axis last. The engine pads the last axis to 64 bytes, so an axis of size 1 there
costs 32 times its memory. (Apple, "Deploying Transformers on the Apple Neural Engine", principle 1. coreai-models,
neural_engine_rules.md.)
2. A linear layer is a 1×1 convolution, because the engine is a convolution engine. (ml-ane-transformers, principle 1.)
3. No transposes, and no reshapes that touch the last axis, because each is a full copy. (ml-ane-transformers, principle
3.)
4. The highest-level operation available (layer_norm, softmax, gelu) instead of its parts. (coreai-models.)
5. No fused attention, which may drop its mask if there are several queries. Instead, one matmul for as many heads as
keep their scores on the chip. (coreai-models.)
6. Masks are added, finite (−1e4) and computed by the host. No operation in a graph compares, gathers or counts.
(coreai-models.)
7. A residual stream is stored divided by a power of two, which is folded into the weights that write to it. Trained
networks have single channels of several thousand, whose squares overflow fp16 (65504). Norms do not depend on the scale
except for their eps, which is divided by the scale's square. This is exact and adds no operation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from ane.backends.base import MASKED
from ane.models.tortoise.networks.autoregressive import Conv1D
from ane.models.tortoise.networks.conditioning import EqualLinear
from converters.coreml.graph import Style, Var, array, mb, value_name
from converters.neural_engine import ON_CHIP


def kernel(layer: nn.Module) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a layer's weight (out, in, 1, k) and bias (out,) or ``None``, in float32.

    Raises TypeError unless the layer is a linear layer or a convolution.
    """
    if isinstance(layer, EqualLinear):
        return array(layer.weight)[:, :, None, None] * layer.scale, array(layer.bias) * layer.rate
    weight = array(layer.weight)
    if isinstance(layer, Conv1D):  # GPT-2: (in, out)
        weight = weight.T[:, :, None, None]
    elif isinstance(layer, nn.Linear):  # (out, in)
        weight = weight[:, :, None, None]
    elif isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):  # (out, in, k); transposed: (in, out, k)
        weight = weight[:, :, None]
    else:
        raise TypeError(f"{type(layer).__name__} has no kernel")
    return weight, None if layer.bias is None else array(layer.bias)


def conv(s: Style, x: Var, weight: np.ndarray, bias: np.ndarray | None, name: str | None = None, **options: Any) -> Var:
    """Convolve along the last axis (principles 1 and 2): (B, C, 1, S) → (B, O, 1, S'), unpadded by default.

    Args:
        s: Style of the graph.
        x: Input, (B, C, 1, S).
        weight: Weight, (O, C, 1, k) float32.
        bias: Bias, (O,) float32.
        name: Module path that the output is named after.
        options: Options of ``mb.conv``: pad_type, pad, strides, dilations.
    """
    pad_type = options.pop("pad_type", "valid")
    if bias is not None:
        options = {"bias": s.const(bias), **options}
    return mb.conv(x=x, weight=s.const(weight), pad_type=pad_type, **options, **named(name))


def named(name: str | None) -> dict[str, str]:
    """Return the argument ``name`` of an operation for the module path ``name``, or {} for ``None``."""
    return {"name": value_name(name)} if name else {}


def rename(x: Var, name: str) -> None:
    """Name a value that was made without a name after the module path ``name``."""
    x.set_name(value_name(name))


def linear(s: Style, x: Var, layer: nn.Module, name: str | None = None, scale: float = 1.0) -> Var:
    """Apply a linear layer, or a convolution of kernel size 1, and multiply its output by ``scale`` (principle 2)."""
    weight, bias = kernel(layer)
    return conv(s, x, weight * scale, None if bias is None else bias * scale, name)


def same_conv(s: Style, x: Var, layer: nn.Conv1d, name: str | None = None, scale: float = 1.0) -> Var:
    """Convolve with the layer's zero padding, stride and dilation: (B, C, 1, S) → (B, O, 1, S')."""
    weight, bias = kernel(layer)
    (pad,) = layer.padding
    return conv(
        s,
        x,
        weight * scale,
        None if bias is None else bias * scale,
        name,
        pad_type="custom",
        pad=[0, 0, pad, pad],
        strides=[1, *layer.stride],
        dilations=[1, *layer.dilation],
    )


def scaled(s: Style, x: Var, factor: float) -> Var:
    """Return ``x · factor``, or ``x`` itself if the factor is 1."""
    return x if factor == 1 else mb.mul(x=x, y=s.dtype(factor))


def layer_norm(s: Style, x: Var, layer: nn.LayerNorm, name: str | None = None, scale: float = 1.0) -> Var:
    """Normalise over channels: (B, C, 1, S) → (B, C, 1, S). ``scale`` is the scale of ``x`` (principles 4 and 7).

    The scaled eps, 1e-8, is 0 in fp16. That is more exact (SNR of 70 dB at a variance of 0.016, 83 at 0.3) than fp16's
    smallest number (55 and 80). But no column may be constant (``ane.backends.packaged.decoder.pack_columns``).
    """
    return mb.layer_norm(
        x=x,
        axes=[1],
        gamma=s.const(layer.weight),
        beta=s.const(layer.bias),
        epsilon=s.dtype(layer.eps * scale * scale),
        **named(name),
    )


def key_mask(s: Style, inside: Var) -> Var:
    """Return the mask to add to the attention scores of keys.

    Args:
        s: Style of the graph.
        inside: (1, 1, 1, S), which is 1 in the sequence and 0 after it.
    """
    return mb.mul(x=mb.sub(x=inside, y=s.dtype(1)), y=s.dtype(-MASKED))


@dataclass(frozen=True)
class PaddingMask:
    """The positions of a bucket that hold the sequence, and the positions that are padding.

    Attributes:
        inside: (1, 1, 1, S): 1 in the sequence, 0 in the padding. An input of the graph.
        mean_weight: (1, 1, 1, S): ``inside`` divided by the sequence length, so that a mean is a sum. An input of the
            graph.
        mask: (1, 1, 1, S): 0 in the sequence, −1e4 in the padding, to add to the attention scores of keys.
        weight: (1, 1, 1, S): ``mean_weight`` times S, so that a mean over the sequence is a mean over the bucket. Small
            squares times ``mean_weight`` would underflow in fp16 (below 6e-8).
    """

    inside: Var
    mean_weight: Var
    mask: Var
    weight: Var

    @classmethod
    def of(cls, s: Style, inside: Var, mean_weight: Var) -> "PaddingMask":
        return cls(inside, mean_weight, key_mask(s, inside), mb.mul(x=mean_weight, y=s.dtype(mean_weight.shape[3])))


PEAK, SMALLEST_PEAK = (
    16,
    2.0**-11,
)  # largest value of a group when it is squared. Values below SMALLEST_PEAK are not raised to PEAK


def group_norm(
    s: Style,
    x: Var,
    layer: nn.GroupNorm,
    padding: PaddingMask | None = None,
    scale: float = 1.0,
    modulation: tuple[Var, Var] | None = None,
) -> Var:
    """Normalise over channels and the unpadded positions: (B, C, 1, S), at rank 4 throughout (principle 1).

    Each group is divided by its largest value before it is squared. Squares of a scaled stream are below the normal
    numbers of fp16, which an M1 replaces by 0.

    Args:
        s: Style of the graph.
        x: Input, (B, C, 1, S).
        layer: The reference layer.
        padding: Padding of ``x``. ``None`` means that there is no padding.
        scale: Scale of ``x`` (principle 7).
        modulation: Pair (scale, shift), each (1, C, 1, 1). The result is multiplied by 1 + scale, then shift is added.
    """
    B, C, _, S = x.shape
    grouped = (1, layer.num_groups, C // layer.num_groups, 1)

    def mean(values: Var) -> Var:
        if padding is None:
            return mb.reduce_mean(x=values, axes=[2, 3], keep_dims=True)
        values = mb.mul(x=mb.reduce_mean(x=values, axes=[2], keep_dims=True), y=padding.weight)
        return mb.reduce_mean(x=values, axes=[3], keep_dims=True)

    def largest(values: Var) -> Var:
        return mb.maximum(
            x=mb.reduce_max(x=values, axes=[2, 3], keep_dims=True),
            y=mb.mul(x=mb.reduce_min(x=values, axes=[2, 3], keep_dims=True), y=s.dtype(-1)),
        )

    gain, shift = (s.const(values).reshape(grouped) for values in (layer.weight, layer.bias))
    if modulation is not None:
        scaling, shifting = (mb.reshape(x=part, shape=grouped) for part in modulation)
        scaling = mb.add(x=scaling, y=s.dtype(1))
        gain, shift = mb.mul(x=scaling, y=gain), mb.add(x=mb.mul(x=scaling, y=shift), y=shifting)
    x = mb.reshape(x=x, shape=(B, *grouped[1:3], S))
    centred = mb.sub(x=x, y=mean(x))
    factor = mb.real_div(x=s.dtype(PEAK), y=mb.add(x=largest(centred), y=s.dtype(SMALLEST_PEAK)))
    centred = mb.mul(x=centred, y=factor)
    eps = mb.square(x=mb.mul(x=factor, y=s.dtype(scale * layer.eps**0.5)))
    inverse = mb.rsqrt(x=mb.add(x=mean(mb.square(x=centred)), y=eps), epsilon=s.dtype(0))
    # multiplying the two small factors first saves one product over the sequence, and its rounding
    y = mb.add(x=mb.mul(x=centred, y=mb.mul(x=inverse, y=gain)), y=shift)
    return mb.reshape(x=y, shape=(B, C, 1, S))


def split_heads(x: Var, heads: int) -> Var:
    """Reshape (B, C, 1, S) → (B, heads, C / heads, S), with the last axis untouched (principle 3)."""
    B, C, _, S = x.shape
    return mb.reshape(x=x, shape=(B, heads, C // heads, S))


def join_heads(x: Var) -> Var:
    """Reshape (B, heads, width, S) → (B, heads · width, 1, S)."""
    B, heads, width, S = x.shape
    return mb.reshape(x=x, shape=(B, heads * width, 1, S))


@dataclass(frozen=True)
class LayerPool:
    """Keys and values that one layer computed in earlier calls, each (1, heads, width, N slots).

    ``recent`` has further keys and values, which come after these slots.
    """

    keys: Var
    values: Var
    recent: "LayerPool | None" = None


def attention(s: Style, q: Var, k: Var, v: Var, heads: int, mask: Var | None, pool: LayerPool | None = None) -> Var:
    """Let a call's columns attend to a pool of slots and to each other (principles 5 and 6).

    Args:
        s: Style of the graph.
        q, k, v: Queries, keys and values, (B, C, 1, S), with heads outermost in the channels. q is already divided by
            √width.
        heads: Number of heads.
        mask: Mask to add to the scores, (1, 1, S or 1, N + S). It has a row for each query, and the pool's slots
            (``recent`` last) before the columns. ``None`` means that every column attends to every other.
        pool: Keys and values from earlier calls.

    Returns:
        Output of the attention, (B, C, 1, S).
    """
    q, k, v = (split_heads(x, heads) for x in (q, k, v))
    if pool is None:
        return join_heads(_attended(q, k, v, mask, None))
    keys, values = pool.keys, pool.values
    if pool.recent is not None:
        k, v = (mb.concat(values=pair, axis=3) for pair in ((pool.recent.keys, k), (pool.recent.values, v)))
    groups = head_groups(heads, q.shape[3] * (keys.shape[3] + k.shape[3]) * np.dtype(s.dtype).itemsize)
    by_group = zip(*(split(x, groups, 1) for x in (q, k, v, keys, values)), strict=True)
    return join_heads(joined([_attended(*group[:3], mask, group[3:]) for group in by_group], 1))


def cross_attention(s: Style, q: Var, memory: LayerPool, heads: int) -> Var:
    """Let a call's columns (B, C, 1, S) attend to a memory, all of which every column sees."""
    return attention(s, q, join_heads(memory.keys), join_heads(memory.values), heads, None)


def head_groups(heads: int, score_bytes: int) -> int:
    """Split the heads into as few equal groups as possible whose scores each stay on the chip, and return their number.

    ``score_bytes`` is the size of one head's scores.
    """
    return next(
        groups
        for groups in range(1, heads + 1)
        if heads % groups == 0 and (groups == heads or heads // groups * score_bytes <= ON_CHIP)
    )


def _attended(q: Var, k: Var, v: Var, mask: Var | None, pool: tuple[Var, Var] | None) -> Var:
    """Compute the attention of (B, heads, width, S), with a pool's keys and values → (B, heads, width, S)."""
    scores = mb.matmul(x=q, y=k, transpose_x=True)
    if pool is not None:
        scores = mb.concat(values=[mb.matmul(x=q, y=pool[0], transpose_x=True), scores], axis=3)
    weight = mb.softmax(x=scores if mask is None else mb.add(x=scores, y=mask), axis=3)
    if pool is None:
        return mb.matmul(x=v, y=weight, transpose_y=True)
    of_pool, of_columns = mb.split(x=weight, split_sizes=[pool[0].shape[3], k.shape[3]], axis=3)
    return mb.add(x=mb.matmul(x=pool[1], y=of_pool, transpose_y=True), y=mb.matmul(x=v, y=of_columns, transpose_y=True))


def split(x: Var, parts: int, axis: int) -> Sequence[Var]:
    """Split as ``mb.split`` does, which does not return a sequence for one part."""
    return [x] if parts == 1 else mb.split(x=x, num_splits=parts, axis=axis)


def joined(parts: Sequence[Var], axis: int) -> Var:
    """Join as ``mb.concat`` does, which needs more than one part."""
    return parts[0] if len(parts) == 1 else mb.concat(values=parts, axis=axis)


def queries_keys_values(layer: nn.Module, heads: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return weight and bias of the queries, the keys and the values, which ``layer`` stores interleaved by head.

    Queries and keys are multiplied by width^−¼ each, where ``width`` is the width of a head.
    """
    weight, bias = kernel(layer)
    width = len(weight) // (3 * heads)
    factors = np.array([width**-0.25, width**-0.25, 1], np.float32)[None, :, None]

    def parts(values: np.ndarray) -> np.ndarray:
        values = values.reshape(heads, 3, -1) * factors
        return values.swapaxes(0, 1).reshape(3, heads * width, -1)

    return [(w[:, :, None, None], b[:, 0]) for w, b in zip(parts(weight), parts(bias), strict=True)]
