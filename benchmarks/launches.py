"""Counts what a decoder step and a guided call of the denoiser launch, at the official depth and a small width.

- On the CPU: torch's operations that compute or copy, without views and allocations. On CUDA each of them is one kernel
  or a few, so this is a stand-in for kernels; a recorded CUDA graph is one launch.
- With --device cuda: launches of kernels, of graphs and copies, as torch's profiler counts them.

*eager* is a call as it is without recording, *recorded* the third and later calls. The kernels of torch:triton are
counted on the CPU where Triton is installed; there they compute nothing.
"""

import argparse
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ane.backends.base import Draws
from ane.backends.torch.cuda_graphs import CudaGraphRunner, StepRunner, run_eagerly
from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.denoiser import FUSED_STEPS, CapturedDenoiser, TorchBatchedDenoiser
from ane.backends.torch.static_decoder import StaticDecoder
from ane.bench.records import BenchRow, Spread
from ane.bundles.weights import skeleton
from ane.models.tortoise.diffusion import Diffusion, Schedule, denoising_steps
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig
from benchmarks.harness import Benchmark, BenchmarkResult

WIDTH, HEADS, LANES, FRAMES = 64, 4, 16, 400       # numbers of operations do not depend on the width
MODEL_LAYERS = UnifiedVoiceConfig.layers
LAUNCHES = {"cudaLaunchKernel": "kernels", "cudaLaunchKernelExC": "kernels", "cuLaunchKernel": "kernels",
            "cuLaunchKernelEx": "kernels", "cudaGraphLaunch": "graphs", "cudaMemcpyAsync": "copies",
            "cudaMemsetAsync": "kernels"}
ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


class CountedOperations(TorchDispatchMode):
    """Counts operations that compute: not views of their inputs, and not allocations."""

    def __init__(self):
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        read = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs))
                if isinstance(leaf, torch.Tensor)}
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        computes = func._schema.is_mutable or any(leaf.untyped_storage().data_ptr() not in read for leaf in made)
        name = func._schema.name.partition("::")[2]
        if made and computes and name not in ALLOCATIONS:
            self.found["operations"] += 1
        return out


class CountingRunner:
    """A ``StepRunner`` on the CPU that counts a launched graph for each call from the second on.

    ``CudaGraphRunner`` launches one there. The second call also runs the function, as a capture does.
    """

    def __init__(self):
        self.calls: Counter[Any] = Counter()
        self.graphs = 0

    def __call__(self, key: Any, function: Callable[[], None]) -> None:
        self.calls[key] += 1
        if self.calls[key] < 3:
            function()
        self.graphs += self.calls[key] >= 2


class CountedKernel:
    """Counts launches of a Triton kernel instead of running it."""

    def __init__(self):
        self.launches = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._launch

    def _launch(self, *arguments: Any, **options: Any) -> None:
        self.launches += 1


@contextmanager
def counted_kernels() -> Iterator[CountedKernel]:
    """Replaces the kernels of ``triton_kernels`` by one that counts, where Triton is installed."""
    kernel = CountedKernel()
    if importlib.util.find_spec("triton") is None:
        yield kernel
        return
    with patch.multiple("ane.backends.torch.triton_kernels", linear_kernel=kernel, attention_kernel=kernel):
        yield kernel


def counted_on_cpu(call: Callable[[], Any], runner: CountingRunner | None, kernel: CountedKernel) -> Counter[str]:
    before = Counter({"graphs": runner.graphs if runner else 0, "kernels": kernel.launches})
    with CountedOperations() as mode:
        call()
    return mode.found + Counter({"graphs": runner.graphs if runner else 0, "kernels": kernel.launches}) - before


