"""The diffusion decoder on PyTorch, bound to one utterance or to several."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ane.backends.torch.memory import torch_memory_errors
from ane.models.tortoise.networks.diffusion_decoder import DiffusionTts
from ane.models.tortoise.networks.frames import Packing, pack

# Frames of several utterances worth a call. On a CPU the products of one utterance already keep the cores busy:
# benchmarks/diffusion.py finds nothing to gain. An accelerator is kept waiting by the number of calls, not by their
# size; an estimate, not measured: some 10^3 frames, both rows of guidance, fill the largest.
FRAMES_AT_ONCE = {"cpu": 0, "cuda": 4096, "mps": 0}


class TorchBatchedDenoiser:
    """``ane.backends.base.BatchedDenoiser``: the frames of all utterances, packed without padding, in one call of the network;
    guided, each utterance has two rows."""

    def __init__(self, network: DiffusionTts, latents: Sequence[Tensor], conditioning: Tensor, frames: Sequence[int]):
        self.network, self.lengths = network, tuple(frames)
        self.codes = [torch.cat((network.condition(rows, conditioning, length),
                                 network.unconditioned(length).to(conditioning)))
                      for rows, length in zip(latents, frames, strict=True)]        # (2, C, L) each
        self._packed: dict[int, Tensor] = {}

    @torch.inference_mode()
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        packing = Packing(1 + guided, self.lengths)
        with torch_memory_errors():
            code = self._code(packing.rows)
            noisy = torch.cat([pack(torch.from_numpy(mel)) for mel in x]).to(code)
            said = self.network.denoise(noisy, torch.tensor([timestep], device=code.device), code, packing)
            said = said.float().cpu()
        return [part.transpose(1, 2).contiguous().numpy() for part in packing.split(said)]

    def _code(self, rows: int) -> Tensor:
        """The packed conditioning, made once for guided steps and once for the others."""
        if rows not in self._packed:
            self._packed[rows] = torch.cat([pack(code[:rows]) for code in self.codes])
        return self._packed[rows]


class TorchDenoiser:
    """``ane.backends.base.Denoiser``: the same for one utterance."""

    def __init__(self, network: DiffusionTts, latents: Tensor, conditioning: Tensor, frames: int):
        self.batched = TorchBatchedDenoiser(network, [latents], conditioning, [frames])

    def __call__(self, x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        return self.batched([x], timestep, guided)[0]
