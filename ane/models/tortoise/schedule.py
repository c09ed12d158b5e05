"""Define the diffusion's noise schedule and its samplers.

A sampler is a function that returns the coefficients of one denoising step: the factors of the noisy mel, of x0 and of
the new noise (``ane.backends.denoising.DenoisingStep``). The schedule follows upstream's utils/diffusion.py (OpenAI
improved-diffusion) and is float64.
"""

from collections.abc import Callable
from itertools import accumulate, repeat
from typing import Literal

import numpy as np

TRAINED_STEPS = 4000  # number of timesteps that the diffusion was trained with


def trained_alphas_cumprod() -> np.ndarray:
    """Return ᾱ of the 4000 trained timesteps, decreasing: (4000,) float64."""
    scale = 1000 / TRAINED_STEPS
    return np.cumprod(1 - np.linspace(scale * 1e-4, scale * 0.02, TRAINED_STEPS, dtype=np.float64))


def log_snr(alphas_cumprod: np.ndarray) -> np.ndarray:
    """Return λ = ln(α/σ), half the logarithm of the signal-to-noise ratio, from ᾱ = α² = 1 − σ²."""
    return 0.5 * np.log(alphas_cumprod / (1 - alphas_cumprod))


def spaced_timesteps(steps: int, spacing: str = "even") -> np.ndarray:
    """Choose ``steps`` of the 4000 trained timesteps, 0 to 3999. Returns (steps,) int64, ascending and distinct.

    Args:
        steps: Number of timesteps.
        spacing: Rule. "even" spaces the timesteps evenly, as upstream does. "logsnr" takes the timesteps that are
            nearest to evenly spaced λ = ln(α/σ) (Lu et al. 2022, DPM-Solver), so that solvers in λ take steps of equal
            size. A single step is at 0 for "even", and at 3999 for "logsnr".
    """
    if spacing == "even":
        stride = (TRAINED_STEPS - 1) / (steps - 1) if steps > 1 else 1.0
        # Upstream adds up the stride in floating point, and rounds each sum with Python's round.
        indices = accumulate(repeat(stride, steps - 1), initial=0.0)
        return np.array([round(index) for index in indices])
    rising, order = log_snr(trained_alphas_cumprod())[::-1], np.arange(steps)
    even = np.linspace(rising[0], rising[-1], steps)[::-1]
    nearest = np.rint(np.interp(even, rising, np.arange(TRAINED_STEPS)[::-1])).astype(np.int64)
    # With many steps, several at low noise would round to the same timestep. Move them apart.
    distinct = np.maximum.accumulate(nearest - order) + order
    return np.minimum(distinct, TRAINED_STEPS - steps + order)


class Schedule:
    """The noise schedule for ``steps`` trained timesteps. Arrays are (steps,) float64. Index 0 has the least noise."""

    def __init__(self, steps: int, spacing: str = "even"):
        self.timesteps = spaced_timesteps(steps, spacing)
        spaced = trained_alphas_cumprod()[self.timesteps]
        self.betas = 1 - spaced / np.append(1.0, spaced[:-1])
        self.alphas_cumprod = np.cumprod(1 - self.betas)
        self.alphas_cumprod_prev = np.append(1.0, self.alphas_cumprod[:-1])
        self.sqrt_recip_alphas_cumprod = np.sqrt(1 / self.alphas_cumprod)
        self.sqrt_recipm1_alphas_cumprod = np.sqrt(1 / self.alphas_cumprod - 1)
        self.posterior_mean_coef1 = self.betas * np.sqrt(self.alphas_cumprod_prev) / (1 - self.alphas_cumprod)
        self.posterior_mean_coef2 = (1 - self.alphas_cumprod_prev) * np.sqrt(1 - self.betas) / (1 - self.alphas_cumprod)
        variance = self.betas * (1 - self.alphas_cumprod_prev) / (1 - self.alphas_cumprod)
        # The variance at index 0 is 0, so upstream uses the variance at index 1, or beta if there is only one step.
        first = variance[1:2] if steps > 1 else self.betas[:1]
        self.posterior_log_variance_clipped = np.log(np.append(first, variance[1:]))


def ancestral(schedule: Schedule, index: int) -> dict[str, float]:
    """Return a DDPM step (Ho et al. 2020): the posterior's mean plus noise. The last step adds no noise.

    The network has learned the noise's variance (Nichol & Dhariwal 2021, eq. 15). The second half of its output is v,
    within ±1. With l, the logarithm of the posterior's variance, and h, the logarithm of beta, the noise has the
    standard deviation σ = exp((h + l) / 4)·exp((h − l) / 4·v).
    """
    low, high = schedule.posterior_log_variance_clipped[index], np.log(schedule.betas[index])
    return {
        "next_from_x": schedule.posterior_mean_coef2[index],
        "next_from_x0": schedule.posterior_mean_coef1[index],
        "noise": np.exp((high + low) / 4) if index else 0.0,
        "variance_slope": (high - low) / 4,
    }


def ddim(schedule: Schedule, index: int) -> dict[str, float]:
    """Return a DDIM step with η = 0, which is deterministic (Song et al. 2021).

    x' = √ᾱ'·x0 + √(1−ᾱ')·ε, with ε = (√(1/ᾱ)·x − x0) / √(1/ᾱ−1).
    """
    next_alpha_bar = schedule.alphas_cumprod_prev[index]
    ratio = np.sqrt(1 - next_alpha_bar) / schedule.sqrt_recipm1_alphas_cumprod[index]
    return {
        "next_from_x": ratio * schedule.sqrt_recip_alphas_cumprod[index],
        "next_from_x0": np.sqrt(next_alpha_bar) - ratio,
    }


def dpmpp_2m(schedule: Schedule, index: int) -> dict[str, float]:
    """Return a step of DPM-Solver++(2M) in λ = ln(α/σ) (Lu et al. 2022, algorithm 2). The last step results in x0."""
    if index == 0:
        return {"next_from_x": 0.0, "next_from_x0": 1.0}
    snr = log_snr(schedule.alphas_cumprod)
    h = snr[index - 1] - snr[index]
    alpha_bar, next_alpha_bar = schedule.alphas_cumprod[index], schedule.alphas_cumprod[index - 1]
    weight, extrapolation = -np.sqrt(next_alpha_bar) * np.expm1(-h), 0.0  # factors of x0, and of x0 − previous x0
    if index + 1 < len(schedule.betas):
        extrapolation = h / (2 * (snr[index] - snr[index + 1]))
    return {
        "next_from_x": np.sqrt((1 - next_alpha_bar) / (1 - alpha_bar)),
        "next_from_x0": weight * (1 + extrapolation),
        "next_from_previous_x0": -weight * extrapolation,
    }


SamplerName = Literal["p", "ddim", "dpm++2m"]
SAMPLERS: dict[SamplerName, Callable[[Schedule, int], dict[str, float]]] = {
    "p": ancestral,
    "ddim": ddim,
    "dpm++2m": dpmpp_2m,
}
