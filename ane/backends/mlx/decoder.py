"""Run a decoder on MLX. Each lane (sequence) has a separate kv-cache, and lanes share the caches of stored prefixes."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ane.backends.decoding import Decoder, check_step
from ane.backends.mlx.gpt import MlxGPT
from ane.backends.mlx.owner import on_owner

STEP = 64  # a call reads a multiple of 64 positions, so that MLX meets only a few shapes


def rounded(positions: int) -> int:
    """Round a number of positions up to a multiple of ``STEP``."""
    return -(-max(positions, 1) // STEP) * STEP


class MlxDecoder(Decoder):
    """A decoder on MLX.

    Every layer has two caches, for keys and for values. A cache is (rows, heads, positions, head_width), in the
    network's dtype. Its rows are lanes or prefixes.

    Args:
        network: Network that the decoder runs.
        lanes, capacity, prefixes, max_prefix_length: See ``Backend.decoder``.
    """

    copies_lanes = True

    @on_owner
    def __init__(
        self, network: MlxGPT, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None
    ):
        self.network, self.shape = network, network.shape
        self.lanes, self.capacity, self.prefixes, self.longest = lanes, capacity, prefixes, max_prefix_length
        self._own = self._allocate(lanes, rounded(capacity))
        self._stored = self._allocate(prefixes, rounded(max_prefix_length or 1))
        self._prefix_lengths = np.zeros(prefixes, np.int64)
        self._heads: Sequence[tuple[int, int]] = ()
        self.recorded = np.empty((0, 0, 0), np.float32)

    def _allocate(self, rows: int, positions: int) -> list[list[mx.array]]:
        size = (rows, self.shape.heads, positions, self.shape.head_width)
        caches = [[mx.zeros(size, self.network.dtype) for _ in range(2)] for _ in range(self.shape.layers)]
        mx.eval(caches)
        return caches

    def record(self, heads: Sequence[tuple[int, int]]) -> bool:
        self._heads = list(heads)
        return True

    @on_owner
    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        length = len(prefix)
        grows = self.longest is None and self.prefixes == 1
        if index >= self.prefixes or (not grows and length > (self.longest or 0)):
            raise ValueError(
                f"this decoder stores {self.prefixes} prefixes of up to {self.longest} positions, got prefix {index} "
                f"of {length} positions"
            )
        if length > self._stored[0][0].shape[2]:
            self._stored = self._allocate(self.prefixes, rounded(length))
        scores: dict[int, mx.array] = {}

        def attend(layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
            for cache, new in zip(self._stored[layer], (k, v), strict=True):
                cache[index, :, :length] = new[0]
            if self._records(layer):
                scores[layer] = (q[:, :, -1:] @ k.transpose(0, 1, 3, 2)) * q.shape[-1] ** -0.5
            return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")

        hidden = self.network(mx.array(np.ascontiguousarray(prefix[None], np.float32)), attend)[:, -1]
        self._prefix_lengths[index] = length
        hidden_rows, logits = self._results(hidden, hidden, scores)
        return hidden_rows[0], logits[0]

    @on_owner
    def step(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0, prefix_indices: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        check_step(self, columns, lengths, first_lane)
        n = len(columns)
        indices = np.zeros(n, np.int64) if prefix_indices is None else prefix_indices
        call = _StepAttention(
            lengths,
            columns.shape[1],
            slice(first_lane, first_lane + n),
            indices,
            self._prefix_lengths[indices],
            self.network.dtype,
        )
        scores: dict[int, mx.array] = {}

        def attend(layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
            keys, values = (call.write(cache, new) for cache, new in zip(self._own[layer], (k, v), strict=True))
            result, before = call.attend(q, keys, values, *self._stored[layer])
            if self._records(layer):
                scores[layer] = before[:, :, -1:]
            return result

        hidden = self.network(mx.array(np.ascontiguousarray(columns, np.float32)), attend)
        return self._results(hidden, hidden[:, -1], scores)

    @on_owner
    def copy_lanes(self, sources: np.ndarray, length: int) -> None:
        index = mx.array(sources)
        for caches in self._own:
            for cache in caches:
                cache[: len(sources), :, :length] = cache[index, :, :length]
        mx.eval(self._own)

    def _records(self, layer: int) -> bool:
        return any(layer == recorded for recorded, _ in self._heads)

    def _results(self, hidden: mx.array, last: mx.array, scores: dict[int, mx.array]) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate all arrays of a call, which MLX computes lazily, and store the attention scores.

        Args:
            hidden: Hidden states (n, …, D).
            last: Hidden states of the last column, (n, D).
            scores: Attention scores by layer.

        Returns:
            The hidden states, and the logits (n, V) for ``last``.
        """
        logits = self.network.logits(last)
        mx.eval(hidden, logits, *scores.values(), self._own, self._stored)
        if self._heads:
            self.recorded = np.stack(
                [np.array(scores[layer][:, head, -1].astype(mx.float32)) for layer, head in self._heads], axis=1
            )
        return np.array(hidden), np.array(logits)


