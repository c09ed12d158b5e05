"""Define the contract of diffusion networks, and compute the arithmetic of a denoising step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class DenoisingStep:
    """The coefficients (float32) of one denoising step, and its timestep as a trained index. Every sampler uses them.

    prediction = conditional·(output with conditioning) + unconditional·(output without)
    x0         = clip(x0_from_x·x + x0_from_prediction·prediction, −1, 1)
    next x     = next_from_x·x + next_from_x0·x0 + next_from_previous_x0·(x0 of the previous step) + σ·N(0, 1)
    σ          = noise·exp(variance_slope·v), where v is the second half of the output
    """

    timestep: int
    conditional: float
    unconditional: float
    x0_from_x: float
    x0_from_prediction: float
    next_from_x: float
    next_from_x0: float
    next_from_previous_x0: float = 0.0
    noise: float = 0.0
    variance_slope: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self)[1:]:
            object.__setattr__(self, field.name, np.float32(getattr(self, field.name)))

    @property
    def guided(self) -> bool:
        """Whether the step uses the output without conditioning."""
        return bool(self.unconditional)

    def take(
        self, x: np.ndarray, previous_x0: np.ndarray, output: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the next x and the x0 of this step, by the formulas above.

        Args:
            x: Noisy mel (1, 100, L).
            previous_x0: x0 of the previous step, (1, 100, L).
            output: Output of the network, (1, 200, L), or (2, 200, L) for a guided step.
            noise: Samples of N(0, 1), (1, 100, L).
        """
        prediction, variance = np.split(output[:1], 2, axis=1)
        if self.guided:
            prediction = self.conditional * prediction + self.unconditional * output[1:, : prediction.shape[1]]
        x0 = np.clip(self.x0_from_x * x + self.x0_from_prediction * prediction, -1, 1)
        x = self.next_from_x * x + self.next_from_x0 * x0 + self.next_from_previous_x0 * previous_x0
        if self.noise:
            x = x + self.noise * np.exp(self.variance_slope * variance) * noise
        return x, x0


class Denoiser(ABC):
    """A diffusion network bound to utterances, which may differ in length.

    It computes once whatever stays the same in all steps. There is one float32 array per utterance: x and x0
    (1, 100, L), and outputs (1, 200, L). A guided output is (2, 200, L): with conditioning, then without.
    """

    @abstractmethod
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        """Return the network's output for every utterance, all at this timestep (a trained index)."""


class SeparateDenoisers(Denoiser):
    """A denoiser of several utterances that computes one after the other, on a separate denoiser for each."""

    def __init__(self, denoisers: Sequence[Denoiser]):
        self.denoisers = denoisers

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        return [denoiser([mel], timestep, guided)[0] for denoiser, mel in zip(self.denoisers, x, strict=True)]


def bind_separately(
    bind: Callable[[np.ndarray, int], Denoiser], latents: Sequence[np.ndarray], frames: Sequence[int]
) -> Denoiser:
    """Bind every utterance separately, by ``bind(latents, frames)``, and return one denoiser for all of them."""
    bound = [bind(rows, length) for rows, length in zip(latents, frames, strict=True)]
    return bound[0] if len(bound) == 1 else SeparateDenoisers(bound)
