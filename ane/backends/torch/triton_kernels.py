"""Kernels in Triton for one decoder step of a GPT-2: a linear layer with all that surrounds it, and cached attention.

Triton compiles them when they are first launched (https://triton-lang.org). Importing this module imports triton, which
torch for CUDA on Linux brings. With TRITON_INTERPRET=1 they run on the CPU, in NumPy.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

MOST_ROWS = 32          # of a tile: its norm holds whole rows in registers
MOST_COLUMNS = 32       # of a tile
TILES = 64              # tiles become narrower, down to 16 columns, where a layer would have fewer of them
POSITIONS = 128         # cached positions that attention reads at a time


@triton.jit
def row_moments(rows, exists, eps, INPUTS: tl.constexpr, PADDED_INPUTS: tl.constexpr):
    """Mean and 1 / √(variance + eps) of rows, (ROWS, 1) each; the variance is computed from centred values.

    Args:
        rows: (ROWS, 1) pointers to their first values. exists: (ROWS, 1), which of them to read.
    """
    inputs = tl.arange(0, PADDED_INPUTS)[None, :]
    mask = exists & (inputs < INPUTS)
    x = tl.load(rows + inputs, mask=mask, other=0.0)
    mean = tl.sum(x, axis=1, keep_dims=True) / INPUTS
    centred = tl.where(mask, x - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / INPUTS + eps)


@triton.jit
def linear_kernel(x, weight, bias, norm_weight, norm_bias, residual, out, rows, eps, INPUTS: tl.constexpr,
                  OUTPUTS: tl.constexpr, PADDED_INPUTS: tl.constexpr, GELU: tl.constexpr, ROWS: tl.constexpr,
                  COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """One tile (ROWS, COLUMNS) of ``linear``, BLOCK inputs at a time; a None in the arguments skips that part.

    Each program normalizes its rows again: they are read from the cache, where another kernel would have to be
    launched.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    exists = row < rows
    x_rows = x + row * INPUTS
    if norm_weight is not None:
        mean, factor = row_moments(x_rows, exists, eps, INPUTS, PADDED_INPUTS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, INPUTS, BLOCK):
        inputs = start + tl.arange(0, BLOCK)
        inside = inputs < INPUTS
        left = tl.load(x_rows + inputs[None, :], mask=exists & inside[None, :], other=0.0)
        if norm_weight is not None:
            gain = tl.load(norm_weight + inputs, mask=inside, other=0.0)[None, :]
            left = (left - mean) * factor * gain + tl.load(norm_bias + inputs, mask=inside, other=0.0)[None, :]
        right = tl.load(weight + inputs[:, None] * OUTPUTS + column, mask=inside[:, None] & (column < OUTPUTS),
                        other=0.0)
        total = tl.dot(left.to(right.dtype), right, total, input_precision="ieee")
    total += tl.load(bias + column, mask=column < OUTPUTS, other=0.0).to(tl.float32)
    if GELU:    # Hendrycks and Gimpel 2016: x/2 · (1 + tanh u) = x · sigmoid(2u), u = √(2/π) · (x + 0.044715 x³)
        total *= tl.sigmoid(1.5957691216057308 * (total + 0.044715 * total * total * total))
    mask = exists & (column < OUTPUTS)
    if residual is not None:
        total += tl.load(residual + row * OUTPUTS + column, mask=mask, other=0.0)
    tl.store(out + row * OUTPUTS + column, total, mask=mask)


