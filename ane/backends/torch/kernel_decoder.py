"""A decoder on the CPU whose attention is one call for all lanes (``ane.backends.torch.kernels``)."""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ane.backends.torch import kernels
from ane.backends.torch.decoder import TorchDecoder


class KernelDecoder(TorchDecoder):
    """``TorchDecoder`` by kernels: a lane reads its own positions and no others, in the order of the positions.

    The caches are float32, or fp16 for a network whose weights have fewer bits.
    """

    def _attention(self, first_lane: int, lengths: np.ndarray, columns: int,
                   indices: np.ndarray) -> tuple[list[Callable], Callable]:
        attend = Attend(self, first_lane, lengths, columns, indices)
        memory: Any = None
        if self.shape.memory_length:
            memory = partial(self._attend_memory, self._lanes_by_prefix(indices, columns))
        return [partial(attend, layer) for layer in range(self.shape.layers)], memory


class Attend:
    """Attention of the lanes that a call extends: (layer, q, k, v (n, heads, T, w)) → (n, heads, T, w).

    Args:
        first_lane, lengths, indices, columns: as ``TorchDecoder.step`` gets them; columns: T.
    """

    def __init__(self, decoder: KernelDecoder, first_lane: int, lengths: np.ndarray, columns: int, indices: np.ndarray):
        self.decoder, self.recorder = decoder, decoder._recorder
        heads, width = decoder.shape.heads, decoder.shape.head_width
        self.kept = lengths, indices, prefix_lengths = [
            np.ascontiguousarray(each, dtype=np.int64)
            for each in (lengths, indices, np.array(decoder.prefix_lengths)[indices])]
        self.lanes, self.columns, self.longest = len(lengths), columns, int(prefix_lengths.max())
        caches = decoder.prefix_keys, decoder.prefix_values, decoder.keys, decoder.values
        offsets = 0, 0, *[first_lane * heads * decoder.keys.shape[3] * width * decoder.keys.element_size()] * 2
        # of layer 0, and bytes from one layer to the next
        self.caches = [(cache.data_ptr() + offset, cache.stride(0) * cache.element_size())
                       for cache, offset in zip(caches, offsets, strict=True)]
        self.arguments = kernels.AttentionArguments(
            lanes=self.lanes, columns=columns, heads=heads, width=width, half=decoder.dtype == torch.float16,
            prefix_capacity=decoder.prefix_capacity, prefix_of=indices.ctypes.data,
            prefix_lengths=prefix_lengths.ctypes.data, capacity=decoder.keys.shape[3], lengths=lengths.ctypes.data,
            recorded_positions=self.longest, scale=width ** -0.5)
        self.address, self.call = ctypes.addressof(self.arguments), kernels.library().ane_attend

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not (q.stride() == k.stride() == v.stride() and q.stride(3) == 1):
            q, k, v = (each.contiguous() for each in (q, k, v))
        arguments = self.arguments
        arguments.q, arguments.k, arguments.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        arguments.lane_stride, arguments.head_stride, arguments.column_stride, _ = q.stride()
        (arguments.prefix_keys, arguments.prefix_values, arguments.keys, arguments.values) = (
            first + layer * bytes_of_layer for first, bytes_of_layer in self.caches)
        out = torch.empty((self.lanes, self.columns, arguments.heads, arguments.width))
        arguments.out = out.data_ptr()
        records = self.recorder is not None and layer in self.recorder.heads
        scores = torch.full((self.lanes, arguments.heads, self.longest), float("-inf")) if records else None
        arguments.recorded = scores.data_ptr() if records else None
        kernels.check(self.call(self.address, torch.get_num_threads()))
        if records:
            self.recorder.add(layer, scores[:, :, None])
        return out.transpose(1, 2)
