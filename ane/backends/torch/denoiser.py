"""A diffusion network on PyTorch, bound to one utterance or to several."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ane.backends.denoising import Denoiser
from ane.backends.torch.device import convolutions, torch_memory_errors
from ane.backends.torch.threads import ThreadGovernor, governed

# Frames of several utterances that one call should have at most. On a CPU one utterance already keeps the cores busy:
# batching gains nothing there (benchmarks/results/diffusion-1-thread.json). On CUDA short calls are limited by kernel
# launches; 4096 is an estimate, not measured: about 1000 frames, each twice for guidance, fill the largest GPUs.
MAX_BATCHED_FRAMES = {"cpu": 0, "cuda": 4096, "mps": 0}


class TorchDenoiser(Denoiser):
    """All utterances' frames in one call of a network with ``bind``."""

    def __init__(self, network: Any, latents: Sequence[Tensor], conditioning: Tensor,
                 frames: Sequence[int], governor: ThreadGovernor | None = None, keeps_threads: bool = True):
        self.bound = network.bind(latents, conditioning, frames)
        self.governor, self.keeps_threads = governor, keeps_threads

    @governed
    @torch.inference_mode()
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        with torch_memory_errors(), convolutions.full():
            outputs = self.bound([torch.from_numpy(mel) for mel in x], torch.tensor([timestep]), guided)
            return [output.float().cpu().contiguous().numpy() for output in outputs]
