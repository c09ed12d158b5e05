"""Norms, softmax and reductions. ``inner`` rounds intermediate results to fp16 with ``Arithmetic.narrow_norms``."""

import torch
from torch import Tensor

from ane.backends.mil.registry import Ints, Rounding, op


@op
def layer_norm(x: Tensor, axes: Ints | None = None, gamma: Tensor | None = None, beta: Tensor | None = None,
               epsilon: float = 1e-5, *, inner: Rounding) -> Tensor:
    """gamma and beta have the shape of the normalised axes."""
    axes = tuple(axis % x.ndim for axis in axes or range(x.ndim))
    shape = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
    return _affine(_standardised(x, axes, epsilon, inner), gamma, beta, shape, inner)


@op
def instance_norm(x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: float = 1e-5, *,
                  inner: Rounding) -> Tensor:
    """x (B, C, …); gamma and beta (C,)."""
    shape = [1, -1] + [1] * (x.ndim - 2)
    return _affine(_standardised(x, tuple(range(2, x.ndim)), epsilon, inner), gamma, beta, shape, inner)


@op
def batch_norm(x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None,
               epsilon: float = 1e-5, *, inner: Rounding) -> Tensor:
    """x (B, C, …); the others (C,)."""
    shape = [1, -1] + [1] * (x.ndim - 2)
    centred = inner(x - mean.reshape(shape))
    scaled = inner(centred * inner(inner(variance + epsilon).rsqrt()).reshape(shape))
    return _affine(scaled, gamma, beta, shape, inner)


@op
def l2_norm(x: Tensor, epsilon: float = 1e-6, *, inner: Rounding) -> Tensor:
    """Over the last three axes."""
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


def _axes(x: Tensor, axes: Ints | None) -> Ints:
    return tuple(range(x.ndim)) if axes is None else axes


@op
def reduce_sum(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    return x.sum(_axes(x, axes), keepdim=keep_dims)


@op
def reduce_mean(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    return x.float().mean(_axes(x, axes), keepdim=keep_dims)


@op
def reduce_max(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    return x.amax(_axes(x, axes), keepdim=keep_dims)


@op
def reduce_min(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    return x.amin(_axes(x, axes), keepdim=keep_dims)


@op
def reduce_prod(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    for axis in sorted((axis % x.ndim for axis in _axes(x, axes)), reverse=True):
        x = x.prod(axis, keepdim=keep_dims)
    return x


@op
def reduce_sum_square(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    return x.square().sum(_axes(x, axes), keepdim=keep_dims)


@op
def reduce_l1_norm(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    return x.abs().sum(_axes(x, axes), keepdim=keep_dims)


@op
def reduce_l2_norm(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    return x.square().sum(_axes(x, axes), keepdim=keep_dims).sqrt()


@op
def reduce_log_sum(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    return x.sum(_axes(x, axes), keepdim=keep_dims).log()


@op
def reduce_log_sum_exp(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
    return x.logsumexp(_axes(x, axes), keepdim=keep_dims)


@op
def reduce_argmax(x: Tensor, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32") -> Tensor:
    return torch.argmax(x, axis, keep_dims)


@op
def reduce_argmin(x: Tensor, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32") -> Tensor:
    return torch.argmin(x, axis, keep_dims)
