"""What a machine can do at most, measured, and what a call asks of it, counted: the two sides of a share."""

import time
from collections.abc import Callable, Sequence
from math import prod
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ane.backends.torch.backend import DTYPES
from ane.models.tortoise.networks import NETWORKS
from ane.bundles import Model
from ane.bundles.weights import layout, skeleton
from ane.models.tortoise.networks.frames import product

SIDES = {"cpu": 1024, "cuda": 8192}         # of the square matrices that are multiplied


def timed(call: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


class Bandwidth:
    """Reads a buffer far larger than any cache, on a device."""

    def __init__(self, device: str):
        self.size = 2**27           # float32 numbers: 0.54 GB
        if device == "cuda":        # which reads that while it is told to: 4.3 GB, or a quarter of what is free
            self.size = min(2**30, torch.cuda.mem_get_info()[0] // 16)
        self._buffer = torch.ones(self.size, device=device)

    def reading(self) -> float:
        """GB/s of the better of two passes."""
        return self.size * 4e-6 / min(timed(lambda: self._buffer.sum().item()) for _ in range(2))


class MatrixPeak:
    """Products of two square matrices on a device, in a precision of ``DTYPES``.

    In float32 they are float32, on CUDA too, where an engine may take TF32 instead: a share above 1 tells.
    """

    def __init__(self, device: str, precision: str):
        self.device, self.side = device, SIDES[device]
        self._a, self._b = (torch.randn(self.side, self.side, device=device).to(DTYPES[precision]) for _ in range(2))

    @torch.inference_mode()
    def reading(self) -> float:
        """10^9 operations in a second, of the best of two passes each of torch's product and of the networks' own."""
        ways = [lambda: self._a @ self._b, lambda: product(self._a, self._b)] * 2
        return 2e-6 * self.side**3 / min(timed(lambda way=way: self._finished(way)) for way in ways)

    def _finished(self, call: Callable[[], Tensor]) -> None:
        call()
        if self.device == "cuda":
            torch.cuda.synchronize()


class Limits:
    """What devices can do, a reading a round.

    Attributes:
        bandwidth: GB/s by device. peak: GFLOP/s by device and precision.
    """

    def __init__(self, devices: Sequence[str], precisions: Sequence[str]):
        """Of ``precisions`` those that torch multiplies in, and float32 always."""
        self._reads = {device: Bandwidth(device) for device in devices}
        multiplied = dict.fromkeys(["fp32", *(name for name in precisions if name in DTYPES)])
        self._products = {(device, name): MatrixPeak(device, name) for device in devices for name in multiplied}
        self.bandwidth: dict[str, list[float]] = {device: [] for device in self._reads}
        self.peak: dict[tuple[str, str], list[float]] = {key: [] for key in self._products}

    def read(self, keep: bool) -> None:
        """Take a reading of each, and lose it unless it is to be kept."""
        for source, readings in ((self._reads, self.bandwidth), (self._products, self.peak)):
            for key, limit in source.items():
                reading = limit.reading()
                if keep:
                    readings[key].append(reading)

    def share_of_bandwidth(self, device: str, gigabytes: float, milliseconds: float) -> float:
        return 1000 * gigabytes / milliseconds / median(self.bandwidth[device])

    def share_of_peak(self, device: str, precision: str, operations: int, milliseconds: float) -> float | None:
        """Of the products in that precision, or in float32 where those are faster; None where there are none."""
        if (device, precision) not in self.peak:
            return None
        best = max(median(self.peak[device, name]) for name in ("fp32", precision))
        return 1e-6 * operations / milliseconds / best


class Work:
    """Operations of calls on a model's networks, counted by torch as each multiplication and addition of products.

    The networks run without values, on torch's device "meta".
    """

    def __init__(self, model: Model):
        self.model = model
        self._networks: dict[str, torch.nn.Module] = {}

    def prefill(self, positions: int) -> int:
        width = self.model.config("autoregressive").model_dim
        return self._of("autoregressive", lambda network: network.logits(network(empty(1, positions, width))[:, -1]))

    def step(self, lanes: int, positions: float) -> int:
        """A column for each lane, which sees so many positions."""
        config = self.model.config("autoregressive")
        seen = empty(lanes, config.heads, round(positions), config.model_dim // config.heads)
        attend = [lambda q, k, v: F.scaled_dot_product_attention(q, seen, seen)] * config.layers
        columns = empty(lanes, 1, config.model_dim)
        return self._of("autoregressive", lambda network: network.logits(network(columns, attend)[:, -1]))

    def denoise(self, batch: int, frames: int) -> int:
        config = self.model.config("diffusion")
        timesteps = torch.empty(batch, dtype=torch.int64, device="meta")
        return self._of("diffusion", lambda network: network(
            empty(batch, config.in_channels, frames), timesteps, empty(batch, config.model_channels, frames)))

    def vocode(self, network: str, *shapes: tuple[int, ...]) -> int:
        return self._of(network, lambda network: network(*(empty(*shape) for shape in shapes)))

    @torch.inference_mode()
    def _of(self, name: str, call: Callable[[torch.nn.Module], Tensor]) -> int:
        if name not in self._networks:
            self._networks[name] = skeleton(NETWORKS[name], self.model.config(name)).eval()
        with FlopCounterMode(display=False) as counter:
            call(self._networks[name])
        return counter.get_total_flops()


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def decoder_weights(model: Model) -> int:
    """Numbers that a step reads whatever its lanes: all weights but the look-up tables."""
    shapes = layout(NETWORKS["autoregressive"], model.config("autoregressive")).shapes
    return sum(prod(shape) for key, shape in shapes.items() if "embedding" not in key)


def cached(model: Model, positions: float) -> float:
    """Numbers of the keys and values of so many positions."""
    config = model.config("autoregressive")
    return 2 * config.layers * config.model_dim * positions
