"""Pooling, resizing and resampling."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.mil.ops_linear import padding
from ane.backends.mil.registry import Ints, op

MAX_POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEAN_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@op
def max_pool(x: Tensor, kernel_sizes: Ints, pad_type: str, strides: Ints | None = None, pad: Ints | None = None,
             ceil_mode: bool = False) -> Tensor:
    """x (B, C, …)."""
    strides = strides or (1,) * len(kernel_sizes)
    before, after, beyond = _pool_padding(x, kernel_sizes, pad_type, strides, pad, ceil_mode)
    after = tuple(map(sum, zip(after, beyond, strict=True)))
    return MAX_POOLS[len(kernel_sizes)](_padded(x, before, after, -math.inf), kernel_sizes, strides)


@op
def avg_pool(x: Tensor, kernel_sizes: Ints, pad_type: str, strides: Ints | None = None, pad: Ints | None = None,
             exclude_padding_from_average: bool = False, ceil_mode: bool = False) -> Tensor:
    """As torch counts: what lies beyond the padding, where ``ceil_mode`` adds a window, is not in the average."""
    strides = strides or (1,) * len(kernel_sizes)
    before, after, beyond = _pool_padding(x, kernel_sizes, pad_type, strides, pad, ceil_mode)
    ones = _padded(torch.ones_like(x[:1, :1]), before, after, 0.0 if exclude_padding_from_average else 1.0)
    zeros = (0,) * len(beyond)
    total, count = (MEAN_POOLS[len(kernel_sizes)](_padded(values, zeros, beyond, 0.0), kernel_sizes, strides)
                    for values in (_padded(x, before, after, 0.0), ones))
    return total / count



def _pool_padding(x: Tensor, kernel: Ints, pad_type: str, strides: Ints, pad: Ints | None,
                  ceil_mode: bool) -> tuple[Ints, Ints, Ints]:
    """Sizes to add before and after each spatial axis, and beyond them for the last window of ``ceil_mode``."""
    before, after = padding(x, kernel, strides, (1,) * len(kernel), pad_type, pad)
    beyond = []
    for size, width, stride, low, high in zip(x.shape[2:], kernel, strides, before, after, strict=True):
        rest = (size + low + high - width) % stride
        starts_inside = size + high - rest + stride - width < size      # else torch drops that window
        beyond.append(stride - rest if ceil_mode and rest and starts_inside else 0)
    return before, after, tuple(beyond)


def _padded(x: Tensor, before: Ints, after: Ints, value: float) -> Tensor:
    sizes = [size for pair in zip(reversed(before), reversed(after), strict=True) for size in pair]
    return F.pad(x, sizes, value=value) if any(sizes) else x


@op(exact=True)
def upsample_nearest_neighbor(x: Tensor, scale_factor_height: float = 1.0, scale_factor_width: float = 1.0) -> Tensor:
    return _resized(x, scale_factor_height, scale_factor_width, mode="nearest")


@op
def upsample_bilinear(x: Tensor, scale_factor_height: float = 1.0, scale_factor_width: float = 1.0,
                      align_corners: bool = True, half_pixel_centers: bool | None = None) -> Tensor:
    if half_pixel_centers is not None and half_pixel_centers == align_corners:
        raise NotImplementedError("half_pixel_centers equal to align_corners")
    return _resized(x, scale_factor_height, scale_factor_width, mode="bilinear", align_corners=align_corners)


def _resized(x: Tensor, height: float, width: float, **how) -> Tensor:
    size = (math.floor(x.shape[-2] * height), math.floor(x.shape[-1] * width))
    image = x.reshape(1, -1, *x.shape[-2:])
    return F.interpolate(image, size, **how).reshape(*x.shape[:-2], *size)


@op(exact=True)
def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    return F.pixel_shuffle(x, upscale_factor)


@op(exact=True)
def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    return F.pixel_unshuffle(x, downscale_factor)


@op
def resample(x: Tensor, coordinates: Tensor, sampling_mode: str, padding_mode: str, padding_value: float,
             coordinates_mode: str, align_corners: bool) -> Tensor:
    """x (B, C, H, W) at coordinates (B, H2, W2, 2), x before y: (B, C, H2, W2)."""
    if coordinates_mode != "normalized_minus_one_to_one":
        raise NotImplementedError(f"coordinates_mode {coordinates_mode!r}")
    modes = {"constant": "zeros", "border": "border", "reflection" if align_corners else "symmetric": "reflection"}
    if padding_mode not in modes or (padding_mode == "constant" and padding_value):
        raise NotImplementedError(f"padding_mode {padding_mode!r} with align_corners {align_corners} and "
                                  f"padding_value {padding_value}")
    return F.grid_sample(x, coordinates.float(), sampling_mode, modes[padding_mode], align_corners)
