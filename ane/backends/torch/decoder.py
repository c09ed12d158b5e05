"""Run an autoregressive network on PyTorch. Its kv-cache has room for shared prefixes and for every lane's positions.

On the CPU, the bits of a lane's results do not depend on other lanes. A math library chooses a kernel by the shapes of
a product, and its kernels add in different orders. The code therefore pads products to shapes that do not depend on
other lanes:

* A product with a prefix has ``padded_rows`` rows, and a sum over at most ``BLOCK`` positions.
* A lane reads its positions up to a multiple of ``POSITIONS``. A mask hides the surplus positions, so they add exact
  zeros.

The bits are equal for networks with more than one head and for up to 191 rows per prefix. To check this claim on a
machine, run ``python -m benchmarks exactness``.
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
from ane.backends.torch.threads import ThreadGovernor, governed

POSITIONS = 16  # the widest vectors have 16 floats, so a softmax adds every sixteenth position
FEWEST_POSITIONS = 48  # MKL on Intel's CPUs adds in another order if a product has fewer positions
BLOCK = 192  # MKL (with AVX2, and on Intel's CPUs) splits a longer sum in a way that depends on its length
# number of rows to add, by the number of rows modulo 6, because MKL with AVX2 adds in one order for blocks of six or
# four rows, and in another order for smaller blocks
ROWS_ADDED = 0, 3, 2, 1, 0, 1


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

    def _lanes_by_prefix(self, indices: np.ndarray, columns: int) -> "LanesByPrefix":
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

    def _attend_memory(self, prefixes: "LanesByPrefix", layer: int, q: Tensor) -> Tensor:
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
        self, layer: int, reached: "LanePositions", prefixes: "LanesByPrefix", q: Tensor, k: Tensor, v: Tensor
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


def padded_positions(positions: int, head_width: int) -> int:
    """Return how many positions of a lane (sequence) to read so that a sum has the same bits as over ``positions``.

    The number is at least the width of a head, because MKL uses other kernels for smaller products.
    """
    return -(-max(positions, head_width, FEWEST_POSITIONS) // POSITIONS) * POSITIONS


def prefix_positions(positions: int, head_width: int, rows: int) -> int:
    """Return how many positions of a prefix (prompt) to read.

    ``weighted_sum`` then has the same bits as over ``positions``. ``weighted_sum`` works in blocks of positions. The
    last block has more positions than there are ``rows``, because MKL uses other kernels for smaller products.
    """
    whole = max(positions - 1, 0) // BLOCK * BLOCK
    return whole + min(padded_positions(max(positions - whole, rows + 1), head_width), BLOCK)


def padded_rows(rows: int, head_width: int) -> int:
    """Return how many rows to use in a product with a prefix (prompt), so that no row's bits depend on other rows."""
    rows = max(rows, head_width // 16)
    return rows + ROWS_ADDED[rows % 6]


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply weights (n, rows, positions) by values (n, positions, w), in blocks of at most ``BLOCK`` positions."""
    total = weights[:, :, :BLOCK] @ values[:, :BLOCK]
    for start in range(BLOCK, values.shape[1], BLOCK):
        total += weights[:, :, start : start + BLOCK] @ values[:, start : start + BLOCK]
    return total


def mask_after(lengths: np.ndarray, positions: int, like: Tensor) -> Tensor:
    """Create a mask to add to attention scores: 0 for the first ``lengths`` positions, and −∞ for all later ones.

    Args:
        lengths: Numbers of positions that the mask does not hide, of any shape (…).
        positions: Number of positions in the mask.
        like: Tensor that has the dtype and device for the mask.

    Returns:
        Mask (…, positions).
    """
    masked = torch.from_numpy(np.arange(positions) >= lengths[..., None]).to(like.device)
    return torch.zeros(masked.shape, device=like.device, dtype=like.dtype).masked_fill(masked, float("-inf"))


class LanesByPrefix:
    """The lanes of a call, grouped by their prefix, so that all lanes of a prefix are rows of one matrix product.

    Args:
        indices: Index of each lane's prefix, (n,).
        columns: Number T of new columns per lane.
        prefix_lengths: Number of positions in each prefix.
        capacity: Number of positions that the cache has per prefix.
        like: Cache of one layer, (…, heads, positions, head_width). The masks take their sizes, dtype and device from
            it.

    Attributes:
        longest: Number of positions to read from each prefix.
        padding: Number of rows of zeros to add after the rows of a prefix's lanes.
        mask: Mask (1 or prefixes·heads, 1, longest) for products with prefixes.
    """

    def __init__(self, indices: np.ndarray, columns: int, prefix_lengths: list[int], capacity: int, like: Tensor):
        self.count, self.columns, self.heads = len(indices), columns, like.shape[1]
        self.low, self.high = int(indices.min()), int(indices.max()) + 1
        lengths = np.array(prefix_lengths[self.low : self.high])
        groups = [np.flatnonzero(indices == index) for index in range(self.low, self.high)]
        most = max(map(len, groups))
        width, rows = like.shape[-1], most * columns
        self.padding = padded_rows(rows, width) - rows
        self.longest = min(prefix_positions(int(lengths.max()), width, rows + self.padding), capacity)
        self.mask = mask_after(lengths[:, None], self.longest, like)  # (prefixes, 1, longest)
        self.gather = self.scatter = None
        if len(lengths) == 1:
            return
        self.mask = self.mask.repeat_interleave(self.heads, dim=0)
        # groups with fewer lanes are filled with lane 0, whose results nobody reads there
        order = np.stack([np.pad(lanes, (0, most - len(lanes))) for lanes in groups])  # (prefixes, most)
        row = np.empty(self.count, dtype=np.int64)
        for lanes in groups:
            row[lanes] = np.arange(len(lanes))
        # ``gather`` indexes an array (n, heads, T, w), and ``scatter`` an array (prefixes, heads, rows, T, w)
        self.gather, self.scatter = (
            tuple(torch.from_numpy(index).to(like.device) for index in indexing)
            for indexing in (
                (order[:, None], np.arange(self.heads)[:, None]),
                ((indices - self.low)[:, None], np.arange(self.heads), row[:, None]),
            )
        )

    def read(self, cache: Tensor) -> Tensor:
        """Select the positions to read, (prefixes·heads, longest, w), from a cache (prefixes, heads, capacity, w)."""
        return cache[self.low : self.high, :, : self.longest].flatten(0, 1)

    def rows(self, x: Tensor) -> Tensor:
        """Reorder x from (n, heads, T, w) to (prefixes·heads, rows, w).

        Lanes (sequences) with the same prefix (prompt) become adjacent rows.
        """
        n, heads, T, width = x.shape
        x = (
            x.transpose(0, 1).reshape(heads, n * T, width)
            if self.gather is None
            else x[self.gather].flatten(0, 1).flatten(1, 2)
        )
        return F.pad(x, (0, 0, 0, self.padding)) if self.padding else x

    def lanes(self, x: Tensor) -> Tensor:
        """Reorder x from (prefixes·heads, rows, w) to (n, heads, T, w). This is the inverse of ``rows``."""
        x = x[:, : x.shape[1] - self.padding].unflatten(1, (-1, self.columns))
        return x.transpose(0, 1) if self.scatter is None else x.unflatten(0, (-1, self.heads))[self.scatter]


class LanePositions:
    """The lanes' own positions in a call: the positions of new columns, and the positions that a column attends to.

    Args:
        lanes: Indices of the n lanes.
        lengths: Number of positions after its prefix that each lane already has, (n,).
        columns: Number T of new columns per lane.
        like: Cache of one layer, (…, heads, positions, head_width). The masks take their sizes, dtype and device from
            it.

    Attributes:
        position: Position of each new column, (n, T). ``None`` means that in all lanes the new columns have the
            positions ``start`` to ``stop − 1``.
        end: Number of positions to read from each lane.
        mask: Mask (1 or n·heads, end, T) for products with the lanes' own positions.
    """

    def __init__(self, lanes: slice, lengths: np.ndarray, columns: int, like: Tensor):
        self.lanes, self.start, self.stop = lanes, int(lengths.min()), int(lengths.max()) + columns
        self.end = padded_positions(self.stop, like.shape[-1])
        same_length = self.start + columns == self.stop
        position = (lengths[:1] if same_length else lengths)[:, None] + np.arange(columns)
        self.position = None if same_length else torch.from_numpy(position).to(like.device)
        self.mask = mask_after(position + 1, self.end, like)  # (1 or n, T, end)
        if not same_length:
            self.mask = self.mask.repeat_interleave(like.shape[1], dim=0)
        self.mask = self.mask.transpose(1, 2)

    def write(self, cache: Tensor, new: Tensor) -> Tensor:
        """Write new keys or values (n, heads, T, w) into a cache (n, heads, capacity, w).

        Returns:
            The positions to read from the cache, (n·heads, end, w).
        """
        if self.position is None:
            cache[:, :, self.start : self.stop] = new
        else:
            rows = torch.arange(len(cache), device=cache.device)[:, None]
            cache[rows, :, self.position] = new.transpose(1, 2)
        return cache[:, :, : self.end].flatten(0, 1)


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
