"""Implement the MIL ops that move values or change a shape (gather, scatter, sort, …) or compute cumulative sums."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.mil.registry import OPS, Bools, Ints, Tensors, op, rows

OPS.update(
    rows(
        {
            "split": lambda x, axis, num_splits=None, split_sizes=None: torch.split(
                x, split_sizes or x.shape[axis] // num_splits, axis
            ),
            "stack": lambda values, axis: torch.stack(values, axis),
            "transpose": lambda x, perm: x.permute(perm),
            # a size of 0 means the size of ``x`` on the same axis, counted from the last axis; torch infers a size of
            # −1
            "reshape": lambda x, shape: x.reshape(
                tuple(x.shape[axis - len(shape)] if size == 0 else size for axis, size in enumerate(shape))
            ),
            "squeeze": lambda x, axes=None: x.squeeze() if axes is None else x.squeeze(axes),
            "reverse": lambda x, axes=None: x.flip(tuple(range(x.ndim)) if axes is None else axes),
            "tile": lambda x, reps: x.repeat(reps),
            "crop": lambda x, crop_height, crop_width: x[
                ..., crop_height[0] : x.shape[-2] - crop_height[1], crop_width[0] : x.shape[-1] - crop_width[1]
            ],
            "shape": lambda x: torch.tensor(x.shape),
            "gather_along_axis": lambda x, indices, axis=0, validate_indices=False: torch.take_along_dim(
                x, _positive(indices, x.shape[axis]), axis
            ),
            "argsort": lambda x, axis=-1, ascending=False: torch.argsort(
                x, dim=axis, descending=not ascending, stable=True
            ),
            "non_zero": lambda x: x.nonzero(),
            "fill_like": lambda ref_tensor, value: value.expand(ref_tensor.shape),
        },
        exact=True,
    )
)


@op(exact=True)
def concat(values: Tensors, axis: int, interleave: bool = False) -> Tensor:
    values = tuple(value.reshape(1) if value.ndim == 0 else value for value in values)
    if not interleave:
        return torch.cat(values, axis)
    axis %= values[0].ndim
    return torch.stack(values, axis + 1).flatten(axis, axis + 1)


@op(exact=True)
def expand_dims(x: Tensor, axes: Ints) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


@op(exact=True)
def pad(x: Tensor, pad: Ints, mode: str = "constant", constant_val: float = 0.0) -> Tensor:
    """Pad the last axes of x. ``pad`` has two numbers per axis, before and after it, in the order of the axes."""
    first = x.ndim - len(pad) // 2
    if mode == "constant":
        return F.pad(
            x,
            [size for axis in reversed(range(len(pad) // 2)) for size in pad[2 * axis : 2 * axis + 2]],
            value=constant_val,
        )
    for axis, before, after in zip(range(first, x.ndim), pad[::2], pad[1::2], strict=True):
        if before or after:
            last = x.shape[axis] - 1
            index = torch.arange(-before, last + 1 + after)
            index = index.clamp(0, last) if mode == "replicate" else last - (last - index.abs()).abs()
            x = x.index_select(axis, index)
    return x


@op(exact=True)
def slice_by_index(
    x: Tensor,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Bools | None = None,
    end_mask: Bools | None = None,
    squeeze_mask: Bools | None = None,
) -> Tensor:
    slices, flipped = _slices(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    taken = x[slices].flip(flipped) if flipped else x[slices]
    dropped = tuple(axis for axis, drop in enumerate(squeeze_mask or ()) if drop)
    return taken.squeeze(dropped) if dropped else taken


@op(exact=True)
def slice_update(
    x: Tensor,
    update: Tensor,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Bools | None = None,
    end_mask: Bools | None = None,
    squeeze_mask: Bools | None = None,
) -> Tensor:
    slices, flipped = _slices(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    x = x.clone()
    x[slices] = update.reshape(x[slices].shape).flip(flipped)
    return x


def _slices(
    x: Tensor,
    begin: Ints,
    end: Ints,
    stride: Ints | None,
    begin_mask: Bools | None,
    end_mask: Bools | None,
    squeeze_mask: Bools | None,
) -> tuple[tuple[slice, ...], Ints]:
    """Convert the arguments of ``slice_by_index`` to slices.

    torch has no negative steps, so each slice has a positive step.

    Returns:
        A slice for each axis of x, and the axes to flip after slicing.
    """
    absent = (False,) * x.ndim
    slices, flipped = [], []
    for axis, size in enumerate(x.shape):
        start = None if (begin_mask or absent)[axis] else begin[axis]
        if (squeeze_mask or absent)[axis]:
            index = (start or 0) % size
            slices.append(slice(index, index + 1))
            continue
        stop = None if (end_mask or absent)[axis] else end[axis]
        indices = range(size)[slice(start, stop, (stride or (1,) * x.ndim)[axis])]
        if indices.step < 0:
            flipped.append(axis)
            indices = indices[::-1]
        slices.append(slice(indices.start, indices.start + len(indices) * indices.step, indices.step))
    return tuple(slices), tuple(flipped)


@op(exact=True)
def slice_by_size(x: Tensor, begin: Ints, size: Ints) -> Tensor:
    """Take ``size`` positions of each axis, beginning at ``begin``. A size of −1 takes all remaining positions."""
    for axis, (start, length) in enumerate(zip(begin, size, strict=True)):
        start %= x.shape[axis]
        x = x.narrow(axis, start, x.shape[axis] - start if length == -1 else length)
    return x


def _positive(indices: Tensor, size: int) -> Tensor:
    """Convert negative indices, which count from the end of an axis with ``size`` positions, to positive indices."""
    return torch.where(indices < 0, indices + size, indices)


@op(exact=True)
def gather(x: Tensor, indices: Tensor, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False) -> Tensor:
    axis %= x.ndim
    if batch_dims:
        rows = zip(x.flatten(0, batch_dims - 1), indices.flatten(0, batch_dims - 1), strict=True)
        taken = torch.stack([gather(row, index, axis - batch_dims) for row, index in rows])
        return taken.reshape((*x.shape[:batch_dims], *taken.shape[1:]))
    taken = x.index_select(axis, _positive(indices, x.shape[axis]).reshape(-1))
    return taken.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@op(exact=True)
def gather_nd(x: Tensor, indices: Tensor, batch_dims: int = 0, validate_indices: bool = False) -> Tensor:
    if batch_dims:
        rows = zip(x.flatten(0, batch_dims - 1), indices.flatten(0, batch_dims - 1), strict=True)
        taken = torch.stack([gather_nd(row, index) for row, index in rows])
        return taken.reshape((*x.shape[:batch_dims], *taken.shape[1:]))
    return x[indices.unbind(-1)]


@op
def scatter_along_axis(
    data: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, mode: str = "add", validate_indices: bool = False
) -> Tensor:
    indices = _positive(indices, data.shape[axis])
    if mode == "update":
        return data.scatter(axis, indices, updates)
    if mode in ("add", "sub"):
        return data.scatter_add(axis, indices, updates if mode == "add" else -updates)
    if mode == "div":
        return data.scatter_reduce(axis, indices, updates.reciprocal(), "prod")
    return data.scatter_reduce(axis, indices, updates, {"mul": "prod", "max": "amax", "min": "amin"}[mode])


@op
def scatter(
    data: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, mode: str = "add", validate_indices: bool = False
) -> Tensor:
    """Scatter whole slices of ``updates`` to the positions ``indices`` (n,) of ``axis``."""
    axis %= data.ndim
    spread = indices.reshape(-1, *[1] * (data.ndim - axis - 1)).expand(updates.shape)
    return scatter_along_axis(data, spread, updates, axis, mode)


@op
def scatter_nd(
    data: Tensor, indices: Tensor, updates: Tensor, mode: str = "add", validate_indices: bool = False
) -> Tensor:
    """Scatter ``updates`` to positions in the first k axes of ``data``. ``indices`` (…, k) has these positions."""
    depth = indices.shape[-1]
    rows = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for axis, part in enumerate(indices.unbind(-1)):
        rows = rows * data.shape[axis] + _positive(part, data.shape[axis])
    width = math.prod(data.shape[depth:])
    flat = data.reshape(math.prod(data.shape[:depth]), width)
    written = scatter(
        flat,
        rows.reshape(-1),
        updates.expand(*indices.shape[:-1], *data.shape[depth:]).reshape(rows.numel(), width),
        0,
        mode,
    )
    return written.reshape(data.shape)


@op
def cumsum(x: Tensor, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Tensor:
    data = x.flip(axis) if reverse else x
    total = data.cumsum(axis)
    if exclusive:  # shift the sums, because subtracting x would lose digits and turn infinities into NaN
        total = torch.cat(
            (torch.zeros_like(data.narrow(axis, 0, 1)), total.narrow(axis, 0, data.shape[axis] - 1)), axis
        )
    return total.flip(axis) if reverse else total


@op(exact=True)
def topk(
    x: Tensor,
    k: int = 1,
    axis: int = -1,
    ascending: bool = False,
    sort: bool = True,
    return_indices: bool = True,
    output_indices_dtype: str = "int32",
) -> tuple[Tensor, ...]:
    """Return the k largest or smallest values along ``axis``. Equal values keep their order."""
    values, indices = (
        part.narrow(axis, 0, k) for part in torch.sort(x, dim=axis, descending=not ascending, stable=True)
    )
    return (values, indices) if return_indices else (values,)


@op
def one_hot(
    indices: Tensor,
    one_hot_vector_size: int,
    axis: int = -1,
    on_value: Tensor | None = None,
    off_value: Tensor | None = None,
) -> Tensor:
    hot = torch.arange(one_hot_vector_size) == indices.unsqueeze(-1)
    on, off = (torch.tensor(default) if value is None else value for value, default in ((on_value, 1), (off_value, 0)))
    return torch.where(hot, on, off).movedim(-1, axis)


@op
def band_part(x: Tensor, lower: int = -1, upper: int = -1) -> Tensor:
    """Keep a matrix's main diagonal, ``lower`` diagonals below it and ``upper`` above it. −1 means all diagonals."""
    x = x if upper < 0 else x.tril(upper)
    return x if lower < 0 else x.triu(-lower)
