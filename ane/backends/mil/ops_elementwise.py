"""Implement the element-wise ops, comparisons, casts, activations, norms and reductions of MIL.

A norm calls its argument ``inner`` on every intermediate result. If ``Arithmetic.narrow_norms`` is true, ``inner``
rounds to fp16.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.mil.registry import OPS, Ints, Rounding, op, rows

BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "real_div": torch.true_divide,
    "pow": torch.pow,
    "floor_div": torch.floor_divide,
    "mod": torch.remainder,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}

UNARY = {
    "abs": torch.abs,
    "acos": torch.acos,
    "asin": torch.asin,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "floor": torch.floor,
    "logical_not": torch.logical_not,
    "relu": torch.relu,
    "relu6": F.relu6,
    "round": torch.round,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
}

REDUCTIONS = {
    "reduce_sum": torch.sum,
    "reduce_mean": lambda x, *how: x.float().mean(*how),
    "reduce_max": torch.amax,
    "reduce_min": torch.amin,
    "reduce_sum_square": lambda x, *how: x.square().sum(*how),
    "reduce_l1_norm": lambda x, *how: x.abs().sum(*how),
    "reduce_l2_norm": lambda x, *how: x.square().sum(*how).sqrt(),
    "reduce_log_sum": lambda x, *how: x.sum(*how).log(),
    "reduce_log_sum_exp": torch.logsumexp,
}

OPS.update(rows(BINARY, lambda function: lambda x, y: function(x, y)))
OPS.update(rows(UNARY, lambda function: lambda x: function(x)))
OPS.update(
    rows(
        REDUCTIONS,
        lambda function: (
            lambda x, axes=None, keep_dims=False: function(x, tuple(range(x.ndim)) if axes is None else axes, keep_dims)
        ),
    )
)
OPS.update(rows({"identity": lambda x: x}, exact=True))
OPS.update(
    rows(
        {
            "inverse": lambda x, epsilon=1e-4: (x + epsilon).reciprocal(),
            "log": lambda x, epsilon=1e-45: (x + epsilon).log(),
            "rsqrt": lambda x, epsilon=1e-12: (x + epsilon).rsqrt(),
            "linear_activation": lambda x, alpha, beta: alpha * x + beta,
            "scaled_tanh": lambda x, alpha, beta: alpha * torch.tanh(beta * x),
            "clip": lambda x, alpha, beta: x.clamp(alpha, beta),
            "threshold": lambda x, alpha: x.clamp(min=alpha),
            "thresholded_relu": lambda x, alpha: torch.where(x < alpha, 0, x),
            "leaky_relu": lambda x, alpha: F.leaky_relu(x, alpha),
            "elu": lambda x, alpha: F.elu(x, alpha),
            "sigmoid_hard": lambda x, alpha, beta: (x * alpha + beta).clamp(0, 1),
            "select": lambda cond, a, b: torch.where(cond.bool(), a, b),
            "cast": lambda x, dtype: x,  # the interpreter converts every result to its declared dtype, here ``dtype``
            "range_1d": lambda start, end, step: torch.arange(start.item(), end.item(), step.item()),
            "reduce_argmax": lambda x, axis=-1, keep_dims=False, output_dtype="int32": torch.argmax(x, axis, keep_dims),
            "reduce_argmin": lambda x, axis=-1, keep_dims=False, output_dtype="int32": torch.argmin(x, axis, keep_dims),
        }
    )
)


@op
def prelu(x: Tensor, alpha: Tensor) -> Tensor:
    return F.prelu(x, alpha)


@op
def gelu(x: Tensor, mode: str = "EXACT") -> Tensor:
    if mode == "SIGMOID_APPROXIMATION":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if mode == "TANH_APPROXIMATION" else "none")


@op
def fill(shape: Ints, value: Tensor | None = None) -> Tensor:
    return torch.zeros(shape) if value is None else value.expand(shape).clone()


@op
def quantize(
    input: Tensor, scale: Tensor, output_dtype: str, zero_point: Tensor | None = None, axis: int = 0
) -> Tensor:
    """Quantise activations. ``scale`` and ``zero_point`` are scalars, or vectors along ``axis``."""
    low, high = (-128, 127) if output_dtype == "int8" else (0, 255)
    codes = torch.round(input / along(scale, input, axis))
    return (codes if zero_point is None else codes + along(zero_point, input, axis)).clamp(low, high)


@op
def dequantize(input: Tensor, scale: Tensor, zero_point: Tensor | None = None, axis: int = 0) -> Tensor:
    shifted = input if zero_point is None else input - along(zero_point, input, axis)
    return shifted * along(scale, input, axis)


def along(parameter: Tensor, x: Tensor, axis: int) -> Tensor:
    """Reshape a vector so that it broadcasts along ``axis`` of ``x``. Return a scalar unchanged."""
    return (
        parameter if not parameter.ndim else parameter.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    )


@op
def layer_norm(
    x: Tensor,
    axes: Ints | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
    *,
    inner: Rounding,
) -> Tensor:
    """Normalise x over ``axes``. gamma and beta have the shape that x has on these axes."""
    axes = tuple(axis % x.ndim for axis in axes or range(x.ndim))
    shape = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
    return _affine(_standardised(x, axes, epsilon, inner), gamma, beta, shape, inner)


@op
def instance_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: float = 1e-5, *, inner: Rounding
) -> Tensor:
    """Normalise every channel of x (B, C, …), separately for each of the B items. gamma and beta are (C,)."""
    shape = [1, -1] + [1] * (x.ndim - 2)
    return _affine(_standardised(x, tuple(range(2, x.ndim)), epsilon, inner), gamma, beta, shape, inner)


@op
def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
    *,
    inner: Rounding,
) -> Tensor:
    """Normalise every channel of x (B, C, …) by ``mean`` and ``variance``. All parameters are (C,)."""
    shape = [1, -1] + [1] * (x.ndim - 2)
    centred = inner(x - mean.reshape(shape))
    scaled = inner(centred * inner(inner(variance + epsilon).rsqrt()).reshape(shape))
    return _affine(scaled, gamma, beta, shape, inner)


@op
def l2_norm(x: Tensor, epsilon: float = 1e-6, *, inner: Rounding) -> Tensor:
    """Divide x by its L2 norm over the last three axes."""
    total = inner(inner(x.square()).sum((-3, -2, -1), keepdim=True))
    return x * inner(inner(total + epsilon).rsqrt())


@op
def softmax(x: Tensor, axis: int = -1, *, inner: Rounding) -> Tensor:
    powers = inner(inner(x - x.amax(axis, keepdim=True)).exp())
    return powers / inner(powers.sum(axis, keepdim=True))


def _standardised(x: Tensor, axes: Ints, epsilon: float, inner: Rounding) -> Tensor:
    centred = inner(x - inner(x.mean(axes, keepdim=True)))
    variance = inner(inner(centred.square()).mean(axes, keepdim=True))
    return inner(centred * inner(inner(variance + epsilon).rsqrt()))


def _affine(x: Tensor, gamma: Tensor | None, beta: Tensor | None, shape: list[int], inner: Rounding) -> Tensor:
    if gamma is not None:
        x = inner(x * gamma.reshape(shape))
    return x if beta is None else x + beta.reshape(shape)


@op
def reduce_prod(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    for axis in sorted((axis % x.ndim for axis in axes or range(x.ndim)), reverse=True):
        x = x.prod(axis, keepdim=keep_dims)
    return x
