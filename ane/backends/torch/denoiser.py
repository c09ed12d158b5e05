"""A diffusion network on PyTorch, bound to one utterance or to several."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ane.backends.torch.memory import torch_memory_errors
from ane.backends.torch.static_decoder import HostDeviceTensor, StepRunner
from ane.backends.torch.tf32 import convolutions

# Frames of several utterances that one call should have at most. On a CPU one utterance already keeps the cores busy:
# batching gains nothing there (benchmarks/results/diffusion-1-thread.json). On CUDA short calls are limited by kernel
# launches; 4096 is an estimate, not measured: about 1000 frames, each twice for guidance, fill the largest GPUs.
MAX_BATCHED_FRAMES = {"cpu": 0, "cuda": 4096, "mps": 0}


class TorchBatchedDenoiser:
    """``ane.backends.base.BatchedDenoiser``: the frames of all utterances in one call of a network with ``bind``."""

    def __init__(self, network: Any, latents: Sequence[Tensor], conditioning: Tensor,
                 frames: Sequence[int]):
        self.bound = network.bind(latents, conditioning, frames)

    @torch.inference_mode()
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        with torch_memory_errors(), convolutions.full():
            outputs = self.bound([torch.from_numpy(mel) for mel in x], torch.tensor([timestep]), guided)
            return [output.float().cpu().contiguous().numpy() for output in outputs]


class CapturedDenoiser(TorchBatchedDenoiser):
    """A ``TorchBatchedDenoiser`` whose calls are functions from buffers to buffers: CUDA captures and replays them.

    All steps of a diffusion have the same shapes, and a call of short utterances takes a GPU less time than launching
    its kernels takes the host.

    Args:
        run: runs the calls of this denoiser, and of no other.
    """

    def __init__(self, network: Any, latents: Sequence[Tensor], conditioning: Tensor, frames: Sequence[int],
                 run: StepRunner):
        super().__init__(network, latents, conditioning, frames)
        self.network, self.run, self.device = network, run, conditioning.device
        self.mels = [HostDeviceTensor(self.device, 1, network.config.in_channels, length) for length in frames]
        self.timestep = HostDeviceTensor(self.device, 1, dtype=torch.int64)
        self.outputs = {guided: [HostDeviceTensor(self.device, 1 + guided, network.config.out_channels, length)
                                 for length in frames] for guided in (False, True)}
        self.biases: dict[bool, list[Any]] = {}

    @torch.inference_mode()
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        with torch_memory_errors(), convolutions.full():
            self.timestep.host.fill_(timestep)
            for buffer, mel in zip(self.mels, x, strict=True):
                buffer.host.numpy()[:] = mel
            for buffer in (self.timestep, *self.mels):
                buffer.send()
            self.run(guided, partial(self._advance, guided))
            for buffer in self.outputs[guided]:
                buffer.fetch()
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
            return [buffer.host.numpy().copy() for buffer in self.outputs[guided]]

    def _advance(self, guided: bool) -> None:
        """Run the network, and hold the biases that its layers keep: a captured graph still reads them when those of
        another length have replaced them."""
        biases = self._kept_biases()
        predictions = self.bound([mel.device for mel in self.mels], self.timestep.device, guided)
        for buffer, prediction in zip(self.outputs[guided], predictions, strict=True):
            buffer.device.copy_(prediction)
        self.biases[guided] = [*biases, *self._kept_biases()]

    def _kept_biases(self) -> list[Any]:
        return [layer.kept for layer in self.network.modules() if hasattr(layer, "kept")]


class TorchDenoiser:
    """``ane.backends.base.Denoiser``: one utterance."""

    def __init__(self, batched: TorchBatchedDenoiser):
        self.batched = batched

    def __call__(self, x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        return self.batched([x], timestep, guided)[0]
