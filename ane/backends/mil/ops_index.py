"""Gather, scatter, sort and cumulative sums."""

import math

import torch
from torch import Tensor

from ane.backends.mil.registry import op


def _positive(indices: Tensor, size: int) -> Tensor:
    """Replace negative indices, which count from the end."""
    return torch.where(indices < 0, indices + size, indices)


@op(exact=True)
def gather(x: Tensor, indices: Tensor, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False) -> Tensor:
    axis %= x.ndim
    if batch_dims:
        rows = zip(x.flatten(0, batch_dims - 1), indices.flatten(0, batch_dims - 1), strict=True)
        taken = torch.stack([gather(row, index, axis - batch_dims) for row, index in rows])
        return taken.reshape(*x.shape[:batch_dims], *taken.shape[1:])
    taken = x.index_select(axis, _positive(indices, x.shape[axis]).reshape(-1))
    return taken.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1:])


@op(exact=True)
def gather_along_axis(x: Tensor, indices: Tensor, axis: int = 0, validate_indices: bool = False) -> Tensor:
    return torch.take_along_dim(x, _positive(indices, x.shape[axis]), axis)


@op(exact=True)
def gather_nd(x: Tensor, indices: Tensor, batch_dims: int = 0, validate_indices: bool = False) -> Tensor:
    if batch_dims:
        rows = zip(x.flatten(0, batch_dims - 1), indices.flatten(0, batch_dims - 1), strict=True)
        taken = torch.stack([gather_nd(row, index) for row, index in rows])
        return taken.reshape(*x.shape[:batch_dims], *taken.shape[1:])
    return x[indices.unbind(-1)]


@op
def scatter_along_axis(data: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, mode: str = "add",
                       validate_indices: bool = False) -> Tensor:
    indices = _positive(indices, data.shape[axis])
    if mode == "update":
        return data.scatter(axis, indices, updates)
    if mode in ("add", "sub"):
        return data.scatter_add(axis, indices, updates if mode == "add" else -updates)
    if mode == "div":
        return data.scatter_reduce(axis, indices, updates.reciprocal(), "prod")
    return data.scatter_reduce(axis, indices, updates, {"mul": "prod", "max": "amax", "min": "amin"}[mode])


@op
def scatter(data: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, mode: str = "add",
            validate_indices: bool = False) -> Tensor:
    """indices (n,) select whole slices along the axis."""
    axis %= data.ndim
    spread = indices.reshape(-1, *[1] * (data.ndim - axis - 1)).expand(updates.shape)
    return scatter_along_axis(data, spread, updates, axis, mode)


@op
def scatter_nd(data: Tensor, indices: Tensor, updates: Tensor, mode: str = "add",
               validate_indices: bool = False) -> Tensor:
    """indices (…, k): each is a position in the first k axes."""
    depth = indices.shape[-1]
    rows = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for axis, part in enumerate(indices.unbind(-1)):
        rows = rows * data.shape[axis] + _positive(part, data.shape[axis])
    flat = data.reshape(math.prod(data.shape[:depth]), -1)
    written = scatter(flat, rows.reshape(-1), updates.reshape(rows.numel(), -1), 0, mode)
    return written.reshape(data.shape)


@op
def cumsum(x: Tensor, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Tensor:
    data = x.flip(axis) if reverse else x
    total = data.cumsum(axis)
    if exclusive:
        total = total - data
    return total.flip(axis) if reverse else total


@op(exact=True)
def topk(x: Tensor, k: int = 1, axis: int = -1, ascending: bool = False, sort: bool = True,
         return_indices: bool = True, output_indices_dtype: str = "int32") -> tuple[Tensor, ...]:
    """Equal values keep their order."""
    values, indices = (part.narrow(axis, 0, k) for part in
                      torch.sort(x, dim=axis, descending=not ascending, stable=True))
    return (values, indices) if return_indices else (values,)


@op(exact=True)
def argsort(x: Tensor, axis: int = -1, ascending: bool = False) -> Tensor:
    return torch.argsort(x, dim=axis, descending=not ascending, stable=True)


@op
def one_hot(indices: Tensor, one_hot_vector_size: int, axis: int = -1, on_value: Tensor | None = None,
            off_value: Tensor | None = None) -> Tensor:
    hot = torch.arange(one_hot_vector_size) == indices.unsqueeze(-1)
    on, off = (torch.tensor(default) if value is None else value for value, default in ((on_value, 1), (off_value, 0)))
    return torch.where(hot, on, off).movedim(-1, axis)


@op
def band_part(x: Tensor, lower: int = -1, upper: int = -1) -> Tensor:
    """Keeps ``lower`` diagonals below the main one and ``upper`` above; −1 keeps all."""
    x = x if upper < 0 else x.tril(upper)
    return x if lower < 0 else x.triu(-lower)


@op(exact=True)
def non_zero(x: Tensor) -> Tensor:
    return x.nonzero()
