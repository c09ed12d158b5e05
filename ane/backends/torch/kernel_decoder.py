"""A decoder on the CPU whose attention is one call for all lanes (``ane.backends.torch.kernels``)."""

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
    """``TorchDecoder`` by kernels: a lane reads its own positions and no others, in their order.

    If the layers are packed, all blocks are one call, which needs no lock of Python. Caches are float32 or fp16.
    ValueError for columns, lengths or prefixes that do not fit: the library would read and write beyond its arrays.
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
            raise ValueError(f"{len(columns)} lanes with lengths {lengths} and prefixes {indices}")
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
            raise ValueError(f"a decoder of {self.shape.width} channels got columns {tuple(columns.shape)}")

    def _through_blocks(self, call: "AttentionCall", columns: Tensor, indices: np.ndarray) -> Tensor:
        """Run the blocks on columns (n, T, width); ``indices`` (n,) has the prefix of each lane, and so its memory."""
        x = columns.clone()  # blocks add to it, and it can be an array of the caller
        call.through(self._blocks, x, MemoryCall(self, columns.shape[1], indices) if self.shape.memory_length else None)
        return self.network.finish(x)


class AttentionCall:
    """Attention of the lanes that a call extends.

    Args:
        columns: T, new in each lane. indices: (n,) prefix of each lane; None: they have no prefix.
        own: keys and values of the lanes, (layers, n, heads, positions, w) each. lengths: (n,) of the lanes so far.
    """

    def __init__(
        self,
        decoder: KernelDecoder,
        columns: int,
        indices: np.ndarray | None,
        own: Sequence[Tensor],
        lengths: np.ndarray,
    ):
        self.recorder, self.layers = decoder._recorder, decoder.shape.layers
        lanes, width = len(lengths), decoder.shape.head_width
        used = np.zeros(lanes, np.int64) if indices is None else np.array(decoder.prefix_lengths)[indices]
        arrays = [
            np.ascontiguousarray(each, dtype=np.int64) for each in (lengths, used, used if indices is None else indices)
        ]
        self.positions = columns if indices is None else int(used.max())  # whose scores are recorded
        self.caches = [*own] if indices is None else [*own, decoder.prefix_keys, decoder.prefix_values]
        self.kept = arrays  # the library reads them at their addresses
        self.arguments = kernels.AttentionArguments(
            lanes=lanes,
            columns=columns,
            heads=decoder.shape.heads,
            width=width,
            half=decoder.dtype == torch.float16,
            prefix_capacity=decoder.prefix_capacity,
            capacity=own[0].shape[3],
            lengths=arrays[0].ctypes.data,
            prefix_lengths=arrays[1].ctypes.data,
            prefix_of=arrays[2].ctypes.data,
            recorded_positions=self.positions,
            scale=width**-0.5,
        )
        self.point(0)

    def point(self, layer: int) -> None:
        """Use the caches of this layer."""
        for name, cache in zip(("keys", "values", "prefix_keys", "prefix_values"), self.caches, strict=False):
            setattr(self.arguments, name, cache.data_ptr() + layer * bytes_of_layer(cache))

    def scores(self, layer: int) -> Tensor | None:
        """Room for the scores of a layer, (n, heads, 1, positions); None: they are not wanted."""
        if self.recorder is None or layer not in self.recorder.heads:
            return None
        return torch.full((self.arguments.lanes, self.arguments.heads, 1, self.positions), float("-inf"), **HOST_FLOATS)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k, v (n, heads, T, w) at the lanes' positions; attend to prefixes and lanes: (n, heads, T, w)."""
        if not (q.stride() == k.stride() == v.stride() and q.stride(3) == 1):
            q, k, v = (each.contiguous() for each in (q, k, v))
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
        """Run all blocks on x (n, T, width), in place. ``memory`` is None for blocks that attend to none."""
        scores = [self.scores(layer) for layer in range(self.layers)]
        caches = self.caches[-1], self.caches[0], self.caches[0] if memory is None else memory.keys
        recorded = (ctypes.c_void_p * self.layers)(*(None if each is None else each.data_ptr() for each in scores))
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
        for layer, each in enumerate(scores):
            if each is not None:
                self.recorder.add(layer, each)


class MemoryCall:
    """Attention of lanes to the memories of their prefixes.

    Args:
        columns: T, new in each lane. indices: (n,) prefix of each lane.
    """

    def __init__(self, decoder: KernelDecoder, columns: int, indices: np.ndarray):
        self.keys, positions, width = decoder.memory_keys, decoder.shape.memory_length, decoder.shape.head_width
        self.prefix_of = np.ascontiguousarray(indices, dtype=np.int64)  # the library reads both at their addresses
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
    """From one layer of a cache (layers, …) to the next."""
    return cache.stride(0) * cache.element_size()
