"""The autoregressive decoder as Core ML graphs; reference: ``ane.models.tortoise.networks.autoregressive``.

The last axis holds *columns*: positions of one sequence, lanes of several, or both. ``prefill`` has no cache: its
columns attend to each other as the mask allows. ``step`` also attends to a pool of *slots*, which holds the keys and
values of earlier columns. The mask alone defines which column sees which slot, so sharing a prefix and resetting or
refilling a lane change only the mask. With cache "io" the pools are inputs, and the new columns' keys and values are
outputs; with cache "state" the pools are states that the graph updates.

Embedding tables, positions and masks stay on the host (``blocks``, principle 6).
"""

import math
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from ane.models.tortoise.networks.autoregressive import Block, UnifiedVoice, causal
from converters import blocks
from converters.blocks import LayerPool
from converters.coreml.graph import CoreMLGraph, Style, Var, mb

LARGEST = 64.0          # value of a scaled stream; the square of four times that still fits fp16
SMALLEST_SCALE = 1 / 64


def stream_scale(network: UnifiedVoice) -> float:
    """Power of two by which the residual stream is multiplied (``blocks``, principle 7); 1 if its values are small.

    Measured on random tokens and codes. Scaling by more than the network needs costs precision: a norm's eps shrinks
    with the square of the scale and underflows in fp16, which matters where embeddings are small.
    """
    generator = torch.Generator().manual_seed(0)
    halves = []
    for table, positions in ((network.text_embedding, network.text_pos_embedding),
                             (network.mel_embedding, network.mel_pos_embedding)):
        ids = torch.randint(len(table.weight), (min(64, len(positions.emb.weight)),), generator=generator)
        halves.append(table.weight[ids].float() + positions.emb.weight[:len(ids)].float())
    x = torch.cat(halves)[None]
    largest = x.abs().max()
    for block in network.gpt.h:
        x = deepcopy(block).float()(x, causal)
        largest = torch.maximum(largest, x.abs().max())
    return min(1.0, max(SMALLEST_SCALE, 2.0 ** math.floor(math.log2(LARGEST / float(largest)))))


def prefill(network: UnifiedVoice, columns: int, scale: float = 1.0) -> CoreMLGraph:
    """The decoder without a cache.

    x (1, D, 1, T), mask (1, 1, T, T) → hidden (1, D, 1, T), logits (1, V, 1, T), new_keys and new_values (layers,
    heads, width, T). x holds embeddings times ``scale``; the mask, 0 or −1e4, has a row for each column.
    """
    return CoreMLGraph("prefill", {"columns": columns},
                       {"x": (1, network.config.model_dim, 1, columns), "mask": (1, 1, columns, columns)},
                       partial(_prefill, network=network, scale=scale))


