"""Torch eager, the baseline of other engines: the plain networks of ``ane.models.tortoise.networks``.

Weights are not packed and calls are not recorded as CUDA graphs. Keys and values grow by concatenation, as in the GPT-2
of common libraries, and every lane has a copy of the prefix; a guided denoising step is a batch of two. Weights are in
the requested precision; as in mixed precision, norms and the residual stream are in float32.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ane.backends.base import Decoder
from ane.backends.denoising import Denoiser, each_alone
from ane.backends.torch.backend import DTYPES, TorchBackend
from ane.backends.torch.device import torch_memory_errors
from ane.bundles import Model
from ane.models.tortoise.networks.autoregressive import UnifiedVoice, causal
from ane.models.tortoise.networks.diffusion_decoder import DiffusionTts
from ane.system.errors import UserError

EagerCache = list[tuple[Tensor, Tensor]]         # of each layer: keys and values, (lanes, heads, positions, width)


class EagerBackend(TorchBackend):
    """``ane.backends.base.Backend`` without optimisations; for one candidate at a time."""

    def __init__(self, model: Model, device: str, precision: str, threads: int | None = None):
        """Raises UserError for a precision that plain torch does not have, or that the device lacks."""
        if precision not in DTYPES:
            raise UserError(f"torch eager computes in {', '.join(DTYPES)}, not in {precision}")
        super().__init__(model, device, precision, threads, keep=True, exact=True)
        self.exact = False          # torch's own norms
        self.dtype = DTYPES[precision]
        self.name, self.max_batched_frames = f"eager:{self.device} {self.chosen.name}", 0

    @torch.inference_mode()
    def decoder(self, lanes: int, capacity: int, prefixes: int = 1,
                max_prefix_length: int | None = None) -> "EagerDecoder":
        return EagerDecoder(self.network("autoregressive"), lanes, capacity, self.device, prefixes)

    @torch.inference_mode()
    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        def bind(rows: np.ndarray, length: int) -> EagerDenoiser:
            return EagerDenoiser(self.network("diffusion"), self._to_device(rows, self.dtype),
                                 self._to_device(conditioning, self.dtype), length)

        return each_alone(bind, latents, frames)


class EagerDecoder(Decoder):
    """A decoder whose lanes step together, at the same position."""

    def __init__(self, network: UnifiedVoice, lanes: int, capacity: int, device: torch.device, prefixes: int = 1):
        self.network, self.lanes, self.capacity, self.prefixes = network, lanes, capacity, prefixes
        self.device = device
        self._prefixes: dict[int, EagerCache] = {}
        self._cache: EagerCache = []

    @torch.inference_mode()
    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        stored: EagerCache = []

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            stored.append((k, v))
            return causal(q, k, v)

        with torch_memory_errors():
            hidden = self.network(self._send(prefix[None]), [attend] * self.network.config.layers)[:, -1]
            self._prefixes[index] = stored
            return hidden[0].float().cpu().numpy(), self.network.logits(hidden)[0].cpu().numpy()

    @torch.inference_mode()
    def step(self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0,
             prefix_indices: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Raises ValueError unless all lanes step, at the same length and on the same prefix."""
        indices = np.zeros(1, dtype=np.int64) if prefix_indices is None else prefix_indices
        if first_lane or len(columns) != self.lanes or len({*lengths}) > 1 or len({*indices}) > 1:
            raise ValueError("an eager decoder steps all lanes together, at one length and on one prefix")
        with torch_memory_errors():
            start = self._prefixes[int(indices[0])]
            if not lengths[0]:
                self._cache = [(keys.expand(self.lanes, -1, -1, -1), values.expand(self.lanes, -1, -1, -1))
                               for keys, values in start]
            earlier, layers = start[0][0].shape[2] + int(lengths[0]), iter(range(len(start)))

            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                layer = next(layers)
                keys, values = (torch.cat((before[:, :, :earlier], new), dim=2)
                                for before, new in zip(self._cache[layer], (k, v), strict=True))
                self._cache[layer] = keys, values
                return F.scaled_dot_product_attention(q, keys, values, attn_mask=causal_mask(q, earlier))

            hidden = self.network(self._send(columns), [attend] * len(start))
            return hidden.float().cpu().numpy(), self.network.logits(hidden[:, -1]).cpu().numpy()

    def _send(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(self.device)


def causal_mask(q: Tensor, earlier: int) -> Tensor | None:
    """Mask (T, earlier + T), True where a column attends to a cached position or a column; None for one column."""
    T = q.shape[2]
    return None if T == 1 else torch.ones(T, earlier + T, dtype=torch.bool, device=q.device).tril(earlier)


class EagerDenoiser(Denoiser):
    """One utterance: the network's own forward, a guided step a batch of two."""

    def __init__(self, network: DiffusionTts, latents: Tensor, conditioning: Tensor, frames: int):
        self.network = network
        with torch_memory_errors():
            self.codes = torch.cat((network.condition(latents, conditioning, frames),
                                    network.unconditioned(frames).to(conditioning)))        # (2, C, L)

    @torch.inference_mode()
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        [mel], rows = x, 1 + guided
        with torch_memory_errors():
            noisy = torch.from_numpy(mel).to(self.codes).repeat(rows, 1, 1)
            timesteps = torch.full((rows,), timestep, device=noisy.device)
            return [self.network(noisy, timesteps, self.codes[:rows]).float().cpu().numpy()]
