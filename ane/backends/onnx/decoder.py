"""The decoder on ONNX Runtime, with caches that its graphs read in place.

The graph of a step reads the caches in place and returns only the keys and values of its columns, which are then
written to their positions. Nothing of the cache is copied, concatenated or moved to the
host. A mask states what each column attends to. The graph ``step`` serves lanes that share one prefix and attends to it
in one product; the graph ``step_prefixes`` serves lanes with different prefixes. With cross-attention, the graph
``memory`` computes keys and values of a memory once; the others read them in place, too.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ane.backends.base import MASKED, Decoder, DecoderShape, check_step
from ane.backends.onnx.buffers import BoundCall, Buffer, BufferSlice, OnnxKvCache
from ane.backends.onnx.providers import CudaGraphError
from ane.backends.onnx.sessions import SessionKey

if TYPE_CHECKING:
    from ane.backends.onnx.backend import OnnxBackend

NEW = ("new_keys", "new_values")       # outputs of a step: keys and values of its columns
GROWTH = 64             # positions that a host cache grows by; a device cache doubles
KEPT_CALLS = 16         # shapes of calls whose buffers are kept


class OnnxDecoder(Decoder):
    """A decoder on ONNX Runtime.

    Args:
        backend: has the sessions of the decoder's graphs.
        max_prefix_length: positions of the longest prefix; None: of the first that is stored.

    Attributes:
        lane_caches: keys and values of the lanes' own positions. prefix_caches: of the prefixes; None before a prefill.
        prefix_lengths: (prefixes,) number of positions of each stored prefix.
        memory_caches: keys and values of the memories, one for each prefix; () without cross-attention.
    """

    def __init__(self, backend: "OnnxBackend", lanes: int, capacity: int, prefixes: int = 1,
                 max_prefix_length: int | None = None):
        self.backend, self.allocator, self.network = backend, backend.memory, backend.stages.decoder.network
        self.shape: DecoderShape = backend.model.config(self.network).decoder_shape
        self.dtype = np.dtype(np.float16 if backend.packages[self.network].precision == "fp16" else np.float32)
        self.lanes, self.capacity, self.prefixes, self.max_prefix_length = lanes, capacity, prefixes, max_prefix_length
        self.lane_caches = self._caches(lanes, min(GROWTH, capacity))
        self.prefix_caches: tuple[OnnxKvCache, OnnxKvCache] | None = None
        self.prefix_lengths = np.zeros(prefixes, dtype=np.int64)
        self.memory_caches = self._caches(prefixes, self.shape.memory_length) if self.shape.memory_length else ()
        self._calls: dict[tuple, BoundCall] = {}

    def set_memory(self, memory: np.ndarray, index: int = 0) -> None:
        d = self.shape
        if not 0 <= index < self.prefixes or len(memory) != d.memory_length:
            raise ValueError(f"a decoder of {self.prefixes} prefixes with a memory of {d.memory_length} positions got "
                             f"memory {index} of {len(memory)} positions")
        inputs = {"states": (1, *memory.shape)}
        call = self._call(self.backend.session_key(self.network, "memory", inputs), inputs,
                          dict.fromkeys(("keys", "values"), (d.layers, d.heads, d.memory_length, d.head_width)))
        call.run("compute the decoder's memory", states=memory[None])
        self._store(self.memory_caches, index, d.memory_length, call)

    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < self.prefixes:
            raise ValueError(f"this decoder stores {self.prefixes} prefixes, got the prefix index {index}")
        P = len(prefix)
        self._reserve_prefix(P)
        d = self.shape
        shapes = {"hidden": (1, d.width), "logits": (1, d.vocabulary),
                  **dict.fromkeys(("keys", "values"), (d.layers, d.heads, P, d.head_width))}
        inputs, slices = {"columns": (1, P, d.width)}, self._memory_slices(index)
        key = self.backend.session_key(self.network, "prefill",
                                       inputs | {name: part.shape for name, part in slices.items()})
        call = self._call(key, inputs, shapes, slices)
        call.run("prefill the decoder", columns=prefix[None])
        self._store(self.prefix_caches, index, P, call)
        self.prefix_lengths[index] = P
        return call.outputs["hidden"].numpy()[0], call.outputs["logits"].numpy()[0]

    def step(self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0,
             prefix_indices: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        n, T, _ = columns.shape
        end = check_step(self, columns, lengths, first_lane)
        if self.prefix_caches is None:
            raise ValueError("step was called before any prefill")
        indices = np.zeros(n, dtype=np.int64) if prefix_indices is None else np.asarray(prefix_indices, dtype=np.int64)
        self._grow(end)
        try:
            call = self._run_step(columns, lengths, first_lane, indices)
        except CudaGraphError as error:
            self.backend.stop_recording(error)
            self._calls.clear()
            call = self._run_step(columns, lengths, first_lane, indices)
        for cache, name in zip(self.lane_caches, NEW, strict=True):
            cache.write(first_lane, lengths[:, None] + np.arange(T), call.outputs[name])
        return call.outputs["hidden"].numpy(), call.outputs["logits"].numpy()

    def _run_step(self, columns: np.ndarray, lengths: np.ndarray, first_lane: int,
                  prefix_indices: np.ndarray) -> BoundCall:
        n, T, _ = columns.shape
        memory_lanes, memory_rows = lanes_by_prefix(prefix_indices, self.prefixes)
        call = self._step_call(n, T, first_lane, prefix_indices, memory_lanes.shape[1])
        found = {"prefix_index": prefix_indices, "memory_lanes": memory_lanes, "memory_rows": memory_rows}
        indices = {name: array for name, array in found.items() if name in call.inputs}
        call.run("run a decoder step", columns=columns, mask=self._mask(lengths, T, prefix_indices), **indices)
        return call

    def _mask(self, lengths: np.ndarray, columns: int, prefix_indices: np.ndarray) -> np.ndarray:
        """(n, T, P + L + T) float32: a column attends to its prefix, its lane's positions, and columns up to itself.

        P and L are the positions allocated for a prefix and for a lane.
        """
        P, L = self.prefix_caches[0].length, self.lane_caches[0].length
        seen = np.zeros((len(lengths), columns, P + L + columns), dtype=bool)
        seen[..., :P] = (np.arange(P) < self.prefix_lengths[prefix_indices][:, None])[:, None]
        seen[..., P:P + L] = (np.arange(L) < lengths[:, None])[:, None]
        seen[..., P + L:] = np.tri(columns, dtype=bool)
        return np.where(seen, np.float32(0), np.float32(MASKED))

    def _step_call(self, n: int, T: int, first_lane: int, prefix_indices: np.ndarray, rows: int) -> BoundCall:
        """The call for ``n`` lanes from ``first_lane`` on; it is cached, with its buffers, by these arguments.

        ``rows``: lanes of the prefix that has most of them.
        """
        common_prefix = int(prefix_indices[0]) if (prefix_indices == prefix_indices[0]).all() else None
        key = n, T, first_lane, common_prefix, rows
        if key not in self._calls:
            if len(self._calls) >= KEPT_CALLS:
                self._calls.clear()
            self._calls[key] = self._bind_step(n, T, first_lane, common_prefix, rows)
        return self._calls[key]

    def _bind_step(self, n: int, T: int, first_lane: int, common_prefix: int | None, rows: int) -> BoundCall:
        """``common_prefix``: index of the prefix of all lanes; None: they have different ones."""
        d, P, L = self.shape, self.prefix_caches[0].length, self.lane_caches[0].length
        prefix_shape = (*([self.prefixes] if common_prefix is None else []), d.heads, P, d.head_width)
        inputs: dict[str, tuple[int, ...]] = {"columns": (n, T, d.width), "mask": (n, T, P + L + T)}
        if common_prefix is None:
            inputs["prefix_index"] = (n,)
            if self.memory_caches:
                inputs |= {"memory_lanes": (self.prefixes, rows), "memory_rows": (n,)}
        slices = {f"{name}_{layer}": BufferSlice(cache.buffer, cache.offset(layer, lane), shape)
                  for pair, names, lane, shape in (
                      (self.lane_caches, ("keys", "values"), first_lane, (n, d.heads, L, d.head_width)),
                      (self.prefix_caches, ("prefix_keys", "prefix_values"), common_prefix or 0, prefix_shape))
                  for cache, name in zip(pair, names, strict=True) for layer in range(d.layers)}
        slices |= self._memory_slices(common_prefix)
        outputs = {"hidden": (n, T, d.width), "logits": (n, d.vocabulary),
                   **dict.fromkeys(NEW, (d.layers, n, d.heads, T, d.head_width))}
        shapes = inputs | {name: part.shape for name, part in slices.items()}
        key, records = self.backend.step_session("step" if common_prefix is not None else "step_prefixes", shapes)
        # each set of buffers has its own recording; steps of several columns are rare and not recorded
        return self._call(key, inputs, outputs, slices, T == 1 if records else None)

    def _call(self, key: SessionKey, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]],
              slices: dict[str, BufferSlice] | None = None, recorded: bool | None = None) -> BoundCall:
        dtypes = {**dict.fromkeys(("prefix_index", "memory_lanes", "memory_rows"), np.int64),
                  **dict.fromkeys(("keys", "values", *NEW), self.dtype)}
        return BoundCall(self.allocator, self.backend.sessions, key, inputs, outputs, dtypes, slices, recorded)

    def _memory_slices(self, index: int | None) -> dict[str, BufferSlice]:
        """The keys and values of the memory ``index`` in each layer; None: of all."""
        d = self.shape
        shape = (*([self.prefixes] if index is None else []), d.heads, d.memory_length, d.head_width)
        return {f"{name}_{layer}": BufferSlice(cache.buffer, cache.offset(layer, index or 0), shape)
                for cache, name in zip(self.memory_caches, ("memory_keys", "memory_values"), strict=False)
                for layer in range(d.layers)}

    def _store(self, caches: Sequence[OnnxKvCache], index: int, positions: int, call: BoundCall) -> None:
        """Write the outputs keys and values (layers, heads, positions, width) of a call to lane ``index``."""
        d = self.shape
        for cache, name in zip(caches, ("keys", "values"), strict=True):
            new = _reshaped(call.outputs[name], (d.layers, 1, d.heads, positions, d.head_width))
            cache.write(index, np.arange(positions)[None], new)

    def _caches(self, lanes: int, length: int) -> tuple[OnnxKvCache, OnnxKvCache]:
        d = self.shape
        shape = (d.layers, lanes, d.heads, length, d.head_width)
        return OnnxKvCache(self.allocator, shape, self.dtype), OnnxKvCache(self.allocator, shape, self.dtype)

    def _reserve_prefix(self, positions: int) -> None:
        """Allocate ``positions`` for a prefix; all prefixes are allocated the same length."""
        limit = 0 if self.prefixes == 1 else self.max_prefix_length or 0
        length = self.backend.padded_prefix(max(positions, limit))
        if self.prefix_caches is None or (self.prefixes == 1 and self.prefix_caches[0].length != length):
            self.prefix_caches = self._caches(self.prefixes, length)
        elif self.prefix_caches[0].length < length:
            for cache in self.prefix_caches:
                cache.grow(length)
        else:
            return
        self._calls.clear()

    def _grow(self, end: int) -> None:
        length = self.lane_caches[0].length
        if end <= length:
            return
        while length < end:
            length = length + GROWTH if self.allocator.where == "cpu" else 2 * length
        for cache in self.lane_caches:
            cache.grow(min(length, self.capacity))
        self._calls.clear()


def lanes_by_prefix(indices: np.ndarray, prefixes: int) -> tuple[np.ndarray, np.ndarray]:
    """Lanes grouped by their prefix.

    Args:
        indices: (n,) prefix of each lane.

    Returns:
        The lanes of each prefix (prefixes, rows) int64, padded with lane 0, and (n,) int64 each lane's position there.
    """
    groups = [np.flatnonzero(indices == index) for index in range(prefixes)]
    rows = max(map(len, groups))
    lanes, places = np.zeros((prefixes, rows), np.int64), np.empty(len(indices), np.int64)
    for index, group in enumerate(groups):
        lanes[index, :len(group)] = group
        places[group] = index * rows + np.arange(len(group))
    return lanes, places


def _reshaped(buffer: Buffer, shape: Sequence[int]) -> Buffer:
    """The same buffer with another shape of the same size."""
    buffer.shape = tuple(shape)
    if hasattr(buffer, "array"):
        buffer.array = buffer.array.reshape(shape)
    return buffer
