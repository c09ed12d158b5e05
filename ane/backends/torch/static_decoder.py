"""Run decoder steps of a fixed shape, with one column per lane, so that CUDA can replay them as a graph.

A GPU computes one column per lane faster than the host can launch kernels. So lengths, prefix indices and masks
are tensors on the device, and a step is a function from buffers to buffers. CUDA records it once and replays it.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.decoding import check_step
from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.device import torch_memory_errors

# (key, function): runs a function that only uses tensors at fixed addresses; the key identifies the function
StepRunner = Callable[[Hashable, Callable[[], None]], None]


def run_eagerly(key: Hashable, function: Callable[[], None]) -> None:
    function()


class CudaGraphRunner:
    """A ``StepRunner`` on CUDA. The first call with a key runs the function, and later calls replay its CUDA graph.

    The first call is a regular step. It is also the warm-up on a side stream that recording requires
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs). All graphs share one memory pool for their
    intermediate results, which are not needed after a step.

    Args:
        stream: The side stream. All decoders should use the same one, because cuBLAS has a workspace per stream.
    """

    def __init__(self, stream: torch.cuda.Stream):
        self.device, self.stream = stream.device, stream
        self.pool = torch.cuda.graph_pool_handle()
        self.warm: set[Hashable] = set()
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def __call__(self, key: Hashable, function: Callable[[], None]) -> None:
        if key not in self.warm:
            current = torch.cuda.current_stream(self.device)
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                function()
            current.wait_stream(self.stream)
            self.warm.add(key)
            return
        if key not in self.graphs:
            self.graphs[key] = self._record(function)
        self.graphs[key].replay()

    def _record(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self.device),
            torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"),
        ):  # other threads may use the GPU at the same time
            function()
        return graph


class HostDeviceTensor:
    """A tensor on the device, and one on the host that is pinned, so that copies are asynchronous.

    On the CPU both are the same tensor. Do not write ``host`` after ``send``, and do not read it after ``fetch``,
    before the stream is synchronized.
    """

    def __init__(self, device: torch.device, *shape: int, dtype: torch.dtype = torch.float32):
        self.device = torch.zeros(shape, dtype=dtype, device=device)
        self.host = self.device
        if device.type != "cpu":
            self.host = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")

    def send(self) -> None:
        self.device.copy_(self.host, non_blocking=True)

    def fetch(self) -> None:
        self.host.copy_(self.device, non_blocking=True)


SMALLEST_BUCKET = 64  # own positions; each next bucket is twice as long, and the last one is the capacity


class StaticDecoder(TorchDecoder):
    """A ``TorchDecoder`` whose steps of one column have a fixed shape. Other calls run as in ``TorchDecoder``.

    Every step computes all lanes. A lane that the caller did not request writes to an extra position at the end, which
    is never read, and its results are discarded. A step reads as many positions of each lane as its bucket has. The
    bucket is the smallest one that fits the longest requested lane.

    Args:
        network, lanes, capacity, device, dtype, prefixes, max_prefix_length: See ``TorchDecoder``.
        run: Runs the steps of this decoder, and of no other.
        smallest: Positions of the first bucket.
    """

    def __init__(
        self,
        network: Any,
        lanes: int,
        capacity: int,
        device: torch.device,
        dtype: torch.dtype,
        prefixes: int = 1,
        max_prefix_length: int | None = None,
        run: StepRunner = run_eagerly,
        smallest: int = SMALLEST_BUCKET,
    ):
        super().__init__(network, lanes, capacity + 1, device, dtype, prefixes, max_prefix_length)
        self.capacity, self.run, self.smallest = capacity, run, smallest
        self.columns = HostDeviceTensor(device, lanes, 1, self.shape.width)
        self.indices = HostDeviceTensor(device, 2, lanes, dtype=torch.int64)  # lengths of the lanes, prefix indices
        self.hidden = HostDeviceTensor(device, lanes, 1, self.shape.width)
        self.logits = HostDeviceTensor(device, lanes, self.shape.vocabulary)
        self.prefix_length = torch.zeros(prefixes, dtype=torch.int64, device=device)
        self.rows = torch.arange(lanes, device=device)

    def record(self, heads: Sequence[tuple[int, int]]) -> bool:
        return False

    @torch.inference_mode()
    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        predicted = super().prefill(prefix, index)
        self.prefix_length[index] = len(prefix)
        return predicted

    @torch.inference_mode()
    def step(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0, prefix_indices: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if columns.shape[1] > 1:
            return super().step(columns, lengths, first_lane, prefix_indices)
        with torch_memory_errors():
            requested = self._launch(columns, lengths, first_lane, prefix_indices)
            for buffer in (self.hidden, self.logits):
                buffer.fetch()
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
            return self.hidden.host.numpy()[requested].copy(), self.logits.host.numpy()[requested].copy()

    def _launch(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int, prefix_indices: np.ndarray | None
    ) -> slice:
        """Start a step of one column per lane, and return the lanes that the caller requested."""
        end = check_step(self, columns, lengths, first_lane)
        bucket = min(self.capacity, max(self.smallest, 1 << (end - 1).bit_length()))
        requested = slice(first_lane, first_lane + len(columns))
        own_lengths, indices = self.indices.host.numpy()
        own_lengths[:], indices[:] = self.capacity, 0
        own_lengths[requested], indices[requested] = lengths, 0 if prefix_indices is None else prefix_indices
        self.columns.host.numpy()[requested] = columns
        self.columns.send()
        self.indices.send()
        self.run((self.prefix_capacity, bucket), partial(self._advance, bucket))
        return requested

    def _advance(self, bucket: int) -> None:
        """Compute a step from buffers to buffers. Its kernels and their addresses depend only on the bucket.

        If a longer prefix reallocates the prefixes, ``prefix_capacity`` in the key ensures that no older graph is
        replayed.
        """
        lengths, prefix_indices = self.indices.device
        static = StaticStep(lengths, prefix_indices, self.rows, bucket, self.prefix_length, self.prefix_capacity)
        attend = [partial(self._attend_static, layer, static) for layer in range(self.shape.layers)]
        hidden = self._run_network(self.columns.device, attend, partial(self._attend_static_memory, static))
        self.hidden.device.copy_(hidden)
        self.logits.device.copy_(self.network.logits(hidden[:, -1]))

    def _attend_static(self, layer: int, static: "StaticStep", q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k and v (lanes, heads, 1, w) at the lanes' positions, then attend to prefixes and lanes."""
        keys, values = (static.write(cache[layer], new) for cache, new in ((self.keys, k), (self.values, v)))
        q = q * q.shape[-1] ** -0.5
        prefix_scores = static.times_prefix(q, self.prefix_keys[layer].transpose(2, 3))  # (lanes, heads, 1, prefix)
        own_scores = q @ keys.transpose(2, 3)  # (lanes, heads, 1, bucket)
        scores = torch.cat((prefix_scores, own_scores), dim=-1) + static.mask
        weights = F.softmax(scores.float(), dim=-1).to(q.dtype)
        prefix_weights, own_weights = weights.split((prefix_scores.shape[-1], own_scores.shape[-1]), dim=-1)
        return own_weights @ values + static.times_prefix(prefix_weights, self.prefix_values[layer])

    def _attend_static_memory(self, static: "StaticStep", layer: int, q: Tensor) -> Tensor:
        """Let q (lanes, heads, 1, w) attend to the memory of each lane's prefix."""
        scores = static.times_prefix(q * q.shape[-1] ** -0.5, self.memory_keys[layer].transpose(2, 3))
        return static.times_prefix(F.softmax(scores.float(), dim=-1).to(q.dtype), self.memory_values[layer])


