"""Run decoder steps that have a fixed shape, so that CUDA can record a step as a graph and replay it.

A GPU computes one new column (input position) per lane faster than the host can launch the necessary kernels. CUDA
therefore records a step only once. For this, lengths, prefix indices and masks are tensors on the GPU, and the step
reads and writes tensors at fixed addresses.
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

# runs a function that uses only tensors at fixed addresses; the first argument is a key that identifies the function
StepRunner = Callable[[Hashable, Callable[[], None]], None]


def run_eagerly(key: Hashable, function: Callable[[], None]) -> None:
    function()


class CudaGraphRunner:
    """A ``StepRunner`` on CUDA. The first call with a key runs the function, and later calls replay its CUDA graph.

    The first call runs on a side stream, because it is also the warm-up that recording needs
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs). All graphs share one memory pool for their
    intermediate results, because nobody needs these after a step.

    Args:
        stream: Side stream. All decoders should use the same stream, because cuBLAS has a workspace for each stream.
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
        ):  # lets other threads use the GPU during the recording
            function()
        return graph


class HostDeviceTensor:
    """A tensor on the device and a pinned tensor on the host, with asynchronous copies between them.

    If the device is the CPU, both are the same tensor. Until the stream is synchronized, do not write to ``host`` after
    ``send``, and do not read ``host`` after ``fetch``.
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


SMALLEST_BUCKET = 64  # positions in the smallest bucket; the next bucket has 128, and so on


class StaticDecoder(TorchDecoder):
    """A ``TorchDecoder`` in which a step with one new column per lane has a fixed shape. All other calls are inherited.

    Every such step computes all lanes. A lane that the caller did not request writes to an extra position at the end of
    its cache, which no step reads. The step drops the results of such a lane. The step reads the same number of
    positions from every lane. This number is 64, 128, 256 or so on (a *bucket*), and is the smallest that holds the
    longest requested lane.

    Args:
        network, lanes, capacity, device, dtype, prefixes, max_prefix_length: See ``TorchDecoder``.
        run: ``StepRunner`` that runs the steps. Every decoder needs a separate runner.
        smallest: Number of positions in the smallest bucket.
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
        self.indices = HostDeviceTensor(device, 2, lanes, dtype=torch.int64)  # per lane: own positions, prefix index
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
        """Start a step with one new column per lane (sequence), and return the requested lanes as a slice."""
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
        """Compute a step on tensors at fixed addresses. The kernels and the addresses depend only on ``bucket``.

        If a longer prefix makes the decoder allocate a larger cache for prefixes, addresses change. The key of the
        runner contains ``prefix_capacity``, so the runner does not replay an older graph in this case.
        """
        lengths, prefix_indices = self.indices.device
        static = StaticStep(lengths, prefix_indices, self.rows, bucket, self.prefix_length, self.prefix_capacity)
        attend = [partial(self._attend_static, layer, static) for layer in range(self.shape.layers)]
        hidden = self._run_network(self.columns.device, attend, partial(self._attend_static_memory, static))
        self.hidden.device.copy_(hidden)
        self.logits.device.copy_(self.network.logits(hidden[:, -1]))

    def _attend_static(self, layer: int, static: "StaticStep", q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k and v (lanes, heads, 1, w) to the caches. Attend from q to each lane (sequence) and to its prefix."""
        keys, values = (static.write(cache[layer], new) for cache, new in ((self.keys, k), (self.values, v)))
        q = q * q.shape[-1] ** -0.5
        prefix_scores = static.times_prefix(q, self.prefix_keys[layer].transpose(2, 3))  # (lanes, heads, 1, prefix)
        own_scores = q @ keys.transpose(2, 3)  # (lanes, heads, 1, bucket)
        scores = torch.cat((prefix_scores, own_scores), dim=-1) + static.mask
        weights = F.softmax(scores.float(), dim=-1).to(q.dtype)
        prefix_weights, own_weights = weights.split((prefix_scores.shape[-1], own_scores.shape[-1]), dim=-1)
        return own_weights @ values + static.times_prefix(prefix_weights, self.prefix_values[layer])

    def _attend_static_memory(self, static: "StaticStep", layer: int, q: Tensor) -> Tensor:
        """Compute the attention of queries q (lanes, heads, 1, w).

        Each lane (sequence) attends to the memory (such as encoded audio) of its prefix.
        """
        scores = static.times_prefix(q * q.shape[-1] ** -0.5, self.memory_keys[layer].transpose(2, 3))
        return static.times_prefix(F.softmax(scores.float(), dim=-1).to(q.dtype), self.memory_values[layer])


@dataclass
class StaticStep:
    """The positions that each lane reads and writes in a step of fixed shape.

    Args:
        lengths: Number of positions after its prefix that each lane already has, (lanes,). The new column gets the next
            position.
        prefix_indices: Index of each lane's prefix, (lanes,).
        rows: The numbers 0, 1, 2 and so on, (lanes,).
        bucket: Number of positions after the prefix to read from each lane.
        prefix_capacity: Number of positions to read from each prefix.
        prefix_length: Number of positions in each prefix, (prefixes,).

    Attributes:
        mask: Mask to add to attention scores, (lanes, 1, 1, prefix_capacity + bucket) float32. It is −∞ for positions
            that a lane must not attend to, and 0 for all other positions.
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
        """Write new keys or values (lanes, heads, 1, w) to a cache (lanes, heads, capacity + 1, w).

        Returns:
            The positions to read from the cache, (lanes, heads, bucket, w).
        """
        cache[self.rows, :, self.lengths] = new[:, :, 0]
        return cache[:, :, : self.bucket]

    def times_prefix(self, x: Tensor, prefixes: Tensor) -> Tensor:
        """Multiply the vector of each lane (sequence) by the matrix of the lane's prefix.

        The method multiplies every lane by the matrices of all prefixes, and then selects the product with the lane's
        prefix. The multiplication reads every prefix once, whereas fused attention would need a copy of a prefix for
        each of its lanes.

        Args:
            x: Vectors (lanes, heads, 1, n).
            prefixes: Matrices (prefixes, heads, n, m).

        Returns:
            Products (lanes, heads, 1, m).
        """
        product = x.transpose(0, 2) @ prefixes  # (prefixes, heads, lanes, m)
        if len(prefixes) == 1:
            return product.transpose(0, 2)
        return product[self.prefix_indices, :, self.rows][:, :, None]
