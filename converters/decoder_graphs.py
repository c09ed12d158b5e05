"""Core ML graphs of an autoregressive decoder, for any model: prefills, and steps with either kind of kv-cache.

The last axis holds *columns*: positions of one sequence, lanes of several, or both. ``prefill`` has no cache: its
columns attend to each other as the mask allows. ``step`` also attends to a pool of *slots*, which holds the keys and
values of earlier columns. The mask alone defines which column sees which slot, so sharing a prefix and resetting or
refilling a lane change only the mask. With cache "io" the pools are inputs, and the new columns' keys and values are
outputs; with cache "state" the pools are states that the graph updates.

Embedding tables, positions and masks stay on the host (``blocks``, principle 6).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ane.backends.base import DecoderShape
from converters.blocks import LayerPool
from converters.coreml.graph import CoreMLGraph, Style, Var, mb

LARGEST = 64.0          # value of a scaled stream; the square of four times that still fits fp16
SMALLEST_SCALE = 1 / 64
PREFILL_COLUMNS = 64    # of "fill" (apple/coreai-models: one a call loses precision in fp16)
Pools = tuple[Var, Var] | None      # keys and values of all slots, (layers, heads, width, N) each


def scale_for(largest: float) -> float:
    """Power of two for a residual stream with values up to ``largest`` (``blocks``, principle 7); 1 if they are small.

    Scaling by more than a network needs costs precision: a norm's eps shrinks with the square of the scale and
    underflows in fp16, which matters where embeddings are small.
    """
    return min(1.0, max(SMALLEST_SCALE, 2.0 ** math.floor(math.log2(LARGEST / largest))))


@dataclass(frozen=True)
class DecoderGraphBuilder:
    """The graphs of one decoder.

    Attributes:
        body: (style, x, mask, pools, further inputs by name) → outputs by name, and the columns' keys and values
            (layers, heads, width, columns) each. x (1, D, 1, columns) are embeddings times the stream's scale; the
            mask (1, 1, columns, slots + columns), 0 or −1e4, has a row for each column.
        inputs: shapes of the further inputs of every graph.
    """

    shape: DecoderShape
    body: Callable[..., tuple[dict[str, Var], Var, Var]]
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def prefill(self, columns: int) -> CoreMLGraph:
        """The decoder without a cache: returns what ``body`` does, keys and values as new_keys and new_values."""
        return CoreMLGraph("prefill", {"columns": columns},
                           {"x": (1, self.shape.width, 1, columns), "mask": (1, 1, columns, columns), **self.inputs},
                           partial(_prefill, body=self.body))

    def step(self, columns: int, slots: int, cache: str = "io") -> CoreMLGraph:
        """The decoder with a pool of slots, which come first in the mask.

        Cache "io": keys and values (layers, heads, width, slots) are inputs; the host stores new_keys and new_values.
        Cache "state": they are the states key_cache and value_cache. A column is written to the slot where its row of
        write (1, 1, columns, slots) is 1; slots where keep (1, 1, 1, slots) is 1 keep their content.
        """
        pool = (self.shape.layers, self.shape.heads, self.shape.head_width, slots)
        inputs = {"x": (1, self.shape.width, 1, columns), "mask": (1, 1, columns, slots + columns)}
        bucket = {"columns": columns, "slots": slots}
        if cache == "io":
            return CoreMLGraph("step", bucket, inputs | {"keys": pool, "values": pool} | dict(self.inputs),
                               partial(_step, body=self.body))
        if cache == "state":
            inputs |= {"write": (1, 1, columns, slots), "keep": (1, 1, 1, slots)}
            return CoreMLGraph("state", bucket, inputs | dict(self.inputs), partial(_state, body=self.body),
                               {"key_cache": pool, "value_cache": pool})
        raise ValueError(f"cache must be 'io' or 'state', got {cache!r}")

    def fill(self, columns: int, slots: int) -> CoreMLGraph:
        """A ``step`` with cache "state" and many columns, which writes many positions of a prefix in one call."""
        return replace(self.step(columns, slots, "state"), kind="fill")


def cached_steps(graphs: DecoderGraphBuilder, pools: Sequence[tuple[int, int]],
                 caches: Collection[str]) -> list[CoreMLGraph]:
    """Steps for each kind of cache and each (columns, slots), and fills: only steps write to a state, and filling it
    one column a call is slow."""
    steps = [graphs.step(columns, slots, cache) for cache in caches for columns, slots in pools]
    if "state" in caches:
        wide = {slots for columns, slots in pools if columns < PREFILL_COLUMNS and slots >= 2 * PREFILL_COLUMNS}
        steps += [graphs.fill(PREFILL_COLUMNS, slots) for slots in sorted(wide)]
    return steps


def layer_pool(cache: Var, index: int) -> Var:
    """(layers, heads, width, N) → (1, heads, width, N)."""
    return mb.slice_by_index(x=cache, begin=(index, 0, 0, 0), end=(index + 1, *cache.shape[1:]))


def layer_pools(pools: Pools, index: int) -> LayerPool | None:
    """One layer of the keys and values."""
    return pools and LayerPool(*(layer_pool(cache, index) for cache in pools))


def _prefill(s: Style, x: Var, mask: Var, *, body: Callable, **inputs: Var) -> dict[str, Var]:
    outputs, keys, values = body(s, x, mask, None, **inputs)
    return outputs | {"new_keys": keys, "new_values": values}


def _step(s: Style, x: Var, mask: Var, keys: Var, values: Var, *, body: Callable, **inputs: Var) -> dict[str, Var]:
    outputs, new_keys, new_values = body(s, x, mask, (keys, values), **inputs)
    return outputs | {"new_keys": new_keys, "new_values": new_values}


def _state(s: Style, x: Var, mask: Var, write: Var, keep: Var, key_cache: Var, value_cache: Var, *, body: Callable,
           **inputs: Var) -> dict[str, Var]:
    pools = tuple(_read(s, state) for state in (key_cache, value_cache))
    outputs, *new = body(s, x, mask, pools, **inputs)
    # one write for all layers, after the last read of the pools
    for state, old, columns in zip((key_cache, value_cache), pools, new, strict=True):
        written = mb.add(x=mb.mul(x=old, y=keep), y=mb.matmul(x=columns, y=write))
        if s.precision != "fp16":
            written = mb.cast(x=written, dtype="fp16")
        mb.coreml_update_state(state=state, value=written)
    return outputs


def _read(s: Style, state: Var) -> Var:
    """The value of a state, which is fp16 in any style."""
    pool = mb.read_state(input=state)
    return pool if s.precision == "fp16" else mb.cast(x=pool, dtype=s.precision)