class _StepAttention:
    """Computes the attention of one step.

    A column attends to its lane's prefix, to earlier positions of its lane and to itself.

    Args:
        lengths: Number of positions after its prefix that each of the n lanes has before the step, (n,).
        columns: Number of new columns per lane.
        lanes: Indices of the lanes.
        indices: Index of each lane's prefix, (n,).
        prefix_lengths: Length of each lane's prefix, (n,).
        dtype: Dtype of the caches.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        columns: int,
        lanes: slice,
        indices: np.ndarray,
        prefix_lengths: np.ndarray,
        dtype: mx.Dtype,
    ):
        position = lengths[:, None] + np.arange(columns)  # (n, T)
        self.lanes = lanes
        self.read, self.longest = rounded(int(position.max()) + 1), rounded(int(prefix_lengths.max()))
        self.shared, self.index = len(np.unique(indices)) == 1, mx.array(indices)
        self.together = slice(int(lengths[0]), int(lengths[0]) + columns) if (lengths == lengths[0]).all() else None
        self.rows, self.places = mx.array(np.arange(lanes.start, lanes.stop)[:, None]), mx.array(position)
        before = np.broadcast_to(
            np.arange(self.longest) >= prefix_lengths[:, None, None], (*position.shape, self.longest)
        )
        outside = np.concatenate([before, np.arange(self.read) > position[..., None]], axis=2)
        self.mask = mx.array(np.where(outside, -np.inf, 0).astype(np.float32)[:, None])  # (n, 1, T, positions)
        self.dtype = dtype

    def write(self, cache: mx.array, new: mx.array) -> mx.array:
        """Write new keys or values (n, heads, T, w) to a cache, at the positions of the new columns.

        Returns:
            The positions of the cache that the step must read, (n, heads, positions, w).
        """
        if self.together is not None:
            cache[self.lanes, :, self.together] = new
        else:
            cache[self.rows, :, self.places] = new.transpose(0, 2, 1, 3)
        return cache[self.lanes, :, : self.read]

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, prefix_keys: mx.array, prefix_values: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Compute attention for queries q (n, heads, T, w).

        Returns:
            The attention output, with the shape of q, and the scores for the prefix (n, heads, T, longest), before the
            mask.
        """
        stored, sums = (
            (cache[self.index[:1]] if self.shared else cache[self.index])[:, :, : self.longest]
            for cache in (prefix_keys, prefix_values)
        )
        scale = q.shape[-1] ** -0.5
        before = self._product(q, stored.transpose(0, 1, 3, 2)) * scale
        after = (q @ keys.transpose(0, 1, 3, 2)) * scale
        weights = mx.softmax(mx.concatenate([before, after], axis=-1).astype(mx.float32) + self.mask, axis=-1)
        first, second = mx.split(weights.astype(self.dtype), [self.longest], axis=-1)
        return self._product(first, sums) + second @ values, before

    def _product(self, x: mx.array, stored: mx.array) -> mx.array:
        """Multiply x (n, heads, T, a) by ``stored`` (n or 1, heads, a, b).

        If all lanes (sequences) share a prefix, the first axis of ``stored`` is 1, and all lanes are rows of a single
        product.
        """
        if not self.shared:
            return x @ stored
        n, heads, T, _ = x.shape
        rows = x.transpose(1, 0, 2, 3).reshape(1, heads, n * T, -1) @ stored
        return rows.reshape(heads, n, T, -1).transpose(1, 0, 2, 3)