@triton.jit
def attend_to(q, keys, values, count, channel, maximum, total, weighted, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Extend an online softmax (Milakov and Gimelshein 2018, as FlashAttention does, Dao et al. 2022) by positions.

    Args:
        q: (channels,) float32, scaled. keys, values: pointers to ``count`` positions of WIDTH channels.
        maximum: the largest score so far. total: sum of exp(score − maximum). weighted: (channels,) sum of
            exp(score − maximum) · value. All float32.
    """
    for start in tl.range(0, count, BLOCK, num_stages=2):
        position = start + tl.arange(0, BLOCK)
        exists = position < count       # nothing else is read: a cache may hold NaN after its last position
        mask = exists[:, None] & (channel < WIDTH)[None, :]
        offset = position[:, None] * WIDTH + channel[None, :]
        key = tl.load(keys + offset, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(exists, tl.sum(q[None, :] * key, axis=1), float("-inf"))
        larger = tl.maximum(maximum, tl.max(scores, axis=0))
        weights, decay = tl.exp(scores - larger), tl.exp(maximum - larger)
        total = total * decay + tl.sum(weights, axis=0)
        weighted = weighted * decay + tl.sum(weights[:, None] * value, axis=0)
        maximum = larger
    return maximum, total, weighted


@triton.jit
def attention_kernel(qkv, keys, values, prefix_keys, prefix_values, lengths, prefix_indices, prefix_lengths, out,
                     scale, capacity, positions, prefix_positions, HEADS: tl.constexpr, WIDTH: tl.constexpr,
                     PADDED_WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One lane and head of ``attend``. The sums start with the new column, whose key and value are in registers."""
    lane, head = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, PADDED_WIDTH)
    inside = channel < WIDTH
    new = qkv + (lane * 3 * HEADS + head) * WIDTH + channel
    q = tl.load(new, mask=inside, other=0.0).to(tl.float32) * scale
    k = tl.load(new + HEADS * WIDTH, mask=inside, other=0.0)
    v = tl.load(new + 2 * HEADS * WIDTH, mask=inside, other=0.0)
    length = tl.load(lengths + lane)
    own = (lane * HEADS + head).to(tl.int64) * positions * WIDTH
    tl.store(keys + own + length * WIDTH + channel, k, mask=inside)
    tl.store(values + own + length * WIDTH + channel, v, mask=inside)

    index = tl.load(prefix_indices + lane)
    prefix = (index * HEADS + head) * prefix_positions * WIDTH
    requested = length < capacity                   # the others read nothing
    count = tl.where(requested, length, 0).to(tl.int32)
    prefix_count = tl.where(requested, tl.load(prefix_lengths + index), 0).to(tl.int32)
    maximum, total, weighted = tl.sum(q * k.to(tl.float32), axis=0), tl.full((), 1.0, tl.float32), v.to(tl.float32)
    maximum, total, weighted = attend_to(q, prefix_keys + prefix, prefix_values + prefix, prefix_count, channel,
                                         maximum, total, weighted, WIDTH, BLOCK)
    maximum, total, weighted = attend_to(q, keys + own, values + own, count, channel,
                                         maximum, total, weighted, WIDTH, BLOCK)
    tl.store(out + (lane * HEADS + head) * WIDTH + channel, weighted / total, mask=inside)


def linear(x: Tensor, layer: nn.Module, norm: nn.LayerNorm | None = None, gelu: bool = False,
           residual: Tensor | None = None) -> Tensor:
    """The linear layer of ``norm(x)`` or x, its GELU or its sum with ``residual``, in one kernel.

    Args:
        x: (rows, inputs), float32 with ``norm``, else as the weights are.
        layer: its weight (inputs, outputs) and bias. The product is summed in float32.
        residual: (rows, outputs) float32.

    Returns:
        (rows, outputs), as ``residual`` is, else as the weights are.
    """
    (rows, inputs), outputs = x.shape, layer.weight.shape[1]
    if not (x.is_contiguous() and layer.weight.is_contiguous()):
        raise ValueError("x and the weight of a linear layer must be contiguous")
    out = torch.empty((rows, outputs), dtype=(layer.weight if residual is None else residual).dtype, device=x.device)
    tile = min(max(triton.next_power_of_2(rows), 16), MOST_ROWS)        # tl.dot multiplies at least 16 by 16
    columns = max(min(triton.next_power_of_2(outputs // TILES), MOST_COLUMNS), 16)
    linear_kernel[triton.cdiv(rows, tile), triton.cdiv(outputs, columns)](
        x, layer.weight, layer.bias, norm and norm.weight, norm and norm.bias, residual, out, rows,
        norm.eps if norm else 0.0, INPUTS=inputs, OUTPUTS=outputs, PADDED_INPUTS=triton.next_power_of_2(inputs),
        GELU=gelu, ROWS=tile, COLUMNS=columns, BLOCK=64 if layer.weight.dtype == torch.float32 else 128,
        num_warps=tile // 4, num_stages=4)
    return out


def attend(qkv: Tensor, keys: Tensor, values: Tensor, prefix_keys: Tensor, prefix_values: Tensor, lengths: Tensor,
           prefix_indices: Tensor, prefix_lengths: Tensor, capacity: int) -> Tensor:
    """Write each lane's new key and value to its position, then attend to its prefix and its own positions.

    Args:
        qkv: (lanes, 3 · heads · w), the query, key and value of one new column of each lane.
        keys, values: (lanes, heads, positions, w), the lanes' own. prefix_keys, prefix_values: (prefixes, heads,
            prefix positions, w). All contiguous.
        lengths: (lanes,) positions of each lane before the new one; a lane with ``capacity`` positions writes there
            and reads nothing.
        prefix_indices: (lanes,) index of each lane's prefix. prefix_lengths: (prefixes,) positions in use.

    Returns:
        (lanes, heads · w), as ``qkv`` is; scores and sums are float32.
    """
    lanes, heads, positions, width = keys.shape
    out = torch.empty((lanes, heads * width), dtype=qkv.dtype, device=qkv.device)
    attention_kernel[lanes, heads](
        qkv, keys, values, prefix_keys, prefix_values, lengths, prefix_indices, prefix_lengths, out, width ** -0.5,
        capacity, positions, prefix_keys.shape[2], HEADS=heads, WIDTH=width,
        PADDED_WIDTH=triton.next_power_of_2(width), BLOCK=POSITIONS, num_warps=4)
    return out
