"""Implement the MIL ops for convolutions, linear and recurrent layers, attention, pooling and resizing."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.mil.ops_elementwise import softmax
from ane.backends.mil.registry import OPS, Ints, Rounding, op, rows

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

OPS.update(
    rows(
        {
            "linear": lambda x, weight, bias=None: F.linear(x, weight, bias),
            "matmul": lambda x, y, transpose_x=False, transpose_y=False: torch.matmul(
                x.mT if transpose_x else x, y.mT if transpose_y else y
            ),
            "einsum": lambda values, equation: torch.einsum(equation, *values),
        }
    )
)
OPS.update(
    rows(
        {
            "pixel_shuffle": lambda x, upscale_factor: F.pixel_shuffle(x, upscale_factor),
            "pixel_unshuffle": lambda x, downscale_factor: F.pixel_unshuffle(x, downscale_factor),
        },
        exact=True,
    )
)


@op
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    strides: Ints | None = None,
    pad_type: str = "valid",
    pad: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Tensor:
    """Convolve x (B, in, …) with a weight (out, in / groups, …)."""
    rank = x.ndim - 2
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    before, after = padding(x, tuple(weight.shape[2:]), strides, dilations, pad_type, pad)
    if groups == 1 and not any(before + after) and set(weight.shape[2:]) | set(strides) == {1}:
        # a convolution of width 1 is a matrix product, for which torch need not copy the weight into another layout
        flat = torch.matmul(weight.flatten(1), x.flatten(2))
        flat = flat if bias is None else flat.add_(bias[:, None])
        return flat.reshape(len(x), len(weight), *x.shape[2:])
    if before != after:
        x = F.pad(x, [size for pair in zip(reversed(before), reversed(after), strict=True) for size in pair])
        before = (0,) * rank
    return CONVOLUTIONS[rank](x, weight, bias, strides, before, dilations, groups)


def padding(
    x: Tensor, kernel: Ints, strides: Ints, dilations: Ints, pad_type: str, pad: Ints | None
) -> tuple[Ints, Ints]:
    """Return the padding to add before and after each spatial axis.

    If an axis needs an odd number of positions, "same" adds the extra position after the axis, and "same_lower" before
    it.
    """
    rank = x.ndim - 2
    if pad_type == "valid":
        return (0,) * rank, (0,) * rank
    if pad_type == "custom":
        return tuple(pad[::2]), tuple(pad[1::2])
    total = [
        max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
        for size, width, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    ]
    small, large = tuple(size // 2 for size in total), tuple(size - size // 2 for size in total)
    return (small, large) if pad_type == "same" else (large, small)


@op
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    pad: Ints | None = None,
    output_shape: Ints | None = None,
    pad_type: str = "valid",
    strides: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Tensor:
    """Compute a transposed convolution of x (B, in, …) with a weight (in, out / groups, …).

    The function computes the output without padding, and then crops it by ``pad`` and to ``output_shape``.
    """
    rank = x.ndim - 2
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    full = TRANSPOSED[rank](x, weight, bias, strides, 0, 0, groups, dilations)
    for axis in range(rank):
        size = full.shape[axis + 2]
        if pad_type == "same":
            length = x.shape[axis + 2] * strides[axis]
            before = max(0, size - length) // 2
        else:
            before, after = pad[2 * axis : 2 * axis + 2] if pad_type == "custom" else (0, 0)
            length = size - before - after
        if output_shape is not None:
            length = output_shape[axis + 2]
        full = full.narrow(axis + 2, before, min(length, size - before))
        if full.shape[axis + 2] < length:
            # no input reaches these positions, so they contain only the bias
            rest = list(full.shape)
            rest[axis + 2] = length - full.shape[axis + 2]
            shape = (1, -1) + (1,) * rank
            filler = full.new_zeros(rest) if bias is None else bias.reshape(shape).expand(rest)
            full = torch.cat((full, filler), dim=axis + 2)
    return full


@op
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *, inner: Rounding
) -> Tensor:
    scores = torch.matmul(query, key.mT) / math.sqrt(query.shape[-1])
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -math.inf)
        scores = scores + attn_mask
    return torch.matmul(softmax(inner(scores), -1, inner=inner), value)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@op
def lstm(
    x: Tensor,
    initial_h: Tensor,
    initial_c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    weight_ih_back: Tensor | None = None,
    weight_hh_back: Tensor | None = None,
    bias_back: Tensor | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    activation: str = "tanh",
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM over x (S, B, I).

    The rows of a weight belong to the input gate, the forget gate, the output gate and the cell, in this order. If
    ``direction`` is "bidirectional", the results of both directions are concatenated on the last axis.

    Returns:
        Three tensors: the hidden states (S, B, H) or, if ``output_sequence`` is false, only the last one (1, B, H). The
        last hidden state (B, H). The last cell state (B, H).
    """
    gates, cell, out = (_activation(name) for name in (recurrent_activation, cell_activation, activation))

    def run(
        inputs: Tensor, h: Tensor, c: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden = []
        for row in inputs @ weight_x.mT + (0 if bias is None else bias):
            i, f, o, z = (row + h @ weight_h.mT).chunk(4, dim=-1)
            c = gates(f) * c + gates(i) * cell(z)
            h = gates(o) * out(c)
            hidden.append(h)
        return torch.stack(hidden), h, c

    if direction != "bidirectional":
        axes = (0,) if direction == "reverse" else ()
        hidden, h, c = run(x.flip(axes), initial_h, initial_c, weight_ih, weight_hh, bias)
        hidden = hidden.flip(axes)
    else:
        (h, h_back), (c, c_back) = initial_h.chunk(2, dim=-1), initial_c.chunk(2, dim=-1)
        ahead = run(x, h, c, weight_ih, weight_hh, bias)
        hidden, *last = run(x.flip(0), h_back, c_back, weight_ih_back, weight_hh_back, bias_back)
        hidden, h, c = (torch.cat(pair, dim=-1) for pair in zip(ahead, (hidden.flip(0), *last), strict=True))
    return hidden if output_sequence else h[None], h, c


@op
def rnn(
    x: Tensor,
    initial_h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    activation: str = "tanh",
) -> tuple[Tensor, Tensor]:
    """Run an RNN over x (S, B, I).

    Returns:
        Two tensors: the hidden states (S, B, H) or, if ``output_sequence`` is false, only the last one (1, B, H). The
        last hidden state (B, H).
    """
    axes, activate = (0,) if direction == "reverse" else (), _activation(activation)
    hidden, h = [], initial_h
    for row in x.flip(axes) @ weight_ih.mT + (0 if bias is None else bias):
        h = activate(row + h @ weight_hh.mT)
        hidden.append(h)
    return torch.stack(hidden).flip(axes) if output_sequence else h[None], h


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in ACTIVATIONS:
        raise NotImplementedError(f"the activation {name!r}")
    return ACTIVATIONS[name]


MAX_POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEAN_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@op
def max_pool(
    x: Tensor,
    kernel_sizes: Ints,
    pad_type: str,
    strides: Ints | None = None,
    pad: Ints | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the maximum in every window of x (B, C, …)."""
    strides = strides or (1,) * len(kernel_sizes)
    before, after, beyond = _pool_padding(x, kernel_sizes, pad_type, strides, pad, ceil_mode)
    after = tuple(map(sum, zip(after, beyond, strict=True)))
    return MAX_POOLS[len(kernel_sizes)](_padded(x, before, after, -math.inf), kernel_sizes, strides)


@op
def avg_pool(
    x: Tensor,
    kernel_sizes: Ints,
    pad_type: str,
    strides: Ints | None = None,
    pad: Ints | None = None,
    exclude_padding_from_average: bool = False,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the mean in every window of x (B, C, …).

    If ``ceil_mode`` is true, the last window may reach beyond the padding. As in torch, such positions do not count.
    """
    strides = strides or (1,) * len(kernel_sizes)
    before, after, beyond = _pool_padding(x, kernel_sizes, pad_type, strides, pad, ceil_mode)
    ones = _padded(torch.ones_like(x[:1, :1]), before, after, 0.0 if exclude_padding_from_average else 1.0)
    zeros = (0,) * len(beyond)
    total, count = (
        MEAN_POOLS[len(kernel_sizes)](_padded(values, zeros, beyond, 0.0), kernel_sizes, strides)
        for values in (_padded(x, before, after, 0.0), ones)
    )
    return total / count


def _pool_padding(
    x: Tensor, kernel: Ints, pad_type: str, strides: Ints, pad: Ints | None, ceil_mode: bool
) -> tuple[Ints, Ints, Ints]:
    """Return three lists with a number for each spatial axis: padding before it, padding after it, and extra positions.

    Extra positions follow the padding. If ``ceil_mode`` is true, the last window may need them.
    """
    before, after = padding(x, kernel, strides, (1,) * len(kernel), pad_type, pad)
    beyond = []
    for size, width, stride, low, high in zip(x.shape[2:], kernel, strides, before, after, strict=True):
        rest = (size + low + high - width) % stride
        starts_inside = size + high - rest + stride - width < size  # torch drops a window that starts in the padding
        beyond.append(stride - rest if ceil_mode and rest and starts_inside else 0)
    return before, after, tuple(beyond)


def _padded(x: Tensor, before: Ints, after: Ints, value: float) -> Tensor:
    sizes = [size for pair in zip(reversed(before), reversed(after), strict=True) for size in pair]
    return F.pad(x, sizes, value=value) if any(sizes) else x


@op(exact=True)
def upsample_nearest_neighbor(x: Tensor, scale_factor_height: float = 1.0, scale_factor_width: float = 1.0) -> Tensor:
    return _resized(x, scale_factor_height, scale_factor_width, mode="nearest")


@op
def upsample_bilinear(
    x: Tensor,
    scale_factor_height: float = 1.0,
    scale_factor_width: float = 1.0,
    align_corners: bool = True,
    half_pixel_centers: bool | None = None,
) -> Tensor:
    if half_pixel_centers is not None and half_pixel_centers == align_corners:
        raise NotImplementedError("half_pixel_centers equal to align_corners")
    return _resized(x, scale_factor_height, scale_factor_width, mode="bilinear", align_corners=align_corners)


def _resized(x: Tensor, height: float, width: float, **how: Any) -> Tensor:
    size = (math.floor(x.shape[-2] * height), math.floor(x.shape[-1] * width))
    image = x.reshape(1, -1, *x.shape[-2:])
    return F.interpolate(image, size, **how).reshape(*x.shape[:-2], *size)


@op
def resample(
    x: Tensor,
    coordinates: Tensor,
    sampling_mode: str,
    padding_mode: str,
    padding_value: float,
    coordinates_mode: str,
    align_corners: bool,
) -> Tensor:
    """Sample x (B, C, H, W) at ``coordinates`` (B, H2, W2, 2) → (B, C, H2, W2). A coordinate is a pair (x, y)."""
    if coordinates_mode != "normalized_minus_one_to_one":
        raise NotImplementedError(f"coordinates_mode {coordinates_mode!r}")
    modes = {"constant": "zeros", "border": "border", "reflection" if align_corners else "symmetric": "reflection"}
    if padding_mode not in modes or (padding_mode == "constant" and padding_value):
        raise NotImplementedError(
            f"the padding_mode {padding_mode!r} with align_corners {align_corners} and padding_value {padding_value}"
        )
    return F.grid_sample(x, coordinates.float(), sampling_mode, modes[padding_mode], align_corners)
