"""The contract of diffusion networks: a network bound to utterances, and the arithmetic of a denoising step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class DenoisingStep:
    """The coefficients of one denoising step, float32, and its timestep among the trained ones; for every sampler.

    prediction = conditional·(output with conditioning) + unconditional·(output without)
    x0         = clip(x0_from_x·x + x0_from_prediction·prediction, −1, 1)
    next x     = next_from_x·x + next_from_x0·x0 + next_from_previous_x0·(x0 of the previous step) + σ·N(0, 1)
    σ          = noise·exp(variance_slope·v), v the second half of the output
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
        """The next x and the x0 of this step, by the formulas above.

        Takes x (1, 100, L), the previous x0, the network's output (1 or 2, 200, L) and noise.
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
    """A diffusion network bound to utterances, each of its own length; what no step changes is computed once.

    Arrays are float32, one for each utterance: x and x0 (1, 100, L), outputs (1, 200, L), or guided (2, 200, L): with
    conditioning, then without.
    """

    @abstractmethod
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        """The network's output for every utterance, all at this timestep of the trained ones."""


class SeparateDenoisers(Denoiser):
    """Utterances that are computed one after the other, each by a denoiser of its own."""

    def __init__(self, denoisers: Sequence[Denoiser]):
        self.denoisers = denoisers

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        return [denoiser([own], timestep, guided)[0] for denoiser, own in zip(self.denoisers, x, strict=True)]


def each_alone(
    bind: Callable[[np.ndarray, int], Denoiser], latents: Sequence[np.ndarray], frames: Sequence[int]
) -> Denoiser:
    """A denoiser of several utterances, made of those that ``bind`` returns for each one's latents and frames."""
    bound = [bind(rows, length) for rows, length in zip(latents, frames, strict=True)]
    return bound[0] if len(bound) == 1 else SeparateDenoisers(bound)
