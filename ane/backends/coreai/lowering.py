"""Translate each op of MIL (Core ML's program language) to operations of Core AI.

As in ``ane.backends.mil``, every op has a small function, or a row in a table with a lambda. In a function, the
parameters with the annotation ``Value`` take values of the graph, and the others take constants. In a lambda, the
parameters in ``KINDS`` take constants, and the others take values of the graph.

Core AI has no layer norm, no padding or bias in convolutions, and no matmul that transposes. Each of these becomes
several operations.
"""

import math
from collections.abc import Callable, Sequence

import coreai.authoring as ca
import numpy as np
from coreai.authoring import Value
from coreai.authoring.constant import constant

from ane.backends.mil.registry import Bools, Ints, Kernel, rows

Values = tuple[Value, ...]

LOWERINGS: dict[str, Kernel] = {}


def lowering(function: Callable) -> Callable:
    """Register a function that translates an op. The op has the function's name without a trailing underscore."""
    LOWERINGS[function.__name__.rstrip("_")] = Kernel(function)
    return function


def shape_of(x: Value) -> tuple[int, ...]:
    return tuple(x.type.shape)


def dtype_of(x: Value) -> np.dtype:
    return x.type.dtype.numpy


def counts(values: Sequence[int] | int) -> np.ndarray:
    """Convert sizes, axes or positions to the dtype that Core AI needs for numbers that are never negative."""
    return np.array(values, np.uint32)


def number(x: Value, value: float) -> Value:
    """Create a constant with the dtype of ``x``."""
    return constant(np.array(value, dtype_of(x)))


# Element-wise

UNARY = {
    "abs": ca.abs_,
    "cos": ca.cos,
    "erf": ca.erf,
    "exp": ca.exp,
    "relu": ca.relu,
    "sigmoid": ca.sigmoid,
    "silu": ca.silu,
    "sin": ca.sin,
    "sqrt": ca.sqrt,
    "tanh": ca.tanh,
}
BINARY = {
    "add": ca.broadcasting_add,
    "sub": ca.broadcasting_sub,
    "mul": ca.broadcasting_mul,
    "real_div": ca.broadcasting_divide,
    "pow": ca.broadcasting_pow,
    "maximum": ca.broadcasting_maximum,
    "minimum": ca.broadcasting_minimum,
    "greater": ca.broadcasting_greater,
    "equal": ca.broadcasting_equal,
}


LOWERINGS |= rows(UNARY, lambda operation: lambda x: operation(x))
LOWERINGS |= rows(BINARY, lambda operation: lambda x, y: operation(x, y))
LOWERINGS |= rows(
    {
        "square": lambda x: ca.mul(x, x),
        "rsqrt": lambda x, epsilon=1e-12: ca.rsqrt(ca.broadcasting_add(x, number(x, epsilon))),
        "clip": lambda x, alpha, beta: ca.broadcasting_minimum(
            ca.broadcasting_maximum(x, number(x, alpha)), number(x, beta)
        ),
        "select": lambda cond, a, b: ca.broadcasting_where(cond, a, b),
        "cast": lambda x, dtype: x,  # ``GraphWriter`` converts every result to its declared dtype, here ``dtype``
        "identity": lambda x: x,
        "softmax": lambda x, axis=-1: ca.softmax(x, axis % x.type.rank),
        "matmul": lambda x, y, transpose_x=False, transpose_y=False: ca.broadcasting_batch_matmul(
            swapped(x) if transpose_x else x, swapped(y) if transpose_y else y
        ),
        "transpose": lambda x, perm: ca.transpose(x, counts([axis % x.type.rank for axis in perm])),
        "expand_dims": lambda x, axes: ca.expand_dims(x, sorted(axis % (x.type.rank + len(axes)) for axis in axes)),
        "squeeze": lambda x, axes: ca.shrink_dims(x, sorted(axis % x.type.rank for axis in axes)),
        "tile": lambda x, reps: ca.tile(x, counts(reps)),
    }
)


def swapped(x: Value) -> Value:
    """Swap the last two axes of ``x``."""
    *rest, rows, columns = range(x.type.rank)
    return ca.transpose(x, counts([*rest, columns, rows]))