def step(network: UnifiedVoice, columns: int, slots: int, cache: str = "io", scale: float = 1.0) -> CoreMLGraph:
    """The decoder with a pool of slots.

    As ``prefill``, with L columns and mask (1, 1, L, N + L), the pool's slots first.

    Cache "io": keys and values (layers, heads, width, N) are inputs; the host stores new_keys and new_values (…, L).
    Cache "state": they are the states key_cache and value_cache. Column l is written to the slot n where write
    (1, 1, L, N) is 1; slots where keep (1, 1, 1, N) is 1 keep their content.
    """
    config = network.config
    pool = (config.layers, config.heads, config.model_dim // config.heads, slots)
    inputs = {"x": (1, config.model_dim, 1, columns), "mask": (1, 1, columns, slots + columns)}
    bucket = {"columns": columns, "slots": slots}
    if cache == "io":
        return CoreMLGraph("step", bucket, inputs | {"keys": pool, "values": pool},
                           partial(_step, network=network, scale=scale))
    if cache == "state":
        return CoreMLGraph("state", bucket, inputs | {"write": (1, 1, columns, slots), "keep": (1, 1, 1, slots)},
                           partial(_state, network=network, scale=scale), {"key_cache": pool, "value_cache": pool})
    raise ValueError(f"cache must be 'io' or 'state', got {cache!r}")


def fill(network: UnifiedVoice, columns: int, slots: int, scale: float = 1.0) -> CoreMLGraph:
    """A ``step`` with cache "state" and many columns, which writes many positions of a prefix in one call."""
    return replace(step(network, columns, slots, "state", scale), kind="fill")


def _prefill(s: Style, x: Var, mask: Var, *, network: UnifiedVoice, scale: float) -> dict[str, Var]:
    outputs, keys, values = _decoder(s, x, mask, network, scale, None)
    return outputs | {"new_keys": keys, "new_values": values}


def _step(s: Style, x: Var, mask: Var, keys: Var, values: Var, *, network: UnifiedVoice,
          scale: float) -> dict[str, Var]:
    outputs, new_keys, new_values = _decoder(s, x, mask, network, scale, (keys, values))
    return outputs | {"new_keys": new_keys, "new_values": new_values}


def _state(s: Style, x: Var, mask: Var, write: Var, keep: Var, key_cache: Var, value_cache: Var, *,
           network: UnifiedVoice, scale: float) -> dict[str, Var]:
    pools = tuple(_read(s, state) for state in (key_cache, value_cache))
    outputs, *new = _decoder(s, x, mask, network, scale, pools)
    # one write for all layers, after the last read of the pools
    for state, old, columns in zip((key_cache, value_cache), pools, new, strict=True):
        written = mb.add(x=mb.mul(x=old, y=keep), y=mb.matmul(x=columns, y=write))
        if s.precision != "fp16":
            written = mb.cast(x=written, dtype="fp16")
        mb.coreml_update_state(state=state, value=written)
    return outputs


def _decoder(s: Style, x: Var, mask: Var, network: UnifiedVoice, scale: float,
             pools: tuple[Var, Var] | None) -> tuple[dict[str, Var], Var, Var]:
    """Hidden states and logits of all columns, and their keys and values (layers, heads, width, columns)."""
    new_keys, new_values = [], []
    for index, block in enumerate(network.gpt.h):
        pool = pools and LayerPool(*(_layer(cache, index) for cache in pools))
        x, k, v = _block(s, x, mask, block, scale, pool, f"gpt.h.{index}")
        new_keys.append(blocks.split_heads(k, network.config.heads))
        new_values.append(blocks.split_heads(v, network.config.heads))
    hidden = blocks.layer_norm(s, x, network.gpt.ln_f, "gpt.ln_f", scale)
    hidden = blocks.layer_norm(s, hidden, network.final_norm)
    logits = blocks.linear(s, hidden, network.mel_head)
    keys, values = (mb.concat(values=new, axis=0) for new in (new_keys, new_values))
    return {"hidden": hidden, "logits": logits}, keys, values


def _block(s: Style, x: Var, mask: Var, block: Block, scale: float, pool: LayerPool | None,
           name: str) -> tuple[Var, Var, Var]:
    """One pre-norm block: x (1, D, 1, S), scaled by ``scale``, → the same, and its keys and values (1, D, 1, S)."""
    q, k, v = _queries_keys_values(s, blocks.layer_norm(s, x, block.ln_1, f"{name}.ln_1", scale), block)
    y = blocks.attention(s, q, k, v, block.attn.heads, mask, pool)
    x = mb.add(x=x, y=blocks.linear(s, y, block.attn.c_proj, f"{name}.attn", scale))
    y = blocks.linear(s, blocks.layer_norm(s, x, block.ln_2, f"{name}.ln_2", scale), block.mlp.c_fc, f"{name}.mlp.c_fc")
    y = mb.gelu(x=y, mode="TANH_APPROXIMATION")
    y = blocks.linear(s, y, block.mlp.c_proj, f"{name}.mlp", scale)
    return mb.add(x=x, y=y, name=blocks.value_name(name)), k, v


def _queries_keys_values(s: Style, x: Var, block: Block) -> tuple[Var, Var, Var]:
    """(1, D, 1, S) each; the weights of the queries include 1/√width."""
    weight, bias = blocks.kernel(block.attn.c_attn)
    D = x.shape[1]
    factor = np.ones(3 * D, np.float32)
    factor[:D] = (D // block.attn.heads) ** -0.5
    return mb.split(x=blocks.conv(s, x, weight * factor[:, None, None, None], bias * factor), num_splits=3, axis=1)


def _read(s: Style, state: Var) -> Var:
    """The value of a state, which is fp16 in any style."""
    pool = mb.read_state(input=state)
    return pool if s.precision == "fp16" else mb.cast(x=pool, dtype=s.precision)


def _layer(cache: Var, index: int) -> Var:
    """(layers, heads, width, N) → (1, heads, width, N)."""
    return mb.slice_by_index(x=cache, begin=(index, 0, 0, 0), end=(index + 1, *cache.shape[1:]))
