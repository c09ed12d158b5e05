"""Run a decoder on our compiled CPU kernels, which compute the attention of all lanes in one call.

``ane.backends.torch.kernels`` loads these kernels.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ane.backends.torch import kernels
from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.kernels import HOST_FLOATS, KernelBlocks


class KernelDecoder(TorchDecoder):
    """A ``TorchDecoder`` on this package's kernels. Its caches are float32 or fp16.

    A lane reads only as many positions as it has. If all layers of the network are packed, a single call of the library
    computes all blocks, without holding the GIL.

    ``step`` and ``prefill`` raise ValueError if columns, lengths or prefixes do not fit. The library would otherwise
    read and write beyond its arrays.
    """

    def __init__(self, network: Any, *args: Any, **kwargs: Any):
        super().__init__(network, *args, **kwargs)
        self._blocks = KernelBlocks.of(network)

    def _prefilled(self, columns: Tensor, index: int) -> Tensor:
        if self._blocks is None:
            return super()._prefilled(columns, index)
        self._check_columns(columns)
        prefix = self.prefix_keys[:, index : index + 1], self.prefix_values[:, index : index + 1]
        call = AttentionCall(self, columns.shape[1], None, prefix, np.zeros(1, np.int64))
        return self._through_blocks(call, columns, np.array([index]))

    def _stepped(self, columns: Tensor, first_lane: int, lengths: np.ndarray, indices: np.ndarray) -> Tensor:
        self._check_columns(columns)
        if not (
            len(columns) == len(lengths) == len(indices)
            and min(lengths) >= 0
            and min(indices) >= 0
            and max(indices) < self.prefixes
        ):
            raise ValueError(
                f"lengths and prefix_indices must fit {len(columns)} lanes and {self.prefixes} prefixes, got {lengths} "
                f"and {indices}"
            )
        lanes = slice(first_lane, first_lane + len(lengths))
        call = AttentionCall(self, columns.shape[1], indices, (self.keys[:, lanes], self.values[:, lanes]), lengths)
        if self._blocks is not None:
            return self._through_blocks(call, columns, indices)
        attend = [partial(call, layer) for layer in range(self.shape.layers)]
        memory: Any = None
        if self.shape.memory_length:
            memory = partial(self._attend_memory, self._lanes_by_prefix(indices, columns.shape[1]))
        return self._run_network(columns, attend, memory)

    def _check_columns(self, columns: Tensor) -> None:
        if columns.shape[1] == 0 or columns.shape[2] != self.shape.width:
            raise ValueError(f"columns must be (lanes, T, {self.shape.width}) with T ≥ 1, got {tuple(columns.shape)}")

    def _through_blocks(self, call: "AttentionCall", columns: Tensor, indices: np.ndarray) -> Tensor:
        """Run all blocks on columns (n, T, width).

        ``indices`` has the prefix of each lane (sequence). If prefixes have a memory, each lane attends to its prefix's
        memory.
        """
        x = columns.clone()  # the blocks write to it, and the caller may need ``columns``
        call.through(self._blocks, x, MemoryCall(self, columns.shape[1], indices) if self.shape.memory_length else None)
        return self.network.finish(x)


class AttentionCall:
    """Computes attention layer by layer: each new column attends to its lane and to the prefix of its lane.

    Args:
        decoder: Decoder that has the lanes and prefixes.
        columns: Number T of new columns (positions that are computed in this step) per lane.
        indices: Index of each lane's prefix, (n,). ``None`` means that the lanes have no prefix.
        caches: Keys and values of the n lanes, two tensors (layers, n, heads, positions, w).
        lengths: Number of positions after its prefix that each lane already has, (n,).
    """

    def __init__(
        self,
        decoder: KernelDecoder,
        columns: int,
        indices: np.ndarray | None,
        caches: Sequence[Tensor],
        lengths: np.ndarray,
    ):
        self.recorder, self.layers = decoder._recorder, decoder.shape.layers
        lanes, width = len(lengths), decoder.shape.head_width
        used = np.zeros(lanes, np.int64) if indices is None else np.array(decoder.prefix_lengths)[indices]
        arrays = [
            np.ascontiguousarray(array, dtype=np.int64)
            for array in (lengths, used, used if indices is None else indices)
        ]
        self.positions = columns if indices is None else int(used.max())  # number of positions whose scores to record
        self.caches = [*caches] if indices is None else [*caches, decoder.prefix_keys, decoder.prefix_values]
        self._arrays = arrays  # keeps the arrays alive, because the library reads their memory
        self.arguments = kernels.AttentionArguments(
            lanes=lanes,
            columns=columns,
            heads=decoder.shape.heads,
            width=width,
            half=decoder.dtype == torch.float16,
            prefix_capacity=decoder.prefix_capacity,
            capacity=caches[0].shape[3],
            lengths=arrays[0].ctypes.data,
            prefix_lengths=arrays[1].ctypes.data,
            prefix_of=arrays[2].ctypes.data,
            recorded_positions=self.positions,
            scale=width**-0.5,
        )
        self.point(0)

    def point(self, layer: int) -> None:
        """Make the arguments for the compiled kernels point to this layer's caches."""
        for name, cache in zip(("keys", "values", "prefix_keys", "prefix_values"), self.caches, strict=False):
            setattr(self.arguments, name, cache.data_ptr() + layer * bytes_of_layer(cache))

    def scores(self, layer: int) -> Tensor | None:
        """Allocate a tensor for a layer's scores, (n, heads, 1, positions).

        Returns ``None`` if nobody records scores.
        """
        if self.recorder is None or layer not in self.recorder.heads:
            return None
        return torch.full((self.arguments.lanes, self.arguments.heads, 1, self.positions), float("-inf"), **HOST_FLOATS)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k and v (n, heads, T, w) to the caches of the lanes (sequences).

        Attend from q to each lane and its prefix.
        """
        if not (q.stride() == k.stride() == v.stride() and q.stride(3) == 1):
            q, k, v = (tensor.contiguous() for tensor in (q, k, v))
        self.point(layer)
        arguments, scores = self.arguments, self.scores(layer)
        arguments.q, arguments.k, arguments.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        arguments.lane_stride, arguments.head_stride, arguments.column_stride, _ = q.stride()
        out = torch.empty((arguments.lanes, arguments.columns, arguments.heads, arguments.width), **HOST_FLOATS)
        arguments.out = out.data_ptr()
        arguments.recorded = None if scores is None else scores.data_ptr()
        kernels.check(kernels.library().ane_attend(ctypes.addressof(arguments), torch.get_num_threads()))
        if scores is not None:
            self.recorder.add(layer, scores)
        return out.transpose(1, 2)

    def through(self, blocks: KernelBlocks, x: Tensor, memory: "MemoryCall | None") -> None:
        """Run all blocks on x (n, T, width), in place.

        ``memory`` computes cross-attention, and is ``None`` for a network without cross-attention.
        """
        scores = [self.scores(layer) for layer in range(self.layers)]
        caches = self.caches[-1], self.caches[0], self.caches[0] if memory is None else memory.keys
        recorded = (ctypes.c_void_p * self.layers)(*(None if array is None else array.data_ptr() for array in scores))
        kernels.check(
            kernels.library().ane_blocks(
                ctypes.addressof(blocks.arguments),
                self.layers,
                ctypes.addressof(self.arguments),
                None if memory is None else ctypes.addressof(memory.arguments),
                (ctypes.c_long * 3)(*map(bytes_of_layer, caches)),
                recorded,
                x.data_ptr(),
                torch.get_num_threads(),
            )
        )
        for layer, recording in enumerate(scores):
            if recording is not None:
                self.recorder.add(layer, recording)


class MemoryCall:
    """Computes cross-attention: each new column attends to the memory that belongs to the prefix of its lane.

    Args:
        decoder: Decoder that stores the memories.
        columns: Number T of new columns per lane.
        indices: Index of each lane's prefix, (n,).
    """

    def __init__(self, decoder: KernelDecoder, columns: int, indices: np.ndarray):
        self.keys, positions, width = decoder.memory_keys, decoder.shape.memory_length, decoder.shape.head_width
        self.prefix_of = np.ascontiguousarray(indices, dtype=np.int64)  # the library reads both arrays in place
        self.lengths = np.full(len(indices), positions, np.int64)
        self.arguments = kernels.AttentionArguments(
            lanes=len(indices),
            columns=columns,
            heads=decoder.shape.heads,
            width=width,
            half=decoder.dtype == torch.float16,
            prefix_keys=self.keys.data_ptr(),
            prefix_values=decoder.memory_values.data_ptr(),
            prefix_capacity=positions,
            prefix_of=self.prefix_of.ctypes.data,
            prefix_lengths=self.lengths.ctypes.data,
            scale=width**-0.5,
        )


def bytes_of_layer(cache: Tensor) -> int:
    """Return the number of bytes between the starts of two neighbouring layers in a cache (layers, …)."""
    return cache.stride(0) * cache.element_size()
