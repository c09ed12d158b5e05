"""The autoregressive network with a static kv-cache: prefixes that lanes share, and each lane's own positions."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.torch.memory import torch_memory_errors
from ane.models.tortoise.networks.autoregressive import UnifiedVoice, UnifiedVoiceConfig, causal


class TorchDecoder:
    """``ane.backends.base.Decoder`` on PyTorch.

    A prefix is stored once, and all lanes of its place attend to it in one product. Buffers never move: prefixes
    (layers, places, heads, longest, head_width), own keys and values (layers, lanes, heads, capacity, head_width).
    """

    def __init__(self, network: UnifiedVoice, lanes: int, capacity: int, device: torch.device, dtype: torch.dtype,
                 prefixes: int = 1, longest: int | None = None):
        config = network.config
        self.network, self.lanes, self.capacity, self.prefixes = network, lanes, capacity, prefixes
        self.device, self.dtype, self.longest = device, dtype, longest
        self.keys, self.values = (self._room(config, lanes, capacity) for _ in range(2))
        self.prefix_keys = self.prefix_values = None
        self.room = longest or 0                    # positions of a place
        self.stored = [0] * prefixes                # of which the prefix there has

    @torch.inference_mode()
    def prefill(self, prefix: np.ndarray, place: int = 0) -> tuple[np.ndarray, np.ndarray]:
        config = self.network.config
        with torch_memory_errors():
            grows = self.longest is None and self.prefixes == 1 and len(prefix) > self.room
            if place >= self.prefixes or (len(prefix) > self.room and not grows):
                raise ValueError(f"decoder of {self.prefixes} prefixes of {self.room} positions asked for prefix "
                                 f"{place}, {len(prefix)} positions")
            if grows or self.prefix_keys is None:
                self.room = max(self.room, len(prefix))
                self.prefix_keys, self.prefix_values = (self._room(config, self.prefixes, self.room) for _ in range(2))
            store = [partial(self._store, layer, place) for layer in range(config.layers)]
            hidden = self.network(self._send(prefix[None]), store)[:, -1]
            self.stored[place] = len(prefix)
            return hidden[0].cpu().numpy(), self.network.logits(hidden)[0].cpu().numpy()

    @torch.inference_mode()
    def step(self, columns: np.ndarray, length: np.ndarray, first: int = 0,
             prefix: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        lanes, columns_each, _ = columns.shape
        self._end(columns, length, first)
        with torch_memory_errors():
            view = View(slice(first, first + lanes), length, columns_each, self.device)
            seen = Prefixes(np.zeros(lanes, dtype=np.int64) if prefix is None else prefix, self.stored, self.device)
            attend = [partial(self._attend, layer, view, seen) for layer in range(self.network.config.layers)]
            hidden = self.network(self._send(columns), attend)
            return hidden.cpu().numpy(), self.network.logits(hidden[:, -1]).cpu().numpy()

    def _end(self, columns: np.ndarray, length: np.ndarray, first: int) -> int:
        """The position behind the last that a step writes. ValueError for more lanes or positions than agreed."""
        lanes, columns_each, _ = columns.shape
        end = int(length.max()) + columns_each
        if end > self.capacity or first + lanes > self.lanes:
            raise ValueError(f"decoder of {self.lanes} lanes × {self.capacity} positions asked for lane "
                             f"{first + lanes - 1}, position {end - 1}")
        return end

    def _room(self, config: UnifiedVoiceConfig, rows: int, positions: int) -> Tensor:
        shape = (config.layers, rows, config.heads, positions, config.model_dim // config.heads)
        return torch.zeros(shape, device=self.device, dtype=self.dtype)

    def _send(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(self.device)

    def _store(self, layer: int, place: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for cache, new in ((self.prefix_keys, k), (self.prefix_values, v)):
            cache[layer, place, :, :new.shape[2]] = new[0]
        return causal(q, k, v)

    def _attend(self, layer: int, view: "View", seen: "Prefixes", q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k, v (n, heads, T, w) at the lanes' positions, then attend to their prefixes and their own."""
        keys, values = (view.write(cache[layer, view.lanes], new)
                        for cache, new in ((self.keys, k), (self.values, v)))      # (n, heads, end, w)
        prefix_keys, prefix_values = (seen.read(cache[layer]) for cache in (self.prefix_keys, self.prefix_values))
        q = q * q.shape[-1] ** -0.5
        of_prefix = seen.apart(seen.together(q) @ prefix_keys.transpose(2, 3))       # (n, heads, T, P)
        if seen.mask is not None:
            of_prefix = of_prefix + seen.mask
        of_own = q @ keys.transpose(2, 3)
        if view.mask is not None:
            of_own = of_own + view.mask
        weight = F.softmax(torch.cat((of_prefix, of_own), dim=-1).float(), dim=-1).to(q.dtype)
        on_prefix, on_own = weight.split((of_prefix.shape[-1], of_own.shape[-1]), dim=-1)
        return on_own @ values + seen.apart(seen.together(on_prefix) @ prefix_values)


