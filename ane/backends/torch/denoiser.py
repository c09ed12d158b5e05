"""A diffusion network on PyTorch, bound to one utterance or to several."""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ane.backends.denoising import COEFFICIENTS, DenoisingStep
from ane.backends.torch.cuda_graphs import HostDeviceTensor, StepRunner
from ane.backends.torch.memory import torch_memory_errors
from ane.backends.torch.tf32 import convolutions

# Frames of several utterances that one call should have at most. On a CPU one utterance already keeps the cores busy:
# batching gains nothing there (benchmarks/results/diffusion-1-thread.json). On CUDA short calls are limited by kernel
# launches; 4096 is an estimate, not measured: about 1000 frames, each twice for guidance, fill the largest GPUs.
MAX_BATCHED_FRAMES = {"cpu": 0, "cuda": 4096, "mps": 0}

FUSED_STEPS = 8     # whose noise is sent to the device at once, and after which the sample comes back


class TorchBatchedDenoiser:
    """``ane.backends.denoising.BatchedDenoiser``: all utterances' frames in one call of a network with ``bind``."""

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
        self.biases: dict[Hashable, list[Any]] = {}
        self.sampler: SamplerBuffers | None = None

    @torch.inference_mode()
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        with torch_memory_errors(), convolutions.full():
            self.timestep.host.fill_(timestep)
            for buffer, mel in zip(self.mels, x, strict=True):
                buffer.host.numpy()[:] = mel
            for buffer in (self.timestep, *self.mels):
                buffer.send()
            self.run(guided, partial(self._advance, guided))
            return self._fetched(self.outputs[guided])

    def fused_steps(self, guided: bool) -> Sequence[int]:
        return range(2, FUSED_STEPS + 1)

    @torch.inference_mode()
    def advance(self, x: Sequence[np.ndarray], previous_x0: Sequence[np.ndarray], steps: Sequence[DenoisingStep],
                noise: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """``ane.backends.denoising.FusedBatchedDenoiser.advance``: the sample stays on the device between the steps."""
        guided = steps[0].guided
        with torch_memory_errors(), convolutions.full():
            if self.sampler is None:
                self.sampler = SamplerBuffers(self.device, self.mels)
            self.sampler.send(x, previous_x0, steps, noise)
            for _ in steps:
                self.run(("sampler", guided), partial(self._take_step, guided))
            found = self._fetched([*self.mels, *self.sampler.previous_x0, *self.outputs[guided]])
            count = len(self.mels)
            return found[:count], found[count:2 * count], found[2 * count:]

    def _fetched(self, buffers: Sequence[HostDeviceTensor]) -> list[np.ndarray]:
        for buffer in buffers:
            buffer.fetch()
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return [buffer.host.numpy().copy() for buffer in buffers]

    def _advance(self, guided: bool) -> None:
        """Run the network, and hold the biases that its layers keep: a captured graph still reads them when those of
        another length have replaced them."""
        self._predict(guided, guided, self.timestep.device)

    def _predict(self, key: Hashable, guided: bool, timestep: Tensor) -> None:
        biases = self._kept_biases()
        predictions = self.bound([mel.device for mel in self.mels], timestep, guided)
        for buffer, prediction in zip(self.outputs[guided], predictions, strict=True):
            buffer.device.copy_(prediction)
        self.biases[key] = [*biases, *self._kept_biases()]

    def _take_step(self, guided: bool) -> None:
        """The network and the arithmetic of the sampler's current step, from buffers to buffers."""
        timestep, coefficients, noise = self.sampler.current()
        self._predict(("sampler", guided), guided, timestep)
        for index, (mel, x0) in enumerate(zip(self.mels, self.sampler.previous_x0, strict=True)):
            next_x, next_x0 = take(coefficients, mel.device, x0.device, self.outputs[guided][index].device,
                                   noise[index])
            mel.device.copy_(next_x)
            x0.device.copy_(next_x0)
        self.sampler.turn += 1

    def _kept_biases(self) -> list[Any]:
        return [layer.kept for layer in self.network.modules() if hasattr(layer, "kept")]


class TorchDenoiser:
    """``ane.backends.denoising.Denoiser``: one utterance."""

    def __init__(self, batched: TorchBatchedDenoiser):
        self.batched = batched

    def __call__(self, x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        return self.batched([x], timestep, guided)[0]


class CapturedOne(TorchDenoiser):
    """``ane.backends.denoising.FusedDenoiser``: one utterance of a ``CapturedDenoiser``."""

    batched: CapturedDenoiser

    def fused_steps(self, guided: bool) -> Sequence[int]:
        return self.batched.fused_steps(guided)

    def advance(self, x: np.ndarray, previous_x0: np.ndarray, steps: Sequence[DenoisingStep],
                noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        [next_x], [x0], [output] = self.batched.advance([x], [previous_x0], steps, [noise])
        return next_x, x0, output


class SamplerBuffers:
    """What the steps of a sampler read and write on the device, for several steps at once.

    Attributes:
        mels: x of each utterance, (1, 100, L) float32. previous_x0: of each, as x.
        turn: (1,) int64, the step that is next; every step adds 1.
    """

    def __init__(self, device: torch.device, mels: Sequence[HostDeviceTensor]):
        shapes = [mel.device.shape for mel in mels]
        self.mels, self.turn = mels, torch.zeros(1, dtype=torch.int64, device=device)
        self.timesteps = HostDeviceTensor(device, FUSED_STEPS, dtype=torch.int64)
        self.coefficients = HostDeviceTensor(device, FUSED_STEPS, COEFFICIENTS)
        self.previous_x0 = [HostDeviceTensor(device, *shape) for shape in shapes]
        self.noise = [HostDeviceTensor(device, FUSED_STEPS, *shape[1:]) for shape in shapes]

    def send(self, x: Sequence[np.ndarray], previous_x0: Sequence[np.ndarray], steps: Sequence[DenoisingStep],
             noise: Sequence[np.ndarray]) -> None:
        """Arguments: see ``FusedBatchedDenoiser.advance``."""
        sent = [(self.timesteps, np.array([step.timestep for step in steps])),
                (self.coefficients, np.stack([step.coefficients for step in steps])),
                *zip(self.mels, x, strict=True), *zip(self.previous_x0, previous_x0, strict=True)]
        if any(step.noise for step in steps):
            sent += zip(self.noise, noise, strict=True)
        for buffer, array in sent:
            buffer.host.numpy()[:len(array)] = array
            buffer.send()
        self.turn.zero_()

    def current(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Of the next step: the timestep (1,), its coefficients (9,), and the noise (1, 100, L) of each utterance."""
        return (self.timesteps.device.index_select(0, self.turn),
                self.coefficients.device.index_select(0, self.turn)[0],
                [noise.device.index_select(0, self.turn) for noise in self.noise])


def take(coefficients: Tensor, x: Tensor, previous_x0: Tensor, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """``DenoisingStep.take`` on tensors, with ``DenoisingStep.coefficients``; the same bits, but for those of exp()."""
    (conditional, unconditional, x0_from_x, x0_from_prediction, next_from_x, next_from_x0, next_from_previous_x0,
     noise_scale, variance_slope) = coefficients.unbind()
    prediction, variance = output[:1].chunk(2, dim=1)
    if len(output) == 2:
        prediction = conditional * prediction + unconditional * output[1:, :prediction.shape[1]]
    x0 = (x0_from_x * x + x0_from_prediction * prediction).clamp(-1, 1)
    x = next_from_x * x + next_from_x0 * x0 + next_from_previous_x0 * previous_x0
    return x + noise_scale * (variance_slope * variance).exp() * noise, x0
