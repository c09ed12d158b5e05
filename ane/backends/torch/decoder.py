"""An autoregressive network with a static kv-cache: prefixes that lanes share, and the positions of each lane."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.base import check_step
from ane.backends.torch.memory import torch_memory_errors


class TorchDecoder:
    """``ane.backends.base.Decoder`` on PyTorch; ``DecoderStage`` there says what the network must offer.

    A prefix is stored once, and all lanes that use it attend to it in one matrix product. The caches are allocated
    once: prefixes (layers, prefixes, heads, prefix_capacity, head_width), the lanes' own positions (layers, lanes,
    heads, capacity, head_width). Only without ``max_prefix_length`` a longer prefix reallocates that of the prefixes.
    """

    def __init__(self, network: Any, lanes: int, capacity: int, device: torch.device, dtype: torch.dtype,
                 prefixes: int = 1, max_prefix_length: int | None = None):
        self.network, self.shape = network, network.config.decoder_shape
        self.lanes, self.capacity, self.prefixes = lanes, capacity, prefixes
        self.device, self.dtype, self.max_prefix_length = device, dtype, max_prefix_length
        self.keys, self.values = (self._allocate(lanes, capacity) for _ in range(2))
        self.prefix_keys = self.prefix_values = None
        self.prefix_capacity = max_prefix_length or 0       # positions allocated for each prefix
        self.prefix_lengths = [0] * prefixes                # positions in use
        if self.shape.memory_length:
            self.memory_keys, self.memory_values = (
                self._allocate(prefixes, self.shape.memory_length) for _ in range(2))

    @torch.inference_mode()
    def set_memory(self, memory: np.ndarray, index: int = 0) -> None:
        if index >= self.prefixes or len(memory) != self.shape.memory_length:
            raise ValueError(f"a decoder of {self.prefixes} prefixes with a memory of {self.shape.memory_length} "
                             f"positions got memory {index} of {len(memory)} positions")
        with torch_memory_errors():
            for layer, (keys, values) in enumerate(self.network.memory(self._to_device(memory[None]))):
                self.memory_keys[layer, index], self.memory_values[layer, index] = keys[0], values[0]

    @torch.inference_mode()
    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        with torch_memory_errors():
            grows = self.max_prefix_length is None and self.prefixes == 1 and len(prefix) > self.prefix_capacity
            if index >= self.prefixes or (len(prefix) > self.prefix_capacity and not grows):
                raise ValueError(f"a decoder of {self.prefixes} prefixes of {self.prefix_capacity} positions got "
                                 f"prefix {index} of {len(prefix)} positions")
            if grows or self.prefix_keys is None:
                self.prefix_capacity = max(self.prefix_capacity, len(prefix))
                self.prefix_keys, self.prefix_values = (self._allocate(self.prefixes, self.prefix_capacity)
                                                        for _ in range(2))
            store = [partial(self._store_prefix, layer, index) for layer in range(self.shape.layers)]
            stored = LanesByPrefix(np.array([index]), self.prefix_lengths, self.device)
            attend_memory = partial(self._attend_memory, stored)
            hidden = self._run_network(self._to_device(prefix[None]), store, attend_memory)[:, -1]
            self.prefix_lengths[index] = len(prefix)
            return hidden[0].cpu().numpy(), self.network.logits(hidden)[0].cpu().numpy()

    @torch.inference_mode()
    def step(self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0,
             prefix_indices: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        lanes, columns_per_lane, _ = columns.shape
        check_step(self, columns, lengths, first_lane)
        with torch_memory_errors():
            own = OwnPositions(slice(first_lane, first_lane + lanes), lengths, columns_per_lane, self.device)
            indices = np.zeros(lanes, dtype=np.int64) if prefix_indices is None else prefix_indices
            prefixes = LanesByPrefix(indices, self.prefix_lengths, self.device)
            attend = [partial(self._attend, layer, own, prefixes) for layer in range(self.shape.layers)]
            hidden = self._run_network(self._to_device(columns), attend, partial(self._attend_memory, prefixes))
            return hidden.cpu().numpy(), self.network.logits(hidden[:, -1]).cpu().numpy()

    @torch.inference_mode()
    def copy_lanes(self, sources: np.ndarray, length: int) -> None:
        index = torch.from_numpy(np.ascontiguousarray(sources)).to(self.device)
        with torch_memory_errors():
            for cache in (self.keys, self.values):
                cache[:, :len(sources), :, :length] = cache[:, index, :, :length]

    def _allocate(self, rows: int, positions: int) -> Tensor:
        shape = (self.shape.layers, rows, self.shape.heads, positions, self.shape.head_width)
        return torch.zeros(shape, device=self.device, dtype=self.dtype)

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(self.device)

    def _run_network(self, columns: Tensor, attend: Sequence[Callable[[Tensor, Tensor, Tensor], Tensor]],
                     attend_memory: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Columns → hidden; ``attend_memory`` (layer, q) → output is for networks with cross-attention."""
        if not self.shape.memory_length:
            return self.network(columns, attend)
        return self.network(columns, attend, [partial(attend_memory, layer) for layer in range(self.shape.layers)])

    def _attend_memory(self, prefixes: "LanesByPrefix", layer: int, q: Tensor) -> Tensor:
        """q (n, heads, T, w) attends to the memory of its lane's prefix."""
        keys, values = (cache[layer, prefixes.low:prefixes.high] for cache in (self.memory_keys, self.memory_values))
        return prefixes.split(F.scaled_dot_product_attention(prefixes.group(q), keys, values).contiguous())

    def _store_prefix(self, layer: int, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for cache, new in ((self.prefix_keys, k), (self.prefix_values, v)):
            cache[layer, index, :, :new.shape[2]] = new[0]
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def _attend(self, layer: int, own: "OwnPositions", prefixes: "LanesByPrefix", q: Tensor, k: Tensor,
                v: Tensor) -> Tensor:
        """Write k, v (n, heads, T, w) at the lanes' positions, then attend to their prefixes and their own."""
        keys, values = (own.write(cache[layer, own.lanes], new)
                        for cache, new in ((self.keys, k), (self.values, v)))      # (n, heads, end, w)
        prefix_keys, prefix_values = (prefixes.read(cache[layer]) for cache in (self.prefix_keys, self.prefix_values))
        q = q * q.shape[-1] ** -0.5
        prefix_scores = prefixes.split(prefixes.group(q) @ prefix_keys.transpose(2, 3))     # (n, heads, T, P)
        if prefixes.mask is not None:
            prefix_scores = prefix_scores + prefixes.mask
        own_scores = q @ keys.transpose(2, 3)
        if own.mask is not None:
            own_scores = own_scores + own.mask
        weights = F.softmax(torch.cat((prefix_scores, own_scores), dim=-1).float(), dim=-1).to(q.dtype)
        prefix_weights, own_weights = weights.split((prefix_scores.shape[-1], own_scores.shape[-1]), dim=-1)
        return own_weights @ values + prefixes.split(prefixes.group(prefix_weights) @ prefix_values)


class LanesByPrefix:
    """The lanes of a call grouped by prefix, so that all lanes of a prefix are rows of one matrix product.

    Args:
        indices: (n,) prefix of each lane. prefix_lengths: positions of each prefix.

    Attributes:
        mask: (n, 1, 1, longest prefix) float32 to add to the scores; None: all lanes have the same prefix.
    """

    def __init__(self, indices: np.ndarray, prefix_lengths: list[int], device: torch.device):
        self.lanes, self.low, self.high = len(indices), int(indices.min()), int(indices.max()) + 1
        self.longest = max(prefix_lengths[self.low:self.high])
        self.order = self.inverse = self.mask = None
        if self.high - self.low > 1:
            indices = indices - self.low
            groups = [np.flatnonzero(indices == index) for index in range(self.high - self.low)]
            rows = max(map(len, groups))
            # groups with fewer lanes are padded with lane 0; its results there are not used
            order = np.stack([np.pad(lanes, (0, rows - len(lanes))) for lanes in groups])       # (prefixes, rows)
            inverse = np.empty(len(indices), dtype=np.int64)
            for index, lanes in enumerate(groups):
                inverse[lanes] = index * rows + np.arange(len(lanes))
            length = np.array(prefix_lengths[self.low:self.high])[indices]                      # (n,)
            masked = torch.from_numpy(np.arange(self.longest) >= length[:, None]).to(device)
            self.order, self.inverse = (torch.from_numpy(index).to(device) for index in (order, inverse))
            self.mask = torch.zeros(masked.shape, device=device).masked_fill(masked, float("-inf"))[:, None, None]

    def read(self, cache: Tensor) -> Tensor:
        """The part of a layer's cache (prefixes, heads, prefix_capacity, w) that the call reads."""
        return cache[self.low:self.high, :, :self.longest]

    def group(self, x: Tensor) -> Tensor:
        """(n, heads, T, w) → (prefixes, heads, rows, w): lanes of the same prefix side by side."""
        n, heads, T, width = x.shape
        if self.order is None:
            return x.transpose(0, 1).reshape(1, heads, n * T, width)
        prefixes, rows = self.order.shape
        x = x[self.order.flatten()].view(prefixes, rows, heads, T, width)
        return x.transpose(1, 2).reshape(prefixes, heads, rows * T, width)

    def split(self, x: Tensor) -> Tensor:
        """(prefixes, heads, rows, w) → (n, heads, T, w): the inverse of ``group``."""
        prefixes, heads, _, width = x.shape
        if self.order is None:
            return x.view(heads, self.lanes, -1, width).transpose(0, 1)
        rows = self.order.shape[1]
        x = x.view(prefixes, heads, rows, -1, width).transpose(1, 2)
        return x.reshape(prefixes * rows, heads, -1, width)[self.inverse]


class OwnPositions:
    """The lanes that a call extends, where it writes their columns, and what each column attends to in its lane.

    Attributes:
        position: (n, T) of the new columns; None: the same in all lanes, from ``start`` to ``end``.
        mask: (n, 1, T, end) float32 to add to the scores; None: every column attends to all positions before ``end``.
    """

    def __init__(self, lanes: slice, lengths: np.ndarray, columns: int, device: torch.device):
        self.lanes = lanes
        self.start, self.end = int(lengths.min()), int(lengths.max()) + columns
        same_length = self.start + columns == self.end
        position = torch.from_numpy(lengths).to(device)[:, None] + torch.arange(columns, device=device)  # (n, T)
        self.position = None if same_length else position
        self.mask = None
        if not same_length or columns > 1:
            masked = torch.arange(self.end, device=device) > position[..., None]                         # (n, T, end)
            self.mask = torch.zeros(masked.shape, device=device).masked_fill(masked, float("-inf"))[:, None]

    def write(self, cache: Tensor, new: Tensor) -> Tensor:
        """Write new (n, heads, T, w) into cache (n, heads, capacity, w), in place; returns what the call may read."""
        if self.position is None:
            cache[:, :, self.start:self.end] = new
        else:
            rows = torch.arange(len(cache), device=cache.device)[:, None]
            cache[rows, :, self.position] = new.transpose(1, 2)
        return cache[:, :, :self.end]
