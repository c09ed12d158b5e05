"""The autoregressive decoder, channels first; twin of ``ane.models.tortoise.networks.autoregressive``.

One module, two variants. The last axis holds *columns*: positions of one sequence, lanes of many, or both. ``prefill``
has no cache: its columns see each other as the mask allows. ``step`` sees a pool of *slots* besides, where the host
keeps keys and values of all that came before; which column sees which slot is the mask's to say, so a shared prefix, a
lane's reset and its refilling are numbers in a mask. The pool is an input and the new columns' keys and values are
outputs (cache "io"), or both pools are states that the graph itself writes to (cache "state").

Look-up tables, positions and masks stay on the host (``layers``, principle 6).
"""

import math
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from ane.models.tortoise.networks.autoregressive import Block, UnifiedVoice, causal
from converters import blocks as layers
from converters.blocks import Pool
from converters.coreml.graph import Graph, Style, Var, mb

LARGEST = 64.0          # of a scaled stream: four times that, squared, still fits into fp16
SMALLEST_SCALE = 1 / 64


def stream_scale(twin: UnifiedVoice) -> float:
    """The power of two that the residual stream is to be scaled by (layers, principle 7): 1 for a quiet one.

    It is measured on a sequence of random tokens and codes. Scaling more than a network needs costs precision: a norm's
    eps shrinks with the square of the scale, and is soon 0 in fp16, which matters where embeddings are small.
    """
    generator = torch.Generator().manual_seed(0)
    halves = []
    for table, positions in ((twin.text_embedding, twin.text_pos_embedding),
                             (twin.mel_embedding, twin.mel_pos_embedding)):
        ids = torch.randint(len(table.weight), (min(64, len(positions.emb.weight)),), generator=generator)
        halves.append(table.weight[ids].float() + positions.emb.weight[:len(ids)].float())
    x = torch.cat(halves)[None]
    largest = x.abs().max()
    for block in twin.gpt.h:
        x = deepcopy(block).float()(x, causal)
        largest = torch.maximum(largest, x.abs().max())
    return min(1.0, max(SMALLEST_SCALE, 2.0 ** math.floor(math.log2(LARGEST / float(largest)))))


def prefill(twin: UnifiedVoice, columns: int, scale: float = 1.0) -> Graph:
    """No cache.

    x (1, D, 1, T), mask (1, 1, T, T) → hidden (1, D, 1, T), logits (1, V, 1, T), new_keys and new_values (layers,
    heads, width, T). x is a column's embedding times ``scale``; the mask has a row for each column, 0 or −1e4.
    """
    return Graph("prefill", {"columns": columns},
                 {"x": (1, twin.config.model_dim, 1, columns), "mask": (1, 1, columns, columns)},
                 partial(_prefill, twin=twin, scale=scale))