def counted_on_cuda(call: Callable[[], Any]) -> Counter[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU,
                                            torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found: Counter[str] = Counter()
    for event in profile.events():
        if event.name in LAUNCHES:
            found[LAUNCHES[event.name]] += 1
    return found


def random_network(name: str, config: Any, device: torch.device) -> torch.nn.Module:
    network = skeleton(NETWORKS[name], config).eval().requires_grad_(False)
    state = {key: torch.randn(tensor.shape) * 0.02 for key, tensor in network.state_dict().items()}
    network.load_state_dict(state, assign=True)
    return network.to(device)


def decoder_step(device: torch.device, run: StepRunner | None, fused: bool = False,
                 layers: int = MODEL_LAYERS) -> Callable[[], Any]:
    """A step of 16 lanes of one prefix; with ``run``, of a fixed shape, and with ``fused`` on Triton's kernels."""
    config = UnifiedVoiceConfig(layers=layers, model_dim=WIDTH, heads=HEADS)
    network = random_network("autoregressive", config, device)
    make: Any = TorchDecoder if run is None else StaticDecoder
    if fused:
        from ane.backends.torch.fused_decoder import FusedStaticDecoder

        make, run = FusedStaticDecoder, run or run_eagerly
    decoder = make(network, LANES, 64, device, torch.float32, **({} if run is None else {"run": run}))
    columns = np.zeros((LANES, 1, WIDTH), dtype=np.float32)
    decoder.prefill(np.zeros((100, WIDTH), dtype=np.float32))
    return lambda: decoder.step(columns, np.full(LANES, 40))


def drawing_step(device: torch.device, run: StepRunner | None) -> Callable[[], Any]:
    """``decoder_step``, and codes that are drawn on the device."""
    config = UnifiedVoiceConfig(model_dim=WIDTH, heads=HEADS)
    decoder = StaticDecoder(random_network("autoregressive", config, device), LANES, 64, device, torch.float32,
                            run=run or run_eagerly)
    columns, ones = np.zeros((LANES, 1, WIDTH), dtype=np.float32), np.ones(LANES)
    draws = Draws(np.zeros((LANES, 60), np.int64), ones / 2, ones, ones, ones, np.full(LANES, 50), 8192)
    decoder.prefill(np.zeros((100, WIDTH), dtype=np.float32))
    return lambda: decoder.step_and_draw(columns, np.full(LANES, 40), draws)


def guided_call(device: torch.device, run: StepRunner | None) -> Callable[[], Any]:
    config = DiffusionConfig(model_channels=WIDTH, in_latent_channels=WIDTH, num_heads=HEADS)
    network = random_network("diffusion", config, device)
    inputs = [torch.zeros(1, FRAMES // 4, WIDTH, device=device)], torch.zeros(1, 2 * WIDTH, device=device), [FRAMES]
    with torch.inference_mode():
        denoiser = (TorchBatchedDenoiser(network, *inputs) if run is None else
                    CapturedDenoiser(network, *inputs, run))
    return lambda: denoiser([np.zeros((1, 100, FRAMES), dtype=np.float32)], 500, True)


def sampler_steps(device: torch.device, run: StepRunner | None) -> Callable[[], Any]:
    """``FUSED_STEPS`` guided steps of a sampler on the device."""
    config = DiffusionConfig(model_channels=WIDTH, in_latent_channels=WIDTH, num_heads=HEADS)
    network = random_network("diffusion", config, device)
    inputs = [torch.zeros(1, FRAMES // 4, WIDTH, device=device)], torch.zeros(1, 2 * WIDTH, device=device), [FRAMES]
    with torch.inference_mode():
        denoiser = CapturedDenoiser(network, *inputs, run or run_eagerly)
    steps = denoising_steps(Schedule(FUSED_STEPS), Diffusion(FUSED_STEPS))
    zeros = np.zeros((1, 100, FRAMES), np.float32)
    return lambda: denoiser.advance([zeros], [zeros], steps, [zeros.repeat(FUSED_STEPS, axis=0)])


def measure(options: argparse.Namespace) -> BenchmarkResult:
    device, rows = torch.device(options.device), []
    calls = [(f"torch:{device.type}", "decoder step", decoder_step),
             (f"torch:{device.type}", "step and draw", drawing_step),
             (f"torch:{device.type}", "guided call", guided_call),
             (f"torch:{device.type}", "8 guided steps", sampler_steps)]
    if importlib.util.find_spec("triton"):
        calls.insert(1, ("torch:triton", "decoder step", partial(decoder_step, fused=True)))
    with counted_kernels() if device.type == "cpu" else nullcontext(CountedKernel()) as kernel:
        for (backend, what, make), mode in product(calls, ("eager", "recorded")):
            runner: Any = None
            if mode == "recorded":
                runner = CudaGraphRunner(torch.cuda.Stream()) if device.type == "cuda" else CountingRunner()
            call = make(device, runner)
            for _ in range(2):      # the first is not recorded, the second records
                call()
            found = counted_on_cuda(call) if device.type == "cuda" else counted_on_cpu(call, runner, kernel)
            rows.append(BenchRow(f"{backend} {mode}", what, "launches", {}, Spread.of([found.total()]), dict(found)))
    return BenchmarkResult(rows, {"lanes": LANES, "frames": FRAMES, "width": WIDTH})


def add_options(add: Callable[..., Any]) -> None:
    add("--device", choices=["cpu", "cuda"], default="cpu", help="(default: %(default)s)")


def unavailable(options: argparse.Namespace) -> str | None:
    missing = options.device == "cuda" and not torch.cuda.is_available()
    return "torch has no CUDA device here" if missing else None


BENCHMARK = Benchmark(measure, "operations or kernels that a step and a guided call launch", add_options,
                      unavailable=unavailable, uses=())
