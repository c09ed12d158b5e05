"""Convolutions, linear layers, matrix products and attention."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.mil.ops_norm import softmax
from ane.backends.mil.registry import Ints, Rounding, Tensors, op

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@op
def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, strides: Ints | None = None, pad_type: str = "valid",
         pad: Ints | None = None, dilations: Ints | None = None, groups: int = 1) -> Tensor:
    """x (B, in, …), weight (out, in / groups, …)."""
    rank = x.ndim - 2
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    before, after = padding(x, tuple(weight.shape[2:]), strides, dilations, pad_type, pad)
    if groups == 1 and not any(before + after) and set(weight.shape[2:]) | set(strides) == {1}:
        # a convolution of width 1 is a matrix product; torch's conv would copy the weight into another layout
        flat = torch.matmul(weight.flatten(1), x.flatten(2))
        flat = flat if bias is None else flat.add_(bias[:, None])
        return flat.reshape(len(x), len(weight), *x.shape[2:])
    if before != after:
        x = F.pad(x, [size for pair in zip(reversed(before), reversed(after), strict=True) for size in pair])
        before = (0,) * rank
    return CONVOLUTIONS[rank](x, weight, bias, strides, before, dilations, groups)


def padding(x: Tensor, kernel: Ints, strides: Ints, dilations: Ints, pad_type: str,
            pad: Ints | None) -> tuple[Ints, Ints]:
    """Sizes to add before and after each spatial axis; "same" puts an odd one after, "same_lower" before."""
    rank = x.ndim - 2
    if pad_type == "valid":
        return (0,) * rank, (0,) * rank
    if pad_type == "custom":
        return tuple(pad[::2]), tuple(pad[1::2])
    total = [max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
             for size, width, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True)]
    small, large = tuple(size // 2 for size in total), tuple(size - size // 2 for size in total)
    return (small, large) if pad_type == "same" else (large, small)


@op
def conv_transpose(x: Tensor, weight: Tensor, bias: Tensor | None = None, pad: Ints | None = None,
                   output_shape: Ints | None = None, pad_type: str = "valid", strides: Ints | None = None,
                   dilations: Ints | None = None, groups: int = 1) -> Tensor:
    """x (B, in, …), weight (in, out / groups, …): the unpadded result, cropped to padding and output shape."""
    rank = x.ndim - 2
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    full = TRANSPOSED[rank](x, weight, bias, strides, 0, 0, groups, dilations)
    for axis in range(rank):
        size = full.shape[axis + 2]
        if pad_type == "same":
            kept = x.shape[axis + 2] * strides[axis]
            before = max(0, size - kept) // 2
        else:
            before, after = pad[2 * axis:2 * axis + 2] if pad_type == "custom" else (0, 0)
            kept = size - before - after
        if output_shape is not None:
            kept = output_shape[axis + 2]
        full = full.narrow(axis + 2, before, min(kept, size - before))
        if full.shape[axis + 2] < kept:
            # positions that no input reaches hold only the bias
            rest = list(full.shape)
            rest[axis + 2] = kept - full.shape[axis + 2]
            shape = (1, -1) + (1,) * rank
            filler = full.new_zeros(rest) if bias is None else bias.reshape(shape).expand(rest)
            full = torch.cat((full, filler), dim=axis + 2)
    return full


@op
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


@op
def matmul(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    return torch.matmul(x.mT if transpose_x else x, y.mT if transpose_y else y)


@op
def einsum(values: Tensors, equation: str) -> Tensor:
    return torch.einsum(equation, *values)


@op
def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *,
                                 inner: Rounding) -> Tensor:
    scores = torch.matmul(query, key.mT) / math.sqrt(query.shape[-1])
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -math.inf)
        scores = scores + attn_mask
    return torch.matmul(softmax(inner(scores), -1, inner=inner), value)