@dataclass
class StaticStep:
    """The positions that each lane of a static step reads and writes.

    Args:
        lengths: Number of own positions of each lane so far, (lanes,). The new column follows them.
        prefix_indices: Index of each lane's prefix, (lanes,).
        rows: 0, 1, 2, … (lanes,).
        bucket: Number of own positions to read.
        prefix_capacity: Number of positions of a prefix to read.
        prefix_length: Number of positions of each prefix, (prefixes,).

    Attributes:
        mask: Mask (lanes, 1, 1, prefix_capacity + bucket) float32 to add to scores: 0, or −∞ where a lane must not
            attend.
    """

    lengths: Tensor
    prefix_indices: Tensor
    rows: Tensor
    bucket: int
    prefix_length: Tensor
    prefix_capacity: int

    def __post_init__(self) -> None:
        device = self.lengths.device
        prefix_lengths = self.prefix_length[self.prefix_indices]
        masked = torch.cat(
            (
                torch.arange(self.prefix_capacity, device=device) >= prefix_lengths[:, None],
                torch.arange(self.bucket, device=device) > self.lengths[:, None],
            ),
            dim=1,
        )
        self.mask = torch.zeros(masked.shape, device=device).masked_fill(masked, float("-inf"))[:, None, None]

    def write(self, cache: Tensor, new: Tensor) -> Tensor:
        """Write new (lanes, heads, 1, w) to a cache (lanes, heads, capacity + 1, w). Returns the positions to read."""
        cache[self.rows, :, self.lengths] = new[:, :, 0]
        return cache[:, :, : self.bucket]

    def times_prefix(self, x: Tensor, prefixes: Tensor) -> Tensor:
        """Multiply x (lanes, heads, 1, n) by each lane's matrix of prefixes (prefixes, heads, n, m).

        It multiplies every lane with all prefixes, and then selects the product with the lane's prefix. So it reads
        each prefix once, where fused attention would need a copy per lane.

        Returns:
            Products (lanes, heads, 1, m).
        """
        product = x.transpose(0, 2) @ prefixes  # (prefixes, heads, lanes, m)
        if len(prefixes) == 1:
            return product.transpose(0, 2)
        return product[self.prefix_indices, :, self.rows][:, :, None]