@lowering
def leaky_relu(x: Value, alpha: float) -> Value:
    zero = number(x, 0)
    return ca.add(
        ca.broadcasting_maximum(x, zero), ca.broadcasting_mul(ca.broadcasting_minimum(x, zero), number(x, alpha))
    )


@lowering
def gelu(x: Value, mode: str = "EXACT") -> Value:
    if mode == "SIGMOID_APPROXIMATION":
        return ca.mul(x, ca.sigmoid(ca.broadcasting_mul(x, number(x, 1.702))))
    return ca.gelu(x, approximate="tanh" if mode == "TANH_APPROXIMATION" else "none")


# Norms and reductions


@lowering
def layer_norm(
    x: Value, axes: Ints, gamma: Value | None = None, beta: Value | None = None, epsilon: float = 1e-5
) -> Value:
    centred = ca.broadcasting_sub(x, ca.reduce_mean(x, list(axes)))
    variance = ca.reduce_mean(ca.mul(centred, centred), list(axes))
    x = ca.broadcasting_mul(centred, ca.rsqrt(ca.broadcasting_add(variance, number(variance, epsilon))))
    shape = [size if axis in axes or axis - x.type.rank in axes else 1 for axis, size in enumerate(shape_of(x))]
    if gamma is not None:
        x = ca.broadcasting_mul(x, ca.reshape(gamma, shape))
    return x if beta is None else ca.broadcasting_add(x, ca.reshape(beta, shape))


def reduced(operation: Callable, x: Value, axes: Ints | None, keep_dims: bool) -> Value:
    axes = tuple(axis % x.type.rank for axis in (range(x.type.rank) if axes is None else axes))
    result = operation(x, list(axes))
    return result if keep_dims else ca.shrink_dims(result, list(axes))


LOWERINGS |= rows(
    {
        "reduce_max": ca.reduce_max,
        "reduce_mean": ca.reduce_mean,
        "reduce_min": ca.reduce_min,
        "reduce_sum": ca.reduce_sum,
    },
    lambda operation: lambda x, axes=None, keep_dims=False: reduced(operation, x, axes, keep_dims),
)


# Convolutions and products


@lowering
def conv(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    strides: Ints = (1, 1),
    pad_type: str = "valid",
    pad: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
) -> Value:
    """Translate a convolution of x (B, in, H, W) with a weight (out, in / groups, h, w)."""
    if pad_type not in ("valid", "custom"):
        raise NotImplementedError(f"pad_type {pad_type}")
    if pad_type == "custom" and any(pad):
        x = ca.pad(x, counts([0, 0, 0, 0, *pad]), number(x, 0))
    return _biased(ca.conv2d(x, weight, counts(strides), counts(dilations), counts(groups)), bias)


@lowering
def conv_transpose(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    pad: Ints = (0, 0, 0, 0),
    pad_type: str = "valid",
    strides: Ints = (1, 1),
    dilations: Ints = (1, 1),
    groups: int = 1,
    output_shape: Ints | None = None,
) -> Value:
    """Translate a transposed convolution of x (B, in, H, W) with a weight (in, out / groups, h, w).

    Core AI computes the output without padding. A slice then crops the output by ``pad``.
    """
    if pad_type not in ("valid", "custom"):
        raise NotImplementedError(f"pad_type {pad_type}")
    none = counts([0, 0])
    full = ca.conv_transpose2d(x, weight, counts(strides), none, counts(dilations), none, counts(groups))
    if pad_type == "custom" and any(pad):
        batch, channels, height, width = shape_of(full)
        top, bottom, left, right = pad
        full = ca.slice_(full, [0, 0, top, left], [batch, channels, height - bottom, width - right], [1, 1, 1, 1])
    if output_shape is not None and tuple(output_shape) != tuple(shape_of(full)):
        raise NotImplementedError(f"output_shape {output_shape}")
    return _biased(full, bias)


def _biased(x: Value, bias: Value | None) -> Value:
    return x if bias is None else ca.broadcasting_add(x, ca.reshape(bias, [1, *shape_of(bias), 1, 1]))


