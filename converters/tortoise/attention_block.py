"""Build the attention block of Tortoise's diffusion decoder and conditioning encoders in a Core ML graph.

The PyTorch classes are ``AttentionBlock`` and ``RelativePositionBias`` in ``ane.models.tortoise.networks.layers``.
"""

import numpy as np
import torch

from ane.models.tortoise.networks.layers import AttentionBlock, RelativePositionBias
from converters import blocks
from converters.blocks import PaddingMask
from converters.coreml.graph import Style, Var, array, mb

QUERY_BLOCK = 96  # relative attention handles this many queries together, to limit the size of scores and stored bias
BIAS_REACH = 64  # beyond this distance, the bias is constant (in ane.models.tortoise.networks.layers, beyond 49)
# Factor for the mask. The Neural Engine of an M1 multiplies sliced values by 16, and 16 times the mask would overflow
# fp16.
MASK_SHARE = 0.2
MAX_PRODUCTS = 16  # products of queries and keys in a layer. More products cost more compile time than they save


def attention_block(
    s: Style,
    x: Var,
    layer: AttentionBlock,
    padding: PaddingMask | None = None,
    scale: float = 1.0,
    name: str | None = None,
    columns: int | None = None,
) -> Var:
    """Apply an attention block to x (B, C, 1, S), which is already multiplied by ``scale``.

    If ``columns`` is given, the block computes only the first ``columns`` columns of its output. An attention with a
    relative bias does not support this argument.
    """
    B, C, *_ = x.shape
    heads, bias = layer.heads, layer.relative_pos_embeddings
    y = blocks.group_norm(s, x, layer.norm, padding, scale)
    queries = y
    if columns is not None:
        x, queries = (mb.slice_by_index(x=whole, begin=(0, 0, 0, 0), end=(B, C, 1, columns)) for whole in (x, y))
    q, k, v = (
        blocks.conv(s, source, *part)
        for source, part in zip((queries, y, y), blocks.queries_keys_values(layer.qkv, heads), strict=True)
    )
    mask = padding and padding.mask
    y = blocks.attention(s, q, k, v, heads, mask) if bias is None else relative_attention(s, q, k, v, heads, bias, mask)
    return mb.add(x=x, y=blocks.linear(s, y, layer.proj_out, scale=scale), **blocks.named(name))


def relative_attention(
    s: Style, q: Var, k: Var, v: Var, heads: int, bias: RelativePositionBias, mask: Var | None
) -> Var:
    """Attend with a bias that depends on the distance between query and key, without fused attention.

    The queries are handled in blocks, and the heads in groups. The full bias (heads, S, S) would take 150 MB per layer
    at S = 2176. But beyond ``BIAS_REACH``, the bias of a head is one constant before the query and another constant
    after it. Additional channels of queries and keys add these constants and the mask to the scores, without an
    operation on all scores. The package stores only the bias near the query, as a band (heads, block, block +
    2·BIAS_REACH), which all blocks share.

    Args:
        s: Precision of the graph.
        q, k, v: Queries, keys and values, (B, C, 1, S). q and k are already multiplied by width^−¼ each.
        heads: Number of heads.
        bias: Bias of the PyTorch layer.
        mask: Mask to add to the scores, (1, 1, 1, S).
    """
    q, k, v = (blocks.split_heads(x, heads) for x in (q, k, v))
    B, _, _, S = q.shape
    block = min(QUERY_BLOCK, S)
    groups = blocks.head_groups(heads, B * block * S * np.dtype(s.dtype).itemsize)
    groups = groups if groups * -(-S // block) <= MAX_PRODUCTS else 1
    full = array(bias(block + 2 * BIAS_REACH, torch.float32))[None]  # (1, heads, query, key)
    q, k = _with_biases(s, q, k, (full[:, :, -1:, :1], full[:, :, :1, -1:]), block, mask)
    by_group = list(zip(*(blocks.split(x, groups, 1) for x in (q, k, v)), strict=True))
    attended: list[list[Var]] = [[] for _ in by_group]
    bands: dict[tuple[int, ...], list[Var]] = {}
    for start in range(0, S, block):
        end = min(start + block, S)
        left, right, first = max(start - BIAS_REACH, 0), min(end + BIAS_REACH, S), start - BIAS_REACH
        near = end - start, left - first, right - first
        if near not in bands:
            band = full[:, :, BIAS_REACH : BIAS_REACH + near[0], near[1] : near[2]]
            bands[near] = [mb.const(val=s.const(part)) for part in np.split(band, groups, axis=1)]
        for group, (queries, keys, values) in enumerate(by_group):
            shape = (*queries.shape[:3], end)
            some = queries if block == S else mb.slice_by_index(x=queries, begin=(0, 0, 0, start), end=shape)
            scores = mb.matmul(x=some, y=keys, transpose_x=True)  # (B, heads, size, S)
            sizes = [size for size in (left, right - left, S - right) if size]
            parts = list(mb.split(x=scores, split_sizes=sizes, axis=3)) if sizes[1:] else [scores]
            parts[min(left, 1)] = mb.add(x=parts[min(left, 1)], y=bands[near][group])
            weight = mb.softmax(x=blocks.joined(parts, 3), axis=3)
            attended[group].append(mb.matmul(x=values, y=weight, transpose_y=True))
    return blocks.join_heads(blocks.joined([blocks.joined(group, 3) for group in attended], 1))


def _with_biases(
    s: Style, q: Var, k: Var, far: tuple[np.ndarray, np.ndarray], block: int, mask: Var | None
) -> tuple[Var, Var]:
    """Add channels to q and k (B, heads, width, S), so that q·k includes the mask and the biases of distant keys.

    ``far`` has two biases (1, heads, 1, 1). The first bias is for keys more than ``BIAS_REACH`` positions before a
    block of queries. The second bias is for keys more than ``BIAS_REACH`` positions after the block. ``mask`` may be
    ``None``.
    """
    B, heads, _, S = q.shape
    starts, here = np.arange(0, S, block)[:, None], np.arange(S)

    def rows(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values, (B, heads, len(values), S)).astype(np.float32)

    queries, keys = [], []
    if len(starts) > 1:
        sides = rows(here < starts - BIAS_REACH), rows(here >= starts + block + BIAS_REACH)
        queries.append(rows((here >= starts) & (here < starts + block)))
        before, after = (mb.mul(x=s.const(side), y=s.const(bias)) for side, bias in zip(sides, far, strict=True))
        keys.append(mb.add(x=before, y=after))
    if mask is not None:
        queries.append(rows(np.ones((1, S))))
        keys.append(mb.mul(x=mask, y=s.const(MASK_SHARE * queries[-1])))
    if not keys:
        return q, k
    return (
        mb.concat(values=[q, s.const(np.concatenate(queries, axis=2))], axis=2),
        mb.concat(values=[k, *keys], axis=2),
    )
