"""Build Core ML graphs of any model's autoregressive decoder: prefills, and steps with either kind of kv-cache.

The last axis holds *columns*: positions of one sequence, lanes of several, or both. ``prefill`` has no cache: its
columns attend to each other as the mask allows. A step also attends to a pool of *slots*, which holds the keys and
values of earlier columns. The mask alone defines which column sees which slot, so sharing a prefix and resetting or
refilling a lane change only the mask. Every step returns the new columns' keys and values, and no step writes to a
cache.

With cache "io" the pool is an input, which the host passes at each call. With cache "state" it is a state. The host
keeps the columns since the last ``store`` and passes them at each call, and ``store`` copies them into the state, block
by block. So a step reads only the part of the state that is in use, writes nothing to it, and needs no operation on
integers.

Embedding tables, positions and masks stay on the host (``blocks``, principle 6).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor, nn

from ane.backends.decoding import DecoderShape
from converters.blocks import LayerPool
from converters.coreml.graph import CoreMLGraph, Style, Var, mb

LARGEST = 64.0  # value of a scaled stream. The square of four times that still fits fp16
SMALLEST_SCALE = 1 / 64
# Columns that a store copies into a state. A state's slots are a multiple of this number, which is itself a multiple of
# neural_engine.STATE_WIDTH. With more columns, each step would pass more. With fewer, a store would run more often.
RECENT = 32


def scale_for(largest: float) -> float:
    """Return a power of two for a residual stream with values up to ``largest`` (``blocks``, principle 7), 1 if small.

    Scaling by more than a network needs costs precision: a norm's eps shrinks with the scale's square and underflows in
    fp16, which matters if embeddings are small.
    """
    return min(1.0, max(SMALLEST_SCALE, 2.0 ** math.floor(math.log2(LARGEST / largest))))


def measured_scale(blocks: Iterable[nn.Module], run: Callable[[], object]) -> float:
    """Return ``scale_for`` the largest value that these blocks take or return while ``run`` is called."""
    peaks: list[float] = []

    def record(_: object, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        peaks.extend(float(tensor.abs().max()) for tensor in (inputs[0], output))

    hooks = [block.register_forward_hook(record) for block in blocks]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return scale_for(max(peaks))


@dataclass(frozen=True)
class DecoderGraphBuilder:
    """The graphs of one decoder.

    Attributes:
        shape: Shape of the decoder.
        body: Function (style, x, mask, pools, further inputs by name) → outputs by name, among them new_keys and
            new_values (layers, heads, width, columns). x (1, D, 1, columns) are embeddings times the stream's scale.
            The mask (1, 1, columns, slots + columns), 0 or −1e4, has a row for each column.
        inputs: Shapes of the further inputs of every graph.
    """

    shape: DecoderShape
    body: Callable[..., dict[str, Var]]
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def prefill(self, columns: int) -> CoreMLGraph:
        """Build the decoder without a cache."""
        return CoreMLGraph(
            "prefill",
            {"columns": columns},
            {"x": (1, self.shape.width, 1, columns), "mask": (1, 1, columns, columns), **self.inputs},
            partial(self.body, pools=None),
        )

    def step(self, columns: int, slots: int, cache: str = "io", capacity: int | None = None) -> CoreMLGraph:
        """Build the decoder with a pool of slots, which come first in the mask.

        With cache "io", keys and values (layers, heads, width, slots) are inputs. With cache "state", they are the
        first slots of the states key_cache and value_cache, which have ``capacity`` slots (default: as many). There,
        recent_keys and recent_values (layers, heads, width, ``RECENT``) are inputs, and follow the slots in the mask.
        """

        def step(s: Style, x: Var, mask: Var, keys: Var, values: Var, **inputs: Var) -> dict[str, Var]:
            return self.body(s, x, mask, Pools(keys, values), **inputs)

        def state(
            s: Style,
            x: Var,
            mask: Var,
            recent_keys: Var,
            recent_values: Var,
            key_cache: Var,
            value_cache: Var,
            **inputs: Var,
        ) -> dict[str, Var]:
            keys, values = (mb.read_state(input=state) for state in (key_cache, value_cache))
            dtype = None if s.precision == "fp16" else s.precision
            return self.body(s, x, mask, Pools(keys, values, slots, (recent_keys, recent_values), dtype), **inputs)

        inputs: dict[str, tuple[int, ...]] = {"x": (1, self.shape.width, 1, columns)}
        if cache == "io":
            inputs |= {"mask": (1, 1, columns, slots + columns), "keys": self._pool(slots), "values": self._pool(slots)}
            return CoreMLGraph("step", {"columns": columns, "slots": slots}, inputs | dict(self.inputs), step)
        capacity, recent = capacity or slots, self._pool(RECENT)
        inputs |= {"mask": (1, 1, columns, slots + RECENT + columns), "recent_keys": recent, "recent_values": recent}
        return CoreMLGraph(
            "state",
            {"columns": columns, "slots": slots, "capacity": capacity},
            inputs | dict(self.inputs),
            state,
            self._states(capacity),
        )

    def store(self, capacity: int) -> CoreMLGraph:
        """Build the graph that copies keys and values (layers, heads, width, ``RECENT``) into the states.

        The input ``begin`` (4,) int32 is their first position on each axis. The graph returns a part of the keys.
        """

        def body(s: Style, keys: Var, values: Var, begin: Var, key_cache: Var, value_cache: Var) -> dict[str, Var]:
            end = mb.add(x=begin, y=np.array(keys.shape, np.int32))
            for state, block in ((key_cache, keys), (value_cache, values)):
                block = block if s.precision == "fp16" else mb.cast(x=block, dtype="fp16")
                written = mb.slice_update(x=mb.read_state(input=state), update=block, begin=begin, end=end)
                mb.coreml_update_state(state=state, value=written)
            return {"stored": mb.slice_by_index(x=keys, begin=(0, 0, 0, 0), end=(1, 1, 1, keys.shape[3]))}

        block = self._pool(RECENT)
        return CoreMLGraph(
            "store",
            {"columns": RECENT, "capacity": capacity},
            {"keys": block, "values": block},
            body,
            self._states(capacity),
            {"begin": (4,)},
        )

    def _pool(self, slots: int) -> tuple[int, ...]:
        return (self.shape.layers, self.shape.heads, self.shape.head_width, slots)

    def _states(self, capacity: int) -> dict[str, tuple[int, ...]]:
        return {"key_cache": self._pool(capacity), "value_cache": self._pool(capacity)}


def cached_steps(graphs: DecoderGraphBuilder, pools: Mapping[int, Sequence[int]], cache: str) -> list[CoreMLGraph]:
    """Build steps with one kind of cache: for each number of columns, a step per number of slots.

    The functions with one number of columns share a state, which has the largest number of slots.
    """
    return [graphs.step(columns, slots, cache, max(sizes)) for columns, sizes in pools.items() for slots in sizes]


def stores(graphs: DecoderGraphBuilder, pools: Mapping[int, Sequence[int]]) -> list[CoreMLGraph]:
    """Build the stores for the states of ``cached_steps``."""
    return [graphs.store(capacity) for capacity in sorted({max(sizes) for sizes in pools.values()})]


SAVED = 30_000_000  # bytes of a pool that a smaller bucket must save: half a millisecond on an M1
FRACTIONS = (7 / 12, 1 / 2, 3 / 8, 1 / 4, 1 / 8)  # shares of the largest bucket. 16 lanes of 300 codes fit the first


def slot_buckets(largest: int, shape: DecoderShape) -> tuple[int, ...]:
    """Return numbers of slots up to ``largest``. They are few for a small model, whose whole pool is read quickly."""
    slot_bytes = 2 * 2 * shape.layers * shape.heads * shape.head_width
    buckets = [largest]
    for fraction in FRACTIONS:
        slots = math.ceil(fraction * largest / 64) * 64
        if (buckets[0] - slots) * slot_bytes >= SAVED:
            buckets.insert(0, slots)
    return tuple(buckets)


def layer_pool(cache: Var, index: int, slots: int | None = None, dtype: str | None = None) -> Var:
    """Slice one layer: (layers, heads, width, N) → (1, heads, width, N or the first ``slots``)."""
    *sizes, length = cache.shape[1:]
    part = mb.slice_by_index(x=cache, begin=(index, 0, 0, 0), end=(index + 1, *sizes, slots or length))
    return part if dtype is None else mb.cast(x=part, dtype=dtype)


@dataclass(frozen=True)
class Pools:
    """Keys and values of all layers (layers, heads, width, N slots), of which the first ``slots`` are read.

    Attributes:
        recent: Keys and values that are not in the pool yet.
        dtype: Type that values are converted to when they are read. ``None`` means that they have it already.
    """

    keys: Var
    values: Var
    slots: int | None = None
    recent: tuple[Var, Var] | None = None
    dtype: str | None = None

    def layer(self, index: int) -> LayerPool:
        return LayerPool(
            *(layer_pool(cache, index, self.slots, self.dtype) for cache in (self.keys, self.values)),
            self.recent and LayerPool(*(layer_pool(cache, index) for cache in self.recent)),
        )