@lowering
def linear(x: Value, weight: Value, bias: Value | None = None) -> Value:
    product = ca.broadcasting_batch_matmul(x, swapped(weight))
    return product if bias is None else ca.broadcasting_add(product, bias)


@lowering
def einsum(values: Values, equation: str) -> Value:
    """Translate an einsum of two values, as attention uses it, to a batched matrix product.

    The einsum sums over one axis. Each of the two values has one axis that the other value lacks.
    """
    operands, result = equation.replace(" ", "").split("->")
    left, right = operands.split(",")
    shared = [axis for axis in left if axis in right]
    batch, summed = ([axis for axis in shared if (axis in result) == kept] for kept in (True, False))
    rows, columns = ([axis for axis in part if axis not in shared] for part in (left, right))
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1:
        raise NotImplementedError(f"equation {equation}")
    x = ca.transpose(values[0], counts([left.index(axis) for axis in (*batch, *rows, *summed)]))
    y = ca.transpose(values[1], counts([right.index(axis) for axis in (*batch, *summed, *columns)]))
    order = [*batch, *rows, *columns]
    return ca.transpose(ca.broadcasting_batch_matmul(x, y), counts([order.index(axis) for axis in result]))


# Shapes


@lowering
def concat(values: Values, axis: int, interleave: bool = False) -> Value:
    if interleave:
        raise NotImplementedError("interleave")
    return ca.concat(axis % values[0].type.rank, list(values))


@lowering
def split(x: Value, axis: int, num_splits: int | None = None, split_sizes: Ints | None = None) -> list[Value]:
    axis %= x.type.rank
    sizes = split_sizes or (shape_of(x)[axis] // num_splits,) * num_splits
    return ca.split(x, counts(sizes), axis)


@lowering
def reshape(x: Value, shape: Ints) -> Value:
    """Translate a reshape.

    A size of 0 means the size of ``x`` on the same axis, counted from the last. A size of −1 is inferred.
    """
    sizes = [shape_of(x)[axis - len(shape)] if size == 0 else size for axis, size in enumerate(shape)]
    if -1 in sizes:
        sizes[sizes.index(-1)] = -math.prod(shape_of(x)) // math.prod(sizes)
    return ca.reshape(x, sizes)


@lowering
def pad(x: Value, pad: Ints, mode: str = "constant", constant_val: float = 0.0) -> Value:
    """Translate a padding of the last axes.

    ``pad`` has two numbers per axis, before and after it, in order of the axes.
    """
    first = [0] * (2 * x.type.rank - len(pad))
    return ca.pad(x, counts([*first, *pad]), number(x, constant_val), mode)


@lowering
def slice_by_index(
    x: Value,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Bools | None = None,
    end_mask: Bools | None = None,
    squeeze_mask: Bools | None = None,
) -> Value:
    absent = (False,) * x.type.rank
    steps, squeezed = stride or (1,) * x.type.rank, squeeze_mask or absent
    slices = []
    for axis, size in enumerate(shape_of(x)):
        if squeezed[axis]:
            slices.append((begin[axis] % size, begin[axis] % size + 1, 1))
            continue
        start = None if (begin_mask or absent)[axis] else begin[axis]
        stop = None if (end_mask or absent)[axis] else end[axis]
        slices.append(slice(start, stop, steps[axis]).indices(size))
    # for Core AI, an end of −1 means the last position, so slices with a negative step are read forwards and then
    # reversed
    backwards = [axis for axis, (*_, step) in enumerate(slices) if step < 0]
    ranges = [range(*part)[::-1] if part[2] < 0 else range(*part) for part in slices]
    taken = ca.slice_(
        x, [part.start for part in ranges], [part.stop for part in ranges], [part.step for part in ranges]
    )
    taken = ca.reverse(taken, backwards) if backwards else taken
    dropped = [axis for axis, drop in enumerate(squeezed) if drop]
    return ca.shrink_dims(taken, dropped) if dropped else taken


@lowering
def slice_update(x: Value, update: Value, begin: Value, end: Value) -> Value:
    """Translate an op that writes ``update`` to a slice with steps of 1.

    ``begin`` and ``end`` need not be constants.
    """
    return ca.slice_update(x, begin, end, np.ones(x.type.rank, np.int32), update)
