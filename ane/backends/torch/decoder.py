"""Run an autoregressive network on PyTorch. Its kv-cache has room for shared prefixes and for every lane's positions.

On the CPU, the bits of a lane's results do not depend on other lanes (``ane.backends.torch.padded_products``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.decoding import Decoder, check_step
from ane.backends.torch.device import torch_memory_errors
from ane.backends.torch.padded_products import (
    LanePositions,
    LanesByPrefix,
    padded_positions,
    padded_rows,
    prefix_positions,
    weighted_sum,
)
from ane.backends.torch.threads import ThreadGovernor, governed


class TorchDecoder(Decoder):
    """A decoder on PyTorch. ``ane.backends.base.DecoderStage`` says which methods the network must have.

    A prefix is stored once, and all its lanes attend to it in one matrix product. The decoder allocates two caches. The
    cache for prefixes is (layers, prefixes, heads, prefix_capacity, head_width), and the cache for the lanes' own
    positions is (layers, lanes, heads, capacity, head_width). If ``max_prefix_length`` is ``None``, a prefix that is
    longer than all earlier prefixes makes the decoder allocate a larger cache for prefixes.
    """

    copies_lanes = True
    governor: ThreadGovernor | None = None  # chooses the number of threads, which changes no bit
    fixed_thread_count = False

    def __init__(
        self,
        network: Any,
        lanes: int,
        capacity: int,
        device: torch.device,
        dtype: torch.dtype,
        prefixes: int = 1,
        max_prefix_length: int | None = None,
    ):
        self.network, self.shape = network, network.config.decoder_shape
        self.lanes, self.capacity, self.prefixes = lanes, capacity, prefixes
        self.device, self.dtype, self.max_prefix_length = device, dtype, max_prefix_length
        allocated = padded_positions(capacity, self.shape.head_width)
        self.keys, self.values = (self._allocate(lanes, allocated) for _ in range(2))
        self.prefix_keys = self.prefix_values = None
        self.prefix_capacity = self._prefix_positions(max_prefix_length or 0)  # room per prefix, in positions
        self.prefix_lengths = [0] * prefixes  # length of each stored prefix, in positions
        self.recorded = np.empty((0, 0, 0), np.float32)
        self._recorder: PrefixScores | None = None
        if self.shape.memory_length:
            self.memory_keys, self.memory_values = (
                self._allocate(prefixes, self.shape.memory_length) for _ in range(2)
            )

    @torch.inference_mode()
    def set_memory(self, memory: np.ndarray, index: int = 0) -> None:
        if index >= self.prefixes or len(memory) != self.shape.memory_length:
            raise ValueError(
                f"this decoder stores {self.prefixes} memories of {self.shape.memory_length} "
                f"positions, got memory number {index} with {len(memory)} positions"
            )
        with torch_memory_errors():
            for layer, (keys, values) in enumerate(self.network.memory(self._to_device(memory[None]))):
                self.memory_keys[layer, index], self.memory_values[layer, index] = keys[0], values[0]

    @governed
    @torch.inference_mode()
    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        with torch_memory_errors():
            grows = self.max_prefix_length is None and self.prefixes == 1 and len(prefix) > self.prefix_capacity
            limit = self.max_prefix_length or 0
            if index >= self.prefixes or (len(prefix) > max(limit, self.prefix_capacity * (not limit)) and not grows):
                raise ValueError(
                    f"this decoder stores {self.prefixes} prefixes of up to {limit} positions, got "
                    f"prefix {index} of {len(prefix)} positions"
                )
            if grows or self.prefix_keys is None:
                self.prefix_capacity = max(self.prefix_capacity, self._prefix_positions(len(prefix)))
                self.prefix_keys, self.prefix_values = (
                    self._allocate(self.prefixes, self.prefix_capacity) for _ in range(2)
                )
            hidden = self._prefilled(self._to_device(prefix[None]), index)[:, -1]
            self.prefix_lengths[index] = len(prefix)
            self._end_recording()
            return hidden[0].cpu().numpy(), self.network.logits(hidden)[0].cpu().numpy()

    @governed
    @torch.inference_mode()
    def step(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0, prefix_indices: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        lanes = len(columns)
        check_step(self, columns, lengths, first_lane)
        with torch_memory_errors():
            indices = np.zeros(lanes, dtype=np.int64) if prefix_indices is None else prefix_indices
            hidden = self._stepped(self._to_device(columns), first_lane, lengths, indices)
            self._end_recording()
            return hidden.cpu().numpy(), self.network.logits(hidden[:, -1]).cpu().numpy()

    def _prefilled(self, columns: Tensor, index: int) -> Tensor:
        """Compute the hidden states of columns (1, T, width), and store the columns' keys and values as a prefix.

        The hidden states are (1, T, width).
        """
        store = [partial(self._store_prefix, layer, index) for layer in range(self.shape.layers)]
        stored = self._lanes_by_prefix(np.array([index]), columns.shape[1])
        return self._run_network(columns, store, partial(self._attend_memory, stored))

    def _stepped(self, columns: Tensor, first_lane: int, lengths: np.ndarray, indices: np.ndarray) -> Tensor:
        """Compute the hidden states (n, T, width) for the new columns of n lanes (sequences).

        Args:
            columns: New columns, (n, T, width).
            first_lane: Index of the first of the n lanes.
            lengths: Number of positions after its prefix that each lane already has, (n,).
            indices: Index of each lane's prefix, (n,).
        """
        reached = LanePositions(slice(first_lane, first_lane + len(lengths)), lengths, columns.shape[1], self.keys[0])
        prefixes = self._lanes_by_prefix(indices, columns.shape[1])
        attend = [partial(self._attend, layer, reached, prefixes) for layer in range(self.shape.layers)]
        return self._run_network(columns, attend, partial(self._attend_memory, prefixes))

    def record(self, heads: Sequence[tuple[int, int]]) -> bool:
        if self.device.type != "cpu":  # on a GPU, every step would have to wait until the scores reach the host
            return False
        self._recorder = PrefixScores(heads)
        return True

    def _end_recording(self) -> None:
        if self._recorder is not None:
            self.recorded = self._recorder.take()

    @torch.inference_mode()
    def copy_lanes(self, sources: np.ndarray, length: int) -> None:
        index = torch.from_numpy(np.ascontiguousarray(sources)).to(self.device)
        with torch_memory_errors():
            for cache in (self.keys, self.values):
                cache[:, : len(sources), :, :length] = cache[:, index, :, :length]

    def _prefix_positions(self, length: int) -> int:
        """Return how many positions to allocate per prefix (prompt) if the longest has ``length`` positions."""
        rows = padded_rows(self.lanes, self.shape.head_width)
        return prefix_positions(length, self.shape.head_width, rows)

    def _lanes_by_prefix(self, indices: np.ndarray, columns: int) -> LanesByPrefix:
        return LanesByPrefix(indices, columns, self.prefix_lengths, self.prefix_capacity, self.keys[0])

    def _allocate(self, rows: int, positions: int) -> Tensor:
        shape = (self.shape.layers, rows, self.shape.heads, positions, self.shape.head_width)
        return torch.zeros(shape, device=self.device, dtype=self.dtype)

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(self.device)

    def _run_network(
        self,
        columns: Tensor,
        attend: Sequence[Callable[[Tensor, Tensor, Tensor], Tensor]],
        attend_memory: Callable[[int, Tensor], Tensor],
    ) -> Tensor:
        """Run the network on columns (input vectors), and return hidden states.

        Args:
            columns: Columns to run, (n, T, width).
            attend: Function (q, k, v) → attention output for each layer.
            attend_memory: Function (layer, q) → attention output, for networks with cross-attention.
        """
        if not self.shape.memory_length:
            return self.network(columns, attend)
        return self.network(columns, attend, [partial(attend_memory, layer) for layer in range(self.shape.layers)])

    def _attend_memory(self, prefixes: LanesByPrefix, layer: int, q: Tensor) -> Tensor:
        """Compute the attention of queries q (n, heads, T, w).

        Each lane (sequence) attends to the memory (such as encoded audio) of its prefix.
        """
        keys, values = (
            cache[layer, prefixes.low : prefixes.high].flatten(0, 1) for cache in (self.memory_keys, self.memory_values)
        )
        return prefixes.lanes(F.scaled_dot_product_attention(prefixes.rows(q)[None], keys[None], values[None])[0])

    def _store_prefix(self, layer: int, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for cache, new in ((self.prefix_keys, k), (self.prefix_values, v)):
            cache[layer, index, :, : new.shape[2]] = new[0]
        if self._recorder is not None and layer in self._recorder.heads:
            self._recorder.add(layer, q[:, :, -1:] @ k.transpose(2, 3) * q.shape[-1] ** -0.5)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def _attend(
        self, layer: int, reached: LanePositions, prefixes: LanesByPrefix, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """Write k and v (n, heads, T, w) to the caches of the lanes (sequences).

        Attend from q to each lane and its prefix.
        """
        keys, values = (
            reached.write(cache[layer, reached.lanes], new) for cache, new in ((self.keys, k), (self.values, v))
        )  # (n·heads, end, w)
        prefix_keys, prefix_values = (prefixes.read(cache[layer]) for cache in (self.prefix_keys, self.prefix_values))
        scale = q.shape[-1] ** -0.5
        prefix_scores = prefixes.lanes(
            torch.baddbmm(prefixes.mask, prefixes.rows(q), prefix_keys.transpose(1, 2), alpha=scale)
        )
        if self._recorder is not None and layer in self._recorder.heads:
            self._recorder.add(layer, prefix_scores)
        # keys · query, because query · keys takes MKL a quarter longer for hundreds of positions
        own_scores = torch.baddbmm(reached.mask, keys, q.flatten(0, 1).transpose(1, 2), alpha=scale).transpose(1, 2)
        scores = torch.cat((prefix_scores, own_scores.view(*q.shape[:3], -1)), dim=-1)
        weights = F.softmax(scores.float(), dim=-1).to(q.dtype)
        prefix_weights, own_weights = weights.split((prefixes.longest, reached.end), dim=-1)
        return weighted_sum(own_weights.flatten(0, 1), values).view(q.shape) + prefixes.lanes(
            weighted_sum(prefixes.rows(prefix_weights), prefix_values)
        )


class PrefixScores:
    """Collects the attention scores of some heads while a call of the decoder runs.

    It copies the scores with NumPy, because a call of torch takes longer for so few numbers.

    Args:
        heads: Heads to record, as (layer, head) pairs in ascending order.

    Attributes:
        heads: Indices of the recorded heads, by layer.
    """

    def __init__(self, heads: Sequence[tuple[int, int]]):
        self.heads: dict[int, list[int]] = {}
        for layer, head in heads:
            self.heads.setdefault(layer, []).append(head)
        self._scores: list[np.ndarray] = []

    def add(self, layer: int, scores: Tensor) -> None:
        """Store a layer's scores (n, heads, T, P) for the last of the T inputs.

        Call this method for one layer after another.
        """
        self._scores.append(scores.float().numpy()[:, :, -1].take(self.heads[layer], 1))

    def take(self) -> np.ndarray:
        """Return the stored scores, (n, heads, P) float32, and clear them."""
        scores, self._scores = np.concatenate(self._scores, axis=1), []
        return scores


def aligned_pass(
    network: Any, columns: Tensor, memory: Tensor, heads: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Run a network with cross-attention once over columns (inputs), and return its logits and attention scores.

    Args:
        network: Network to run.
        columns: Columns (T, D).
        memory: Memory to attend to, (N, D) float32.
        heads: Cross-attention heads whose scores to return, as (layer, head) pairs.

    Returns:
        Logits (T, V) and scores (heads, T, N), both float32.
    """
    cached = network.memory(memory[None])  # keys and values (1, heads, N, w) of each layer
    scores: dict[tuple[int, int], Tensor] = {}

    def attend(layer: int, q: Tensor) -> Tensor:
        keys, values = cached[layer]
        for head in (head for at, head in heads if at == layer):
            scores[layer, head] = q[0, head].float() * q.shape[-1] ** -0.5 @ keys[0, head].float().T
        return F.scaled_dot_product_attention(q, keys, values)

    hidden = network(columns[None], None, [partial(attend, layer) for layer in range(len(cached))])
    return network.logits(hidden)[0], torch.stack([scores[layer, head] for layer, head in heads])
