"""The diffusion decoder of a package, bound to one utterance."""

from collections.abc import Sequence

import numpy as np
import torch

from ane.backends.base import Step
from ane.backends.packaged.functions import Function, frames, padded, smallest
from ane.models.tortoise.networks.diffusion_decoder import timestep_embedding

WHAT = "the text"


class PackagedDenoiser:
    """Fulfils ``ane.backends.base.FusedDenoiser``.

    Graphs are those of ``converters.tortoise.diffusion_decoder``. Of each kind the smallest bucket that fits serves the utterance, and
    what no step changes is padded once.
    """

    def __init__(self, condition: Sequence[Function], denoise: Sequence[Function], sample: Sequence[Function],
                 unconditioned: np.ndarray, latents: np.ndarray, conditioning: np.ndarray, length: int):
        """
        Args:
            condition, denoise, sample: functions of these kinds; there may be none of the kind sample.
            unconditioned: the network's unconditioned_embedding, (1, C, 1) float32.
            latents, conditioning: (1, N, D) and (1, 2C) float32. length: frames of the utterance.

        Raises:
            UserError: no bucket is large enough.
        """
        self.length = length
        self._denoise, self._sample = denoise, sample
        self._width = unconditioned.shape[1]
        conditional = upsampled(aligned(condition, latents, conditioning), length)
        unconditional = np.repeat(unconditioned[:, :, None].astype(np.float32), length, axis=-1)
        self._rows = np.concatenate((conditional, unconditional))                          # (2, C, 1, L)
        self._prepared: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        smallest(denoise, WHAT, batch=1, frames=length)       # at once, not after seconds of work

    def steps(self, guided: bool) -> Sequence[int]:
        return sorted({f.bucket["steps"] for f in self._fused(guided) if f.bucket["frames"] >= self.length})

    def __call__(self, x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        function = smallest(self._denoise, WHAT, batch=1 + guided, frames=self.length)
        outputs = function(x=self._columns(x, function), time=self._times([timestep]), **self._given(function))
        return self._output(outputs, guided)

    def advance(self, x: np.ndarray, before: np.ndarray, plan: Sequence[Step],
                noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        guided = plan[0].guided
        function = smallest([f for f in self._fused(guided) if f.bucket["steps"] == len(plan)], WHAT,
                            frames=self.length)
        outputs = function(
            x=self._columns(x, function), before=self._columns(before, function), noise=self._columns(noise, function),
            times=self._times([step.timestep for step in plan]),
            coefficients=np.stack([step.coefficients for step in plan])[:, :, None, None], **self._given(function))
        return (*(outputs[name][:, :, 0, :self.length] for name in ("next_x", "next_before")),
                self._output(outputs, guided))

    def _fused(self, guided: bool) -> list[Function]:
        """Not a batch of two where one is enough: it is twice the work, which is more than a call costs."""
        return [f for f in self._sample if f.bucket["batch"] == 1 + guided]

    def _output(self, outputs: dict[str, np.ndarray], guided: bool) -> np.ndarray:
        return outputs["prediction"][:1 + guided, :, 0, :self.length]

    def _columns(self, array: np.ndarray, function: Function) -> np.ndarray:
        """(n, channels, L) → (n, channels, 1, bucket)."""
        return padded(array[:, :, None], function.bucket["frames"])

    def _times(self, timesteps: Sequence[int]) -> np.ndarray:
        """(n, C, 1, 1)."""
        return timestep_embedding(torch.tensor(timesteps), self._width).numpy()[:, :, None, None]

    def _given(self, function: Function) -> dict[str, np.ndarray]:
        """The inputs that no step changes, made once for a bucket."""
        key = batch, bucket = function.bucket["batch"], function.bucket["frames"]
        if key not in self._prepared:
            self._prepared[key] = {"code": padded(self._rows[:batch], bucket), **frames(self.length, bucket)}
        return self._prepared[key]


def aligned(condition: Sequence[Function], latents: np.ndarray, conditioning: np.ndarray) -> np.ndarray:
    """Latents (1, N, D) and a voice latent (1, 2C) → their code, a column a latent: (1, C, 1, N) float32."""
    places = latents.shape[1]
    function = smallest(condition, WHAT, latents=places)
    bucket = function.bucket["latents"]
    outputs = function(latents=padded(latents.swapaxes(1, 2)[:, :, None], bucket), voice=conditioning[:, :, None, None],
                       **frames(places, bucket))
    return outputs["code"][..., :places]


def upsampled(code: np.ndarray, length: int) -> np.ndarray:
    """The last axis repeated to ``length``, the nearest before it: torch's interpolate, in its float32."""
    places = code.shape[-1]
    source = np.arange(length, dtype=np.float32) * (np.float32(places) / np.float32(length))
    return code[..., np.minimum(source.astype(np.int64), places - 1)]
