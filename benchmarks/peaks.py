"""A machine's memory bandwidth and matrix throughput, measured, and the bytes and operations of a call, counted."""

from collections.abc import Callable, Sequence
from math import prod
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ane.backends.torch.backend import DTYPES
from ane.bench.measure import timed
from ane.bundles import Model
from ane.bundles.weights import layout, skeleton
from ane.models.tortoise.networks.frames import product

SIDES = {"cpu": 1024, "cuda": 8192}         # of the square matrices that are multiplied


class Bandwidth:
    """Reads a buffer far larger than any cache, on a device."""

    def __init__(self, device: str):
        self.size = 2**27           # float32 numbers: 0.54 GB
        if device == "cuda":        # a GPU reads that too fast to time: 4.3 GB, or a quarter of what is free
            self.size = min(2**30, torch.cuda.mem_get_info()[0] // 16)
        self._buffer = torch.ones(self.size, device=device)

    def reading(self) -> float:
        """GB/s of the better of two passes."""
        return self.size * 4e-9 / min(timed(lambda: self._buffer.sum().item())[1] for _ in range(2))


class MatrixProducts:
    """Products of two square matrices on a device, in a precision of ``DTYPES``.

    fp32 is computed in full float32 on CUDA too; a competitor that uses TF32 there can exceed a share of 1.
    """

    def __init__(self, device: str, precision: str):
        self.device, self.side = device, SIDES[device]
        self._a, self._b = (torch.randn(self.side, self.side, device=device).to(DTYPES[precision]) for _ in range(2))

    @torch.inference_mode()
    def reading(self) -> float:
        """GFLOP/s of the best of two passes each of torch's product and of ``networks.frames.product``."""
        products = [lambda: self._a @ self._b, lambda: product(self._a, self._b)] * 2
        return 2e-9 * self.side**3 / min(timed(lambda way=way: self._finished(way))[1] for way in products)

    def _finished(self, call: Callable[[], Tensor]) -> None:
        call()
        if self.device == "cuda":
            torch.cuda.synchronize()


class MachinePeaks:
    """Bandwidth and matrix throughput of the processors, measured in every round.

    Attributes:
        bandwidth: GB/s by processor. products: GFLOP/s by processor and precision.
    """

    def __init__(self, processors: Sequence[str], precisions: Sequence[str]):
        """Products are measured in fp32 and in those of ``precisions`` that torch multiplies in."""
        self._reads = {processor: Bandwidth(processor) for processor in processors}
        multiplied = dict.fromkeys(["fp32", *(name for name in precisions if name in DTYPES)])
        self._products = {(processor, name): MatrixProducts(processor, name)
                          for processor in processors for name in multiplied}
        self.bandwidth: dict[str, list[float]] = {processor: [] for processor in self._reads}
        self.products: dict[tuple[str, str], list[float]] = {key: [] for key in self._products}

    def read(self, counts: bool = True) -> None:
        """Take a reading of each; discard it unless ``counts``."""
        for source, readings in ((self._reads, self.bandwidth), (self._products, self.products)):
            for key, limit in source.items():
                reading = limit.reading()
                if counts:
                    readings[key].append(reading)

    def shares(self, processor: str, precision: str, operations: int | None, gigabytes: float | None,
               milliseconds: float) -> dict[str, float]:
        """The shares of bandwidth and throughput that a call reaches, as figures of its row; none where unknown."""
        found = {}
        if gigabytes:
            found["share_of_bandwidth"] = 1000 * gigabytes / milliseconds / median(self.bandwidth[processor])
        if operations and (processor, precision) in self.products:
            best = max(median(self.products[processor, name]) for name in ("fp32", precision))
            found["share_of_peak"] = 1e-6 * operations / milliseconds / best
        return found

    def document(self) -> dict[str, dict[str, float]]:
        return {"bandwidth_gb_s": {name: median(each) for name, each in self.bandwidth.items()},
                "peak_gflop_s": {" ".join(key): median(each) for key, each in self.products.items()}}

    def notes(self) -> list[str]:
        stated = self.document()
        return [f"{name}: memory is read at {value:.3g} GB/s" for name, value in stated["bandwidth_gb_s"].items()] + [
            f"{name}: products of matrices at {value:.0f} GFLOP/s" for name, value in stated["peak_gflop_s"].items()]


class Operations:
    """Floating-point operations of calls on a model's networks, counted by torch's FlopCounterMode.

    The networks run on torch's device "meta", without values.
    """

    def __init__(self, model: Model):
        self.model = model
        self._networks: dict[str, torch.nn.Module] = {}

    def prefill(self, positions: int) -> int:
        width = self.model.config("autoregressive").model_dim
        return self._of("autoregressive", lambda network: network.logits(network(empty(1, positions, width))[:, -1]))

    def step(self, lanes: int, positions: float) -> int:
        """One column for each lane, which attends to ``positions`` positions."""
        config = self.model.config("autoregressive")
        cached = empty(lanes, config.heads, round(positions), config.model_dim // config.heads)
        attend = [lambda q, k, v: F.scaled_dot_product_attention(q, cached, cached)] * config.layers
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
            self._networks[name] = skeleton(self.model.family.networks[name], self.model.config(name)).eval()
        with FlopCounterMode(display=False) as counter:
            call(self._networks[name])
        return counter.get_total_flops()


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def decoder_weights(model: Model) -> int:
    """Number of weights that a step reads, for any number of lanes: all but the look-up tables."""
    shapes = layout(model.family.networks["autoregressive"], model.config("autoregressive")).shapes
    return sum(prod(shape) for key, shape in shapes.items() if "embedding" not in key)


def cached_numbers(model: Model, positions: float) -> float:
    """Number of values in the keys and values of ``positions`` positions."""
    config = model.config("autoregressive")
    return 2 * config.layers * config.model_dim * positions
