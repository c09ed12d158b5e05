"""Define the interface of a diffusion network, and compute one denoising step from the network's output."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class DenoisingStep:
    """One denoising step of any sampler: its timestep (an index into the trained timesteps) and float32 coefficients.

    ``take`` computes, from x, the network's output and noise N(0, 1):

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
        """Whether the step also needs the network's output without conditioning (classifier-free guidance)."""
        return bool(self.unconditional)

    def take(
        self, x: np.ndarray, previous_x0: np.ndarray, output: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute this step by the formulas in the docstring of the class.

        Args:
            x: Noisy mel (1, 100, L).
            previous_x0: x0 of the previous step, (1, 100, L).
            output: Output of the network, (1, 200, L). For a guided step it is (2, 200, L).
            noise: Samples of N(0, 1), (1, 100, L).

        Returns:
            Two arrays (1, 100, L): the next x, and the x0 of this step.
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
    """A diffusion network that is bound to utterances. The utterances may differ in length.

    Binding computes the conditioning once for all steps. The inputs x and the outputs are lists of float32 arrays, one
    per utterance. For an utterance of L mel frames, x is (1, 100, L) and the output is (1, 200, L). In a guided step
    the output is (2, 200, L): the first row with conditioning, the second without.
    """

    @abstractmethod
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        """Compute the network's output for every utterance.

        Args:
            x: Noisy mel (1, 100, L) of each utterance.
            timestep: Index into the trained timesteps. All utterances have the same timestep.
            guided: Whether to compute the output without conditioning, too.
        """


class SeparateDenoisers(Denoiser):
    """Denoises several utterances one after another. Each utterance has a separate denoiser."""

    def __init__(self, denoisers: Sequence[Denoiser]):
        self.denoisers = denoisers

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        return [denoiser([mel], timestep, guided)[0] for denoiser, mel in zip(self.denoisers, x, strict=True)]


def bind_separately(
    bind: Callable[[np.ndarray, int], Denoiser], latents: Sequence[np.ndarray], frames: Sequence[int]
) -> Denoiser:
    """Call ``bind(latents, frames)`` for every utterance, and return one denoiser for all utterances."""
    bound = [bind(rows, length) for rows, length in zip(latents, frames, strict=True)]
    return bound[0] if len(bound) == 1 else SeparateDenoisers(bound)
