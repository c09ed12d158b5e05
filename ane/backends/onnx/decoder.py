"""Run the decoder on ONNX Runtime, with kv-caches that its graphs read in place.

A decoder step reads the caches in place, and returns only the keys and values of its new columns (input positions). The
host then writes the new keys and values into the caches. Nobody copies, concatenates or moves a cache. A mask says to
which positions each column attends.

The graph ``step`` is for lanes (sequences) that all continue the same prefix. It computes the attention of all lanes to
the prefix in one product. The graph ``step_prefixes`` is for lanes with different prefixes. If the network has
cross-attention, the graph ``memory`` computes the keys and values of a memory once, and the other graphs read these
keys and values in place.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ane.backends.base import MASKED
from ane.backends.decoding import Decoder, DecoderShape, check_step
from ane.backends.onnx.engines import LENGTHS, bucket_range
from ane.backends.onnx.sessions import BoundCall, PackageGraphs

NEW = ("new_keys", "new_values")  # outputs of a step: keys and values of its new columns
GROWTH = 64  # a cache on the host grows by this many positions, and a cache on a GPU doubles
KEPT_CALLS = 16  # number of bound calls to keep, each with its tensors

Caches = tuple[Tensor, Tensor]  # keys and values (layers, rows, heads, positions, head_width)


class OnnxDecoder(Decoder):
    """A decoder on ONNX Runtime.

    Args:
        graphs: Graphs of the model's packages.
        network: Name of the decoder's network.
        shape: Sizes of the network.
        lanes, capacity, prefixes: See ``ane.backends.base.Backend.decoder``.
        max_prefix_length: Number of positions in the longest prefix. ``None`` means the length of the prefix that is
            stored first.

    Attributes:
        lane_caches: Keys and values of the lanes' own positions.
        prefix_caches: Keys and values of the prefixes. ``None`` means that no prefix has been stored yet.
        prefix_lengths: Number of positions in each stored prefix, (prefixes,).
        memory_caches: Keys and values of the memories, one memory per prefix. ``None`` means that the network has no
            cross-attention.
    """

    def __init__(
        self,
        graphs: PackageGraphs,
        network: str,
        shape: DecoderShape,
        lanes: int,
        capacity: int,
        prefixes: int = 1,
        max_prefix_length: int | None = None,
    ):
        self.graphs, self.network, self.shape, self.dtype = graphs, network, shape, graphs.dtype(network)
        self.lanes, self.capacity, self.prefixes, self.max_prefix_length = lanes, capacity, prefixes, max_prefix_length
        self.lane_caches = self._caches(lanes, min(GROWTH, capacity))
        self.prefix_caches: Caches | None = None
        self.prefix_lengths = np.zeros(prefixes, dtype=np.int64)
        self.memory_caches = self._caches(prefixes, self.shape.memory_length) if self.shape.memory_length else None
        self._calls: dict[tuple, BoundCall] = {}

    def set_memory(self, memory: np.ndarray, index: int = 0) -> None:
        d = self.shape
        if not 0 <= index < self.prefixes or len(memory) != d.memory_length:
            raise ValueError(
                f"this decoder stores {self.prefixes} memories of {d.memory_length} positions, got "
                f"memory number {index} with {len(memory)} positions"
            )
        call = self._call("memory", {"states": self._zeros(1, *memory.shape)}, self._computed(d.memory_length))
        call.run("compute the decoder's memory", states=memory[None])
        for cache, name in zip(self.memory_caches, ("keys", "values"), strict=True):
            cache[:, index] = call.outputs[name]

    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < self.prefixes:
            raise ValueError(f"this decoder stores {self.prefixes} prefixes, got prefix {index}")
        d, P = self.shape, len(prefix)
        self._reserve_prefix(P)
        call = self._call(
            "prefill",
            {"columns": self._zeros(1, P, d.width), **self._memory(index)},
            {"hidden": self._zeros(1, d.width), "logits": self._zeros(1, d.vocabulary), **self._computed(P)},
        )
        call.run("prefill the decoder", columns=prefix[None])
        for cache, name in zip(self.prefix_caches, ("keys", "values"), strict=True):
            cache[:, index, :, :P] = call.outputs[name]
        self.prefix_lengths[index] = P
        return call.output("hidden")[0], call.output("logits")[0]

    def step(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0, prefix_indices: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        n, T, _ = columns.shape
        end = check_step(self, columns, lengths, first_lane)
        if self.prefix_caches is None:
            raise ValueError("step needs a prefix: call prefill first")
        indices = np.zeros(n, dtype=np.int64) if prefix_indices is None else np.asarray(prefix_indices, dtype=np.int64)
        self._grow(end)
        memory_lanes, memory_rows = lanes_by_prefix(indices, self.prefixes)
        call = self._step_call(n, T, first_lane, indices, memory_lanes.shape[1])
        lookups = {"prefix_index": indices, "memory_lanes": memory_lanes, "memory_rows": memory_rows}
        call.run(
            "run a decoder step",
            columns=columns,
            mask=self._mask(lengths, T, indices),
            **{name: array for name, array in lookups.items() if name in call.inputs},
        )
        self._write(first_lane, lengths, T, call)
        return call.output("hidden"), call.output("logits")

    def _write(self, first: int, lengths: np.ndarray, columns: int, call: BoundCall) -> None:
        """Write the new keys and values of a step into the caches of its lanes (sequences).

        Args:
            first: Index of the first lane of the step.
            lengths: Number of positions after its prefix that each lane already has, (n,).
            columns: Number of new columns (inputs) per lane.
            call: The step, with the new keys and values among its outputs.
        """
        n, start = len(lengths), int(lengths[0])
        for tensor, name in zip(self.lane_caches, NEW, strict=True):
            cache: Any = tensor
            new: Any = call.outputs[name]  # (layers, n, heads, T, w)
            if not tensor.is_cuda:  # NumPy needs a tenth of torch's time for so few numbers
                cache, new = cache.numpy(), new.numpy()
            if (lengths == start).all():
                cache[:, first : first + n, :, start : start + columns] = new
            else:
                for row, length in enumerate(lengths):
                    cache[:, first + row, :, length : length + columns] = new[:, row]

    def _mask(self, lengths: np.ndarray, columns: int, prefix_indices: np.ndarray) -> np.ndarray:
        """Return the attention mask of a step, (n, T, P + L + T) float32.

        The caches have P positions for a prefix and L positions for a lane (sequence). Each of the T new columns of a
        lane attends to its prefix, to the positions that its lane already has, to earlier new columns and to itself.
        """
        P, L = self.prefix_caches[0].shape[3], self.lane_caches[0].shape[3]
        seen = np.zeros((len(lengths), columns, P + L + columns), dtype=bool)
        seen[..., :P] = (np.arange(P) < self.prefix_lengths[prefix_indices][:, None])[:, None]
        seen[..., P : P + L] = (np.arange(L) < lengths[:, None])[:, None]
        seen[..., P + L :] = np.tri(columns, dtype=bool)
        return np.where(seen, np.float32(0), np.float32(MASKED))

    def _step_call(self, n: int, T: int, first_lane: int, prefix_indices: np.ndarray, rows: int) -> BoundCall:
        """Return a call that is bound to the tensors of a step.

        If an earlier call has the same tensors, return this call.

        Args:
            n: Number of lanes (sequences) in the step.
            T: Number of columns (inputs) per lane.
            first_lane: Index of the first lane.
            prefix_indices: Index of each lane's prefix, (n,).
            rows: Largest number of lanes that continue the same prefix.
        """
        common_prefix = int(prefix_indices[0]) if (prefix_indices == prefix_indices[0]).all() else None
        key = n, T, first_lane, common_prefix, rows
        if key not in self._calls:
            if len(self._calls) >= KEPT_CALLS:
                self._calls.clear()
            self._calls[key] = self._bind_step(n, T, first_lane, common_prefix, rows)
        return self._calls[key]

    def _bind_step(self, n: int, T: int, first_lane: int, common_prefix: int | None, rows: int) -> BoundCall:
        """Bind the graph for a step to tensors. See ``_step_call`` for the arguments.

        ``common_prefix`` is the index of the prefix that all lanes (sequences) continue, or ``None`` if their prefixes
        differ.
        """
        d, P, L = self.shape, self.prefix_caches[0].shape[3], self.lane_caches[0].shape[3]
        inputs = {"columns": self._zeros(n, T, d.width), "mask": self._zeros(n, T, P + L + T)}
        if common_prefix is None:
            inputs["prefix_index"] = self._zeros(n, dtype=torch.int64)
            if self.memory_caches:
                inputs["memory_lanes"] = self._zeros(self.prefixes, rows, dtype=torch.int64)
                inputs["memory_rows"] = self._zeros(n, dtype=torch.int64)
        lanes = slice(first_lane, first_lane + n)
        for layer in range(d.layers):
            for kind, lane, prefix in zip(("keys", "values"), self.lane_caches, self.prefix_caches, strict=True):
                inputs[f"{kind}_{layer}"] = lane[layer, lanes]
                chosen = slice(None) if common_prefix is None else common_prefix
                inputs[f"prefix_{kind}_{layer}"] = prefix[layer, chosen]
        outputs = {
            "hidden": self._zeros(n, T, d.width),
            "logits": self._zeros(n, d.vocabulary),
            **{name: self._zeros(d.layers, n, d.heads, T, d.head_width, dtype=self.dtype) for name in NEW},
        }
        return self._call(
            "step" if common_prefix is not None else "step_prefixes",
            inputs | self._memory(common_prefix),
            outputs,
            (1, bucket_range(self.capacity, LENGTHS)[1]),
        )

    def _call(
        self,
        kind: str,
        inputs: dict[str, Tensor],
        outputs: dict[str, Tensor],
        lane_lengths: tuple[int, int] | None = None,
    ) -> BoundCall:
        return self.graphs.call(self.network, kind, inputs, outputs, lane_lengths)

    def _memory(self, index: int | None) -> dict[str, Tensor]:
        """Return the inputs with the keys and values of the memory (such as encoded audio) at ``index``.

        ``None`` means all memories.
        """
        return {
            f"{name}_{layer}": cache[layer] if index is None else cache[layer, index]
            for cache, name in zip(self.memory_caches or (), ("memory_keys", "memory_values"), strict=False)
            for layer in range(self.shape.layers)
        }

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.graphs.zeros(shape, dtype)

    def _caches(self, rows: int, length: int) -> Caches:
        d = self.shape
        shape = d.layers, rows, d.heads, length, d.head_width
        return self._zeros(*shape, dtype=self.dtype), self._zeros(*shape, dtype=self.dtype)

    def _computed(self, positions: int) -> dict[str, Tensor]:
        """Allocate the outputs of a graph that computes the keys and values of this many positions."""
        d = self.shape
        return {
            name: self._zeros(d.layers, d.heads, positions, d.head_width, dtype=self.dtype)
            for name in ("keys", "values")
        }

    def _larger(self, caches: Caches, length: int) -> Caches:
        """Copy caches to new, larger caches with ``length`` positions."""
        larger = self._caches(caches[0].shape[1], length)
        for new, old in zip(larger, caches, strict=True):
            new[..., : old.shape[3], :] = old
        return larger

    def _reserve_prefix(self, positions: int) -> None:
        """Make room for prefixes (prompts) of at least this many positions. All prefixes get the same room.

        A mask hides positions that a prefix does not use. TensorRT needs an engine for each range of lengths, and takes
        minutes to build an engine. For TensorRT, the length is therefore rounded up to the end of a range.
        """
        limit = 0 if self.prefixes == 1 else self.max_prefix_length or 0
        length = max(positions, limit)
        if self.graphs.engines_for is not None:
            length = bucket_range(length, LENGTHS)[1]
        if self.prefix_caches is None or (self.prefixes == 1 and self.prefix_caches[0].shape[3] != length):
            self.prefix_caches = self._caches(self.prefixes, length)
        elif self.prefix_caches[0].shape[3] < length:
            self.prefix_caches = self._larger(self.prefix_caches, length)
        else:
            return
        self._calls.clear()

    def _grow(self, end: int) -> None:
        length = self.lane_caches[0].shape[3]
        if end <= length:
            return
        while length < end:
            length = length + GROWTH if self.graphs.device.memory == "cpu" else 2 * length
        self.lane_caches = self._larger(self.lane_caches, min(length, self.capacity))
        self._calls.clear()


def lanes_by_prefix(indices: np.ndarray, prefixes: int) -> tuple[np.ndarray, np.ndarray]:
    """Group lanes (sequences) by the prefix that they continue.

    Args:
        indices: Index of each lane's prefix, (n,).
        prefixes: Number of prefixes.

    Returns:
        Two arrays. The first array has the lanes of each prefix, (prefixes, rows) int64, with 0 in unused places. The
        second array has the index of each lane in the flattened first array, (n,) int64.
    """
    groups = [np.flatnonzero(indices == index) for index in range(prefixes)]
    rows = max(map(len, groups))
    lanes, places = np.zeros((prefixes, rows), np.int64), np.empty(len(indices), np.int64)
    for index, group in enumerate(groups):
        lanes[index, : len(group)] = group
        places[group] = index * rows + np.arange(len(group))
    return lanes, places