class Prefixes:
    """Which prefix each lane of a call sees: all lanes of a place are rows of one product.

    Args:
        place: (n,) of each lane. stored: positions of the prefix at each place.
    """

    def __init__(self, place: np.ndarray, stored: list[int], device: torch.device):
        self.lanes, self.low, self.high = len(place), int(place.min()), int(place.max()) + 1
        self.longest = max(stored[self.low:self.high])
        self.order = self.back = self.mask = None
        if self.high - self.low > 1:
            place = place - self.low
            lanes = [np.flatnonzero(place == there) for there in range(self.high - self.low)]
            rows = max(map(len, lanes))
            # places with fewer lanes are filled up with lane 0, whose product there nobody reads
            order = np.stack([np.pad(some, (0, rows - len(some))) for some in lanes])            # (places, rows)
            back = np.empty(len(place), dtype=np.int64)
            for there, some in enumerate(lanes):
                back[some] = there * rows + np.arange(len(some))
            length = np.array(stored[self.low:self.high])[place]                                # (n,)
            unseen = torch.from_numpy(np.arange(self.longest) >= length[:, None]).to(device)
            self.order, self.back = (torch.from_numpy(index).to(device) for index in (order, back))
            self.mask = torch.zeros(unseen.shape, device=device).masked_fill(unseen, float("-inf"))[:, None, None]

    def read(self, cache: Tensor) -> Tensor:
        """Of a layer's cache (places, heads, longest, w) what the call reads."""
        return cache[self.low:self.high, :, :self.longest]

    def together(self, x: Tensor) -> Tensor:
        """(n, heads, T, w) → (places, heads, rows, w): what sees the same prefix, side by side."""
        n, heads, T, width = x.shape
        if self.order is None:
            return x.transpose(0, 1).reshape(1, heads, n * T, width)
        places, rows = self.order.shape
        x = x[self.order.flatten()].view(places, rows, heads, T, width)
        return x.transpose(1, 2).reshape(places, heads, rows * T, width)

    def apart(self, x: Tensor) -> Tensor:
        """(places, heads, rows, w) → (n, heads, T, w): each lane's own again."""
        places, heads, _, width = x.shape
        if self.order is None:
            return x.view(heads, self.lanes, -1, width).transpose(0, 1)
        rows = self.order.shape[1]
        x = x.view(places, heads, rows, -1, width).transpose(1, 2)
        return x.reshape(places * rows, heads, -1, width)[self.back]


class View:
    """Which lanes a call touches, where their new columns go, and what each column may see."""

    def __init__(self, lanes: slice, length: np.ndarray, columns: int, device: torch.device):
        self.lanes = lanes
        self.start, self.end = int(length.min()), int(length.max()) + columns
        even = self.start + columns == self.end
        position = torch.from_numpy(length).to(device)[:, None] + torch.arange(columns, device=device)   # (n, T)
        self.position = None if even else position
        self.mask = None
        if not even or columns > 1:
            unseen = torch.arange(self.end, device=device) > position[..., None]                         # (n, T, end)
            self.mask = torch.zeros(unseen.shape, device=device).masked_fill(unseen, float("-inf"))[:, None]

    def write(self, cache: Tensor, new: Tensor) -> Tensor:
        """Put new (n, heads, T, w) into cache (n, heads, capacity, w), in place; give what the call may read of it."""
        if self.position is None:
            cache[:, :, self.start:self.end] = new
        else:
            rows = torch.arange(len(cache), device=cache.device)[:, None]
            cache[rows, :, self.position] = new.transpose(1, 2)
        return cache[:, :, :self.end]
