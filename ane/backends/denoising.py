"""The contract of diffusion networks: a network bound to utterances, and the arithmetic of a denoising step."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np

COEFFICIENTS = 9        # of a step


class Denoiser(Protocol):
    """A diffusion network bound to one utterance: what does not depend on the timestep is computed once."""

    def __call__(self, x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        """x (1, 100, L) float32 at ``timestep`` of the trained ones → (1, 200, L), or when ``guided`` (2, 200, L):
        the output with conditioning, then without."""


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

    def take(self, x: np.ndarray, previous_x0: np.ndarray, output: np.ndarray,
             noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The next x and the x0 of this step, by the formulas above.

        Takes x (1, 100, L), the previous x0, the network's output (1 or 2, 200, L) and noise.
        """
        prediction, variance = np.split(output[:1], 2, axis=1)
        if self.guided:
            prediction = self.conditional * prediction + self.unconditional * output[1:, :prediction.shape[1]]
        x0 = np.clip(self.x0_from_x * x + self.x0_from_prediction * prediction, -1, 1)
        x = self.next_from_x * x + self.next_from_x0 * x0 + self.next_from_previous_x0 * previous_x0
        if self.noise:
            x = x + self.noise * np.exp(self.variance_slope * variance) * noise
        return x, x0

    @property
    def coefficients(self) -> np.ndarray:
        """All but the timestep, in their order: (9,) float32."""
        return np.array([getattr(self, field.name) for field in fields(self)[1:]], np.float32)


@runtime_checkable
class FusedDenoiser(Denoiser, Protocol):
    """A denoiser that can also compute several steps in one call."""

    def fused_steps(self, guided: bool) -> Sequence[int]:
        """The step counts that one call can compute, each at least 2; empty: only single steps."""

    def advance(self, x: np.ndarray, previous_x0: np.ndarray, steps: Sequence[DenoisingStep],
                noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute all ``steps``, whose number is one of ``fused_steps``.

        x and the x0 of the previous step (zeros at first): (1, 100, L) float32; noise for each step (n, 100, L).
        Returns the next x, the last x0, and the network's last output as ``__call__`` returns it.
        """


class BatchedDenoiser(Protocol):
    """A diffusion network bound to several utterances, each of its own length."""

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        """What ``Denoiser`` returns, for every utterance: x (1, 100, L) float32 each, all at this timestep."""


@runtime_checkable
class FusedBatchedDenoiser(BatchedDenoiser, Protocol):
    """A denoiser of several utterances that can also compute several steps in one call: see ``FusedDenoiser``."""

    def fused_steps(self, guided: bool) -> Sequence[int]:
        """See ``FusedDenoiser.fused_steps``."""

    def advance(self, x: Sequence[np.ndarray], previous_x0: Sequence[np.ndarray], steps: Sequence[DenoisingStep],
                noise: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """``FusedDenoiser.advance`` of every utterance: what that takes and returns as arrays is a list here."""
