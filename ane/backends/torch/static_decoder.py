"""The decoder's step in a static shape: every lane, one column each, nothing of it known to the host but a bucket.

At one column a lane a GPU computes a step sooner than the host can launch its kernels. So positions, prefixes and masks
are tensors on the device, and the step is a function from buffers to buffers, which CUDA records once as a graph and
then plays as a whole.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.memory import torch_memory_errors
from ane.models.tortoise.networks.autoregressive import UnifiedVoice

SMALLEST = 64       # own positions of the first bucket; each next one has twice as many, the last the capacity

# Runs a function that takes nothing and gives nothing: all it reads and writes are tensors that stay where they are.
# Of one key it is always the same function.
Run = Callable[[Hashable, Callable[[], None]], None]


def run_eagerly(key: Hashable, function: Callable[[], None]) -> None:
    function()


class CudaGraphRunner:
    """``Run`` on CUDA: the first call of a key as it is, from the second on as a graph recorded once.

    The first call is a step like any other, and at the same time the warm-up on a side stream that recording asks for
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs). The graphs share memory for what they compute in
    between: nothing of it outlives a step, and they run one at a time.

    Args:
        stream: the side stream. One should serve all decoders in turn: cuBLAS keeps a workspace for every stream.
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
            self.graphs[key] = self._recorded(function)
        self.graphs[key].replay()

    def _recorded(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(
                graph, pool=self.pool, stream=self.stream,
                capture_error_mode="thread_local"):         # whatever other threads do on the GPU meanwhile is theirs
            function()
        return graph


class Mirror:
    """A tensor on the device and its twin on the host, pinned so that copies wait for nothing; on the CPU they are one.

    Who sends must not write ``host`` again, and who fetches not read it, before the stream has been waited for.
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


class StaticDecoder(TorchDecoder):
    """``TorchDecoder`` whose steps of one column are static; those of several columns, and prefills, are not.

    All lanes take part in every step. A lane that was not asked for writes to a spare position behind the last, which
    nobody reads, and what it is given is dropped. How many own positions a step reads is its bucket, the smallest that
    holds the longest lane asked for.

    Args:
        run: how steps run, of this decoder alone.
        smallest: own positions of the first bucket.
    """

    def __init__(self, network: UnifiedVoice, lanes: int, capacity: int, device: torch.device, dtype: torch.dtype,
                 prefixes: int = 1, longest: int | None = None, run: Run = run_eagerly, smallest: int = SMALLEST):
        super().__init__(network, lanes, capacity + 1, device, dtype, prefixes, longest)
        self.capacity, self.run, self.smallest = capacity, run, smallest
        config = network.config
        self.columns = Mirror(device, lanes, 1, config.model_dim)
        self.marks = Mirror(device, 2, lanes, dtype=torch.int64)        # own positions held, place of the prefix seen
        self.hidden = Mirror(device, lanes, 1, config.model_dim)
        self.logits = Mirror(device, lanes, config.number_mel_codes)
        self.prefix_length = torch.zeros(prefixes, dtype=torch.int64, device=device)
        self.rows = torch.arange(lanes, device=device)

    @torch.inference_mode()
    def prefill(self, prefix: np.ndarray, place: int = 0) -> tuple[np.ndarray, np.ndarray]:
        predicted = super().prefill(prefix, place)
        self.prefix_length[place] = len(prefix)
        return predicted

    @torch.inference_mode()
    def step(self, columns: np.ndarray, length: np.ndarray, first: int = 0,
             prefix: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        lanes, columns_each, _ = columns.shape
        if columns_each > 1:
            return super().step(columns, length, first, prefix)
        end = self._end(columns, length, first)
        bucket = min(self.capacity, max(self.smallest, 1 << (end - 1).bit_length()))
        asked = slice(first, first + lanes)
        with torch_memory_errors():
            held, place = self.marks.host.numpy()
            held[:], place[:] = self.capacity, 0
            held[asked], place[asked] = length, 0 if prefix is None else prefix
            self.columns.host.numpy()[asked] = columns
            self.columns.send()
            self.marks.send()
            self.run((self.room, bucket), partial(self._advance, bucket))
            self.hidden.fetch()
            self.logits.fetch()
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
            return self.hidden.host.numpy()[asked].copy(), self.logits.host.numpy()[asked].copy()

    def _advance(self, bucket: int) -> None:
        """The step, from buffers to buffers: which kernels run, and where they read and write, are the bucket's alone.

        An outgrown ``room`` for prefixes leaves graphs behind that are never played again, hence its part in the key.
        """
        held, place = self.marks.device
        seen = Seen(held, place, self.rows, bucket, self.prefix_length, self.room)
        attend = [partial(self._attend_to, layer, seen) for layer in range(self.network.config.layers)]
        hidden = self.network(self.columns.device, attend)
        self.hidden.device.copy_(hidden)
        self.logits.device.copy_(self.network.logits(hidden[:, -1]))

    def _attend_to(self, layer: int, seen: "Seen", q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k, v (lanes, heads, 1, w) at the lanes' positions, then attend to their prefixes and their own."""
        keys, values = (seen.write(cache[layer], new) for cache, new in ((self.keys, k), (self.values, v)))
        q = q * q.shape[-1] ** -0.5
        of_prefix = seen.through(q, self.prefix_keys[layer].transpose(2, 3))         # (lanes, heads, 1, room)
        of_own = q @ keys.transpose(2, 3)                                           # (lanes, heads, 1, bucket)
        score = torch.cat((of_prefix, of_own), dim=-1) + seen.mask
        weight = F.softmax(score.float(), dim=-1).to(q.dtype)
        on_prefix, on_own = weight.split((of_prefix.shape[-1], of_own.shape[-1]), dim=-1)
        return on_own @ values + seen.through(on_prefix, self.prefix_values[layer])


@dataclass
class Seen:
    """What each lane of a static step sees, and where it writes.

    Args:
        held: (lanes,) own positions, which is where the new column goes. place: (lanes,) of the prefix.
        rows: (lanes,) 0, 1, 2, …
        bucket: own positions that are read. room: positions that are read of a prefix.
        prefix_length: (places,) positions of each prefix.

    Attributes:
        mask: (lanes, 1, 1, room + bucket) float32 to be added to the scores: 0, or −∞ where a lane must not look.
    """

    held: Tensor
    place: Tensor
    rows: Tensor
    bucket: int
    prefix_length: Tensor
    room: int

    def __post_init__(self):
        device = self.held.device
        unseen = torch.cat((torch.arange(self.room, device=device) >= self.prefix_length[self.place][:, None],
                            torch.arange(self.bucket, device=device) > self.held[:, None]), dim=1)
        self.mask = torch.zeros(unseen.shape, device=device).masked_fill(unseen, float("-inf"))[:, None, None]

    def write(self, cache: Tensor, new: Tensor) -> Tensor:
        """Put new (lanes, heads, 1, w) into cache (lanes, heads, capacity + 1, w); give what the step may read."""
        cache[self.rows, :, self.held] = new[:, :, 0]
        return cache[:, :, :self.bucket]

    def through(self, x: Tensor, prefixes: Tensor) -> Tensor:
        """x (lanes, heads, 1, n) times what prefixes (places, heads, n, m) has at each lane's place.

        All lanes go through all places, and each keeps the product with its own: a prefix is read once, however many
        lanes see it, where fused attention would want a copy of it for every lane.
        """
        product = x.transpose(0, 2) @ prefixes                      # (places, heads, lanes, m)
        if len(prefixes) == 1:
            return product.transpose(0, 2)
        return product[self.place, :, self.rows][:, :, None]
