"""The autoregressive network with a static kv-cache: one prefix shared by all lanes, and each lane's own positions."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.torch_memory import engine_errors
from ane.networks.autoregressive import UnifiedVoice, causal


class TorchDecoder:
    """``ane.stages.Decoder`` on PyTorch.

    The prefix is stored once, (heads, P, head_width) a layer, and all lanes attend to it in one product; own keys
    and values lie in buffers (layers, lanes, heads, capacity, head_width) that never move.
    """

    def __init__(self, network: UnifiedVoice, lanes: int, capacity: int, device: torch.device, dtype: torch.dtype):
        config = network.config
        self.network, self.lanes, self.capacity, self.device = network, lanes, capacity, device
        own = (config.layers, lanes, config.heads, capacity, config.model_dim // config.heads)
        self.keys = torch.zeros(own, device=device, dtype=dtype)
        self.values = torch.zeros(own, device=device, dtype=dtype)
        self.prefix: list[tuple[Tensor, Tensor]] = []

    @torch.inference_mode()
    def prefill(self, prefix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with engine_errors():
            self.prefix = []
            hidden = self.network(self._send(prefix[None]), [self._store] * self.network.config.layers)[:, -1]
            return hidden[0].cpu().numpy(), self.network.logits(hidden)[0].cpu().numpy()

    @torch.inference_mode()
    def step(self, columns: np.ndarray, length: np.ndarray, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        lanes, columns_each, _ = columns.shape
        end = int(length.max()) + columns_each
        if end > self.capacity or first + lanes > self.lanes:
            raise ValueError(f"decoder of {self.lanes} lanes × {self.capacity} positions asked for lane "
                             f"{first + lanes - 1}, position {end - 1}")
        with engine_errors():
            view = View(slice(first, first + lanes), length, columns_each, self.device)
            attend = [partial(self._attend, layer, view) for layer in range(self.network.config.layers)]
            hidden = self.network(self._send(columns), attend)
            return hidden.cpu().numpy(), self.network.logits(hidden[:, -1]).cpu().numpy()

    def _send(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(self.device)

    def _store(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.prefix.append((k[0].contiguous(), v[0].contiguous()))
        return causal(q, k, v)

    def _attend(self, layer: int, view: "View", q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k, v (n, heads, T, w) at the lanes' positions, then attend to the prefix and the lanes' own."""
        keys, values = (view.write(cache[layer, view.lanes], new)
                        for cache, new in ((self.keys, k), (self.values, v)))      # (n, heads, end, w)
        prefix_keys, prefix_values = self.prefix[layer]                             # (heads, P, w)
        n, heads, T, width = q.shape
        q = q * width ** -0.5
        shared = q.transpose(0, 1).reshape(heads, n * T, width)                     # all lanes as rows of one product
        of_prefix = (shared @ prefix_keys.transpose(1, 2)).view(heads, n, T, -1).transpose(0, 1)
        of_own = q @ keys.transpose(2, 3)
        if view.mask is not None:
            of_own = of_own + view.mask
        weight = F.softmax(torch.cat((of_prefix, of_own), dim=-1).float(), dim=-1).to(q.dtype)
        P = prefix_keys.shape[1]
        from_prefix = weight[..., :P].transpose(0, 1).reshape(heads, n * T, P) @ prefix_values
        return weight[..., P:] @ values + from_prefix.view(heads, n, T, width).transpose(0, 1)


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
