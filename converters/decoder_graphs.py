"""Build Core ML graphs of any model's autoregressive decoder: prefills, and steps with either kind of kv-cache.

The last axis of a graph's tensors holds *columns*. A column is one position of one sequence. The columns of a call may
be positions of the same sequence, or belong to several lanes, which are sequences decoded side by side.

``prefill`` decodes a prompt, and has no cache: its columns attend to each other as the mask allows. A ``step`` also
attends to a pool of *slots*, which holds the keys and values of earlier columns. Only the mask decides to which slots a
column attends. So a shared prefix, or a lane that starts a new sequence, needs only another mask. A step returns the
keys and values of its columns, and never writes to a cache.

With cache "io", the pool is an input. The host, which is the program that calls the package, passes it at every call.

With cache "state", the pool is a Core ML state. The host passes only the keys and values of recent columns. From time
to time, the host calls ``store``, which copies a block of these columns into the state. So a step reads only the slots
in use, writes nothing to the state, and needs no operation on integers.

Embedding tables, positions and masks stay on the host (``converters.blocks``, principle 6).
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

LARGEST = 64.0  # largest value of a scaled residual stream. The square of four times this value still fits in fp16
SMALLEST_SCALE = 1 / 64
# Number of columns that ``store`` copies into a state. It must be a multiple of neural_engine.STATE_WIDTH, and the
# number of a state's slots must be a multiple of it. With a larger number, the inputs of every step would be larger.
# With a smaller number, ``store`` would run more often.
RECENT = 32


def scale_for(largest: float) -> float:
    """Return the power of two by which to multiply a residual stream with values up to ``largest``.

    ``converters.blocks``, principle 7, explains why the stream is multiplied. The scale is 1 if the values are already
    small. A scale that is smaller than necessary costs precision. The eps of a norm shrinks with the square of the
    scale and underflows in fp16. An eps of 0 matters if embeddings are small.
    """
    return min(1.0, max(SMALLEST_SCALE, 2.0 ** math.floor(math.log2(LARGEST / largest))))


def measured_scale(blocks: Iterable[nn.Module], run: Callable[[], object]) -> float:
    """Call ``run`` while recording the largest input or output of these blocks. Return ``scale_for`` this value."""
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
    """Describes the graphs of one decoder.

    Attributes:
        shape: Shape of the decoder.
        body: Function that builds the decoder. It takes the precision, x, mask, pools (the kv-cache), and further
            inputs by name, and returns the outputs by name. Two of the outputs are new_keys and new_values (layers,
            heads, width, columns). x (1, D, 1, columns) holds embeddings, multiplied by the scale of the residual
            stream. The mask (1, 1, columns, slots + columns) has a row for each column, with 0 where the column attends
            and −1e4 elsewhere.
        inputs: Shapes of the further inputs of every graph, by name.
    """

    shape: DecoderShape
    body: Callable[..., dict[str, Var]]
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def prefill(self, columns: int) -> CoreMLGraph:
        """Describe the graph that decodes a prompt, without a cache."""
        return CoreMLGraph(
            "prefill",
            {"columns": columns},
            {"x": (1, self.shape.width, 1, columns), "mask": (1, 1, columns, columns), **self.inputs},
            partial(self.body, pools=None),
        )

    def step(self, columns: int, slots: int, cache: str = "io", capacity: int | None = None) -> CoreMLGraph:
        """Describe the graph of a step, which reads keys and values of earlier columns from a pool of slots.

        In the mask's last axis, the slots come first, then the recent columns of a state, then the new columns.

        Args:
            columns: Number of new columns.
            slots: Number of slots that the step reads.
            cache: With "io", the inputs keys and values (layers, heads, width, slots) are the pool. With "state", the
                pool is the first ``slots`` slots of the states key_cache and value_cache. The inputs recent_keys and
                recent_values (layers, heads, width, ``RECENT``) have the columns that are not in the state yet.
            capacity: Number of slots of the states (default: ``slots``).
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
        """Describe the graph that copies a block of keys and values (layers, heads, width, ``RECENT``) into the states.

        The input ``begin`` (4,) int32 is the position of the block on each axis of the states. The only output is a
        slice of the keys, because a graph needs an output.
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
    """Describe the graphs of the decoder's steps with one kind of kv-cache.

    ``pools`` has, for each number of new columns, the numbers of slots (positions in the cache) that steps read. All
    steps with the same number of columns share a state, which has the largest of these numbers of slots.
    """
    return [graphs.step(columns, slots, cache, max(sizes)) for columns, sizes in pools.items() for slots in sizes]


def stores(graphs: DecoderGraphBuilder, pools: Mapping[int, Sequence[int]]) -> list[CoreMLGraph]:
    """Describe the ``store`` graphs for the states that the steps of ``cached_steps`` read."""
    return [graphs.store(capacity) for capacity in sorted({max(sizes) for sizes in pools.values()})]


# A step with fewer slots is worth building if it reads this many bytes less, which takes an M1 half a millisecond
SAVED = 30_000_000
FRACTIONS = (7 / 12, 1 / 2, 3 / 8, 1 / 4, 1 / 8)  # shares of the most slots. 16 lanes of 300 codes fit in the first one


def slot_buckets(largest: int, shape: DecoderShape) -> tuple[int, ...]:
    """Choose the numbers of cache slots for which to build step functions. The largest number is ``largest``.

    A small model gets few numbers, because a step reads even its whole cache quickly.
    """
    slot_bytes = 2 * 2 * shape.layers * shape.heads * shape.head_width
    buckets = [largest]
    for fraction in FRACTIONS:
        slots = math.ceil(fraction * largest / 64) * 64
        if (buckets[0] - slots) * slot_bytes >= SAVED:
            buckets.insert(0, slots)
    return tuple(buckets)


def layer_pool(cache: Var, index: int, slots: int | None = None, dtype: str | None = None) -> Var:
    """Select a layer's keys or values from (layers, heads, width, N).

    Returns its first ``slots`` (default: all) as (1, heads, width, slots).
    """
    *sizes, length = cache.shape[1:]
    part = mb.slice_by_index(x=cache, begin=(index, 0, 0, 0), end=(index + 1, *sizes, slots or length))
    return part if dtype is None else mb.cast(x=part, dtype=dtype)


@dataclass(frozen=True)
class Pools:
    """The kv-cache of all layers: keys and values of earlier columns, both (layers, heads, width, N slots).

    Attributes:
        keys, values: The keys and the values.
        slots: Number of slots to read, beginning with the first slot. ``None`` means all slots.
        recent: Keys and values of columns that are not in the pool yet.
        dtype: Type to which the graph converts keys and values after reading. ``None`` means no conversion.
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
