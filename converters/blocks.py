"""Build layers of Core ML graphs (linear layers, norms, attention) in the layout that suits the Neural Engine.

The layout is (batch, channels, 1, sequence). Every function here takes its weights from a layer of the PyTorch network.
``kernel`` knows how each class of layer stores its weights. Graphs follow these principles, which comments cite by
number. The source of each principle is in brackets.

1. A tensor has four axes. Channels come first and the long axis last, because the engine pads the last axis to 64
bytes. A last axis of size 1 would cost 32 times the memory. (Apple, "Deploying Transformers on the Apple Neural
Engine", principle 1. coreai-models, neural_engine_rules.md.)
2. A linear layer is a 1×1 convolution, because the engine is made for convolutions. (ml-ane-transformers, principle 1.)
3. A graph has no transposes, and no reshapes that change the last axis, because each such operation copies the whole
tensor. (ml-ane-transformers, principle 3.)
4. A graph uses the highest-level operation (layer_norm, softmax, gelu) instead of its elementary operations.
(coreai-models.)
5. A graph has no fused attention, which may ignore its mask if there are several queries. Instead, one matmul computes
  the scores of several heads. It computes as many heads as have scores that fit on the chip. (coreai-models.)
6. A mask is added to scores. Masked scores get a finite number (−1e4). The host, which is the program that calls the
  package, computes the mask. No operation in a graph compares, gathers or counts. (coreai-models.)
7. A residual stream is multiplied by a scale, which is a power of two of at most 1. Without the scale, squares would
overflow fp16 (65504), because trained networks have single channels with values of several thousand. The scale is part
of the weights that write to the stream, so it needs no operation. It changes no bit of the mantissa. A norm's output
does not depend on the scale if the norm's eps is multiplied by the square of the scale.
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
    """Convert a layer's weight to (out, in, 1, k) and its bias to (out,), in float32.

    The bias is ``None`` if the layer has none. Raises TypeError unless the layer is linear or a convolution.
    """
    if isinstance(layer, EqualLinear):
        return array(layer.weight)[:, :, None, None] * layer.scale, array(layer.bias) * layer.rate
    weight = array(layer.weight)
    if isinstance(layer, Conv1D):  # GPT-2's linear layer stores (in, out)
        weight = weight.T[:, :, None, None]
    elif isinstance(layer, nn.Linear):  # stores (out, in)
        weight = weight[:, :, None, None]
    elif isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):  # stores (out, in, k), or (in, out, k) if transposed
        weight = weight[:, :, None]
    else:
        raise TypeError(f"{type(layer).__name__} has no kernel")
    return weight, None if layer.bias is None else array(layer.bias)


def conv(s: Style, x: Var, weight: np.ndarray, bias: np.ndarray | None, name: str | None = None, **options: Any) -> Var:
    """Convolve along the last axis: (B, C, 1, S) → (B, O, 1, S'). By default, there is no padding.

    Args:
        s: Precision of the graph.
        x: Input, (B, C, 1, S).
        weight: Weight, (O, C, 1, k) float32.
        bias: Bias, (O,) float32, or ``None``.
        name: Path of the module whose output this is. The value gets its name from the path.
        options: Options of ``mb.conv``: pad_type, pad, strides, dilations.
    """
    pad_type = options.pop("pad_type", "valid")
    if bias is not None:
        options = {"bias": s.const(bias), **options}
    return mb.conv(x=x, weight=s.const(weight), pad_type=pad_type, **options, **named(name))


def named(name: str | None) -> dict[str, str]:
    """Return the keyword argument that names an operation after a module path. Return {} if the path is ``None``."""
    return {"name": value_name(name)} if name else {}


def rename(x: Var, name: str) -> None:
    """Give a value that was built without a name the module path ``name`` as its name."""
    x.set_name(value_name(name))


def linear(s: Style, x: Var, layer: nn.Module, name: str | None = None, scale: float = 1.0) -> Var:
    """Apply a linear layer, or a convolution with one tap, as a convolution. Multiply its output by ``scale``."""
    weight, bias = kernel(layer)
    return conv(s, x, weight * scale, None if bias is None else bias * scale, name)


def same_conv(s: Style, x: Var, layer: nn.Conv1d, name: str | None = None, scale: float = 1.0) -> Var:
    """Apply a convolution with its zero padding, stride and dilation: (B, C, 1, S) → (B, O, 1, S').

    The output is multiplied by ``scale``.
    """
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
    """Normalise over channels: (B, C, 1, S) → (B, C, 1, S). The caller has multiplied x by ``scale``.

    In fp16, a scaled eps of 1e-8 becomes 0. An eps of 0 is more exact than fp16's smallest number would be: the SNR is
    70 dB instead of 55 dB at a variance of 0.016, and 83 dB instead of 80 dB at a variance of 0.3. But with an eps of
    0, the result is not a number if all values of a column are equal (``ane.backends.packaged.pools.pack_columns``
    avoids such columns).
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
    """Compute a mask to add to attention scores: 0 for keys in the sequence, −1e4 for keys in the padding.

    Args:
        s: Precision of the graph.
        inside: Tensor (1, 1, 1, S) that is 1 in the sequence and 0 in the padding.
    """
    return mb.mul(x=mb.sub(x=inside, y=s.dtype(1)), y=s.dtype(-MASKED))


@dataclass(frozen=True)
class PaddingMask:
    """Tensors that separate a sequence from the padding after it. Each has the shape (1, 1, 1, S).

    Attributes:
        inside: Input of the graph that is 1 in the sequence and 0 in the padding.
        mean_weight: Input of the graph: ``inside`` divided by the sequence's length. The mean over the sequence is the
            sum of the values times ``mean_weight``.
        mask: Mask to add to attention scores: 0 for keys in the sequence, −1e4 for keys in the padding.
        weight: ``mean_weight`` times S. The mean over the sequence is the mean over all S positions of the values times
            ``weight``. Norms use ``weight``, because small squares times ``mean_weight`` would underflow in fp16 (below
            6e-8).
    """

    inside: Var
    mean_weight: Var
    mask: Var
    weight: Var

    @classmethod
    def of(cls, s: Style, inside: Var, mean_weight: Var) -> "PaddingMask":
        return cls(inside, mean_weight, key_mask(s, inside), mb.mul(x=mean_weight, y=s.dtype(mean_weight.shape[3])))


# ``group_norm`` scales every group so that its largest value is about PEAK before it squares the values. A group whose
# largest value is far below SMALLEST_PEAK stays below PEAK
PEAK, SMALLEST_PEAK = 16, 2.0**-11


def group_norm(
    s: Style,
    x: Var,
    layer: nn.GroupNorm,
    padding: PaddingMask | None = None,
    scale: float = 1.0,
    modulation: tuple[Var, Var] | None = None,
) -> Var:
    """Normalise groups of channels over the positions of the sequence: (B, C, 1, S) → (B, C, 1, S).

    All intermediate tensors have four axes, as the Neural Engine needs. Every group is divided by its largest value
    before it is squared. Otherwise, the squares of a scaled residual stream would be subnormal in fp16, and an M1
    replaces subnormal numbers by 0.

    Args:
        s: Precision of the graph.
        x: Input, (B, C, 1, S).
        layer: Layer of the PyTorch network.
        padding: Padding of ``x``. ``None`` means that ``x`` has no padding.
        scale: Factor by which the caller has multiplied ``x``.
        modulation: Pair (scale, shift), each (1, C, 1, 1). The output is multiplied by 1 + scale, then shift is added.
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
    # multiplying the two small factors first saves a product over the whole sequence, and the rounding of that product
    y = mb.add(x=mb.mul(x=centred, y=mb.mul(x=inverse, y=gain)), y=shift)
    return mb.reshape(x=y, shape=(B, C, 1, S))


def split_heads(x: Var, heads: int) -> Var:
    """Reshape (B, C, 1, S) → (B, heads, C / heads, S). The last axis does not change, so nothing is copied."""
    B, C, _, S = x.shape
    return mb.reshape(x=x, shape=(B, heads, C // heads, S))


def join_heads(x: Var) -> Var:
    """Reshape (B, heads, width, S) → (B, heads · width, 1, S)."""
    B, heads, width, S = x.shape
    return mb.reshape(x=x, shape=(B, heads * width, 1, S))


@dataclass(frozen=True)
class LayerPool:
    """The kv-cache of one layer: keys and values from earlier calls, both (1, heads, width, N slots).

    Attributes:
        keys, values: The keys and the values.
        recent: Keys and values of columns that are not in the slots yet, or ``None``.
    """

    keys: Var
    values: Var
    recent: "LayerPool | None" = None


def attention(s: Style, q: Var, k: Var, v: Var, heads: int, mask: Var | None, pool: LayerPool | None = None) -> Var:
    """Let the columns (positions) of a call attend to the kv-cache (``pool``) and to each other, as the mask allows.

    Args:
        s: Precision of the graph.
        q, k, v: Queries, keys and values of the columns, (B, C, 1, S). The channels of a head are adjacent. q is
            already divided by √width, where width is the width of a head.
        heads: Number of heads.
        mask: Mask to add to the scores, (1, 1, S, N + S), or (1, 1, 1, N + S) if all queries share it. On its last
            axis, the pool's slots come first, then the pool's recent columns, then the S columns of the call. ``None``
            means that every column attends to every column.
        pool: Keys and values from earlier calls, or ``None``.

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
    """Let the columns (B, C, 1, S) of a call attend to all positions of a memory, such as encoded audio."""
    return attention(s, q, join_heads(memory.keys), join_heads(memory.values), heads, None)


def head_groups(heads: int, score_bytes: int) -> int:
    """Choose into how many equal groups to divide the heads, so that the scores of a group fit on the chip.

    The function returns the smallest possible number. ``score_bytes`` is the size of one head's scores. If even these
    are too large for the chip, return ``heads``.
    """
    return next(
        groups
        for groups in range(1, heads + 1)
        if heads % groups == 0 and (groups == heads or heads // groups * score_bytes <= ON_CHIP)
    )


def _attended(q: Var, k: Var, v: Var, mask: Var | None, pool: tuple[Var, Var] | None) -> Var:
    """Compute attention for some heads: q, k and v (B, heads, width, S) → (B, heads, width, S).

    ``pool`` has the keys and the values of the pool for these heads, or is ``None``.
    """
    scores = mb.matmul(x=q, y=k, transpose_x=True)
    if pool is not None:
        scores = mb.concat(values=[mb.matmul(x=q, y=pool[0], transpose_x=True), scores], axis=3)
    weight = mb.softmax(x=scores if mask is None else mb.add(x=scores, y=mask), axis=3)
    if pool is None:
        return mb.matmul(x=v, y=weight, transpose_y=True)
    of_pool, of_columns = mb.split(x=weight, split_sizes=[pool[0].shape[3], k.shape[3]], axis=3)
    return mb.add(x=mb.matmul(x=pool[1], y=of_pool, transpose_y=True), y=mb.matmul(x=v, y=of_columns, transpose_y=True))


def split(x: Var, parts: int, axis: int) -> Sequence[Var]:
    """Call ``mb.split``, and always return a sequence.

    For a single part, ``mb.split`` would return the value itself.
    """
    return [x] if parts == 1 else mb.split(x=x, num_splits=parts, axis=axis)


def joined(parts: Sequence[Var], axis: int) -> Var:
    """Call ``mb.concat``. If there is only one part, return this part unchanged."""
    return parts[0] if len(parts) == 1 else mb.concat(values=parts, axis=axis)


def queries_keys_values(layer: nn.Module, heads: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split a layer's weight and bias into the weights and biases for queries, keys and values.

    The layer stores them head by head: q, k and v of the first head, then q, k and v of the second head, and so on. The
    function multiplies the weights and biases for queries and for keys by width^−¼, where width is the width of a head.
    """
    weight, bias = kernel(layer)
    width = len(weight) // (3 * heads)
    factors = np.array([width**-0.25, width**-0.25, 1], np.float32)[None, :, None]

    def parts(values: np.ndarray) -> np.ndarray:
        values = values.reshape(heads, 3, -1) * factors
        return values.swapaxes(0, 1).reshape(3, heads * width, -1)

    return [(w[:, :, None, None], b[:, 0]) for w, b in zip(parts(weight), parts(bias), strict=True)]