def step(twin: UnifiedVoice, columns: int, slots: int, cache: str = "io", scale: float = 1.0) -> Graph:
    """With a pool of slots.

    As ``prefill``, with L columns and mask (1, 1, L, N + L), the pool's slots first. Cache "io": keys and values
    (layers, heads, width, N) are inputs; the host puts new_keys and new_values (…, L) where it wants them. Cache
    "state": they are the states key_cache and value_cache; column l goes to the slot n where write (1, 1, L, N) has a
    1, and the old content stays where keep (1, 1, 1, N) has a 1.
    """
    config = twin.config
    pool = (config.layers, config.heads, config.model_dim // config.heads, slots)
    inputs = {"x": (1, config.model_dim, 1, columns), "mask": (1, 1, columns, slots + columns)}
    bucket = {"columns": columns, "slots": slots}
    if cache == "io":
        return Graph("step", bucket, inputs | {"keys": pool, "values": pool},
                     partial(_step, twin=twin, scale=scale))
    if cache == "state":
        return Graph("state", bucket, inputs | {"write": (1, 1, columns, slots), "keep": (1, 1, 1, slots)},
                     partial(_state, twin=twin, scale=scale), {"key_cache": pool, "value_cache": pool})
    raise ValueError(f"cache {cache!r}: it is io or state")


def fill(twin: UnifiedVoice, columns: int, slots: int, scale: float = 1.0) -> Graph:
    """A ``step`` on states, wide: the prefix goes into a state this way, many positions at a time."""
    return replace(step(twin, columns, slots, "state", scale), kind="fill")


def _prefill(s: Style, x: Var, mask: Var, *, twin: UnifiedVoice, scale: float) -> dict[str, Var]:
    outputs, keys, values = _decoder(s, x, mask, twin, scale, None)
    return outputs | {"new_keys": keys, "new_values": values}


def _step(s: Style, x: Var, mask: Var, keys: Var, values: Var, *, twin: UnifiedVoice, scale: float) -> dict[str, Var]:
    outputs, new_keys, new_values = _decoder(s, x, mask, twin, scale, (keys, values))
    return outputs | {"new_keys": new_keys, "new_values": new_values}


def _state(s: Style, x: Var, mask: Var, write: Var, keep: Var, key_cache: Var, value_cache: Var, *,
           twin: UnifiedVoice, scale: float) -> dict[str, Var]:
    pools = tuple(_read(s, state) for state in (key_cache, value_cache))
    outputs, *new = _decoder(s, x, mask, twin, scale, pools)
    # one write for all layers, after the last read of the pool
    for state, old, columns in zip((key_cache, value_cache), pools, new, strict=True):
        written = mb.add(x=mb.mul(x=old, y=keep), y=mb.matmul(x=columns, y=write))
        if s.precision != "fp16":
            written = mb.cast(x=written, dtype="fp16")
        mb.coreml_update_state(state=state, value=written)
    return outputs


def _decoder(s: Style, x: Var, mask: Var, twin: UnifiedVoice, scale: float,
             pools: tuple[Var, Var] | None) -> tuple[dict[str, Var], Var, Var]:
    """Hidden states and logits of all columns, and their keys and values (layers, heads, width, columns)."""
    new_keys, new_values = [], []
    for index, block in enumerate(twin.gpt.h):
        pool = pools and Pool(*(_layer(cache, index) for cache in pools))
        x, k, v = _block(s, x, mask, block, scale, pool, f"gpt.h.{index}")
        new_keys.append(layers.in_heads(k, twin.config.heads))
        new_values.append(layers.in_heads(v, twin.config.heads))
    hidden = layers.layer_norm(s, x, twin.gpt.ln_f, "gpt.ln_f", scale)
    hidden = layers.layer_norm(s, hidden, twin.final_norm)
    logits = layers.linear(s, hidden, twin.mel_head)
    keys, values = (mb.concat(values=new, axis=0) for new in (new_keys, new_values))
    return {"hidden": hidden, "logits": logits}, keys, values


def _block(s: Style, x: Var, mask: Var, twin: Block, scale: float, pool: Pool | None,
           name: str) -> tuple[Var, Var, Var]:
    """One pre-norm block: x (1, D, 1, S) of ``scale`` → the same, with the columns' keys and values (1, D, 1, S)."""
    q, k, v = _queries_keys_values(s, layers.layer_norm(s, x, twin.ln_1, f"{name}.ln_1", scale), twin)
    y = layers.attention(s, q, k, v, twin.attn.heads, mask, pool)
    x = mb.add(x=x, y=layers.linear(s, y, twin.attn.c_proj, f"{name}.attn", scale))
    y = layers.linear(s, layers.layer_norm(s, x, twin.ln_2, f"{name}.ln_2", scale), twin.mlp.c_fc, f"{name}.mlp.c_fc")
    y = mb.gelu(x=y, mode="TANH_APPROXIMATION")
    y = layers.linear(s, y, twin.mlp.c_proj, f"{name}.mlp", scale)
    return mb.add(x=x, y=y, name=layers.spelt(name)), k, v


def _queries_keys_values(s: Style, x: Var, twin: Block) -> tuple[Var, Var, Var]:
    """(1, D, 1, S) each; 1/√width is folded into the queries' weights."""
    weight, bias = layers.kernel(twin.attn.c_attn)
    D = x.shape[1]
    factor = np.ones(3 * D, np.float32)
    factor[:D] = (D // twin.attn.heads) ** -0.5
    return mb.split(x=layers.conv(s, x, weight * factor[:, None, None, None], bias * factor), num_splits=3, axis=1)


def _read(s: Style, state: Var) -> Var:
    """A state, which is fp16 whatever the style."""
    pool = mb.read_state(input=state)
    return pool if s.precision == "fp16" else mb.cast(x=pool, dtype=s.precision)


def _layer(cache: Var, index: int) -> Var:
    """(layers, heads, width, N) → (1, heads, width, N)."""
    return mb.slice_by_index(x=cache, begin=(index, 0, 0, 0), end=(index + 1, *cache.shape[1:]))
