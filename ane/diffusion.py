"""Latents to a mel spectrogram: a loop over one stage, its schedule and its samplers.

Upstream: utils/diffusion.py (OpenAI improved-diffusion), api.py. Schedules are float64; arithmetic on the sample is
float32, as upstream's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ane.errors import UserError
from ane.mel import denormalise_mel
from ane.stages import Backend, Denoiser

TRAINED_STEPS = 4000
MELS = 100
SAMPLERS = ("p", "ddim", "dpm++2m")
PREDICTIONS = ("epsilon", "v", "x0")        # what a network may have been trained to say; see ``predict``

Progress = Callable[[int, int], None]       # steps done, steps in all


def silent(done: int, total: int) -> None:
    """The progress of nobody watching."""


@dataclass(frozen=True)
class Diffusion:
    """How the spectrogram is sampled.

    Attributes:
        steps: denoising steps out of the 4000 trained ones.
        guidance: classifier-free guidance scale k at the last step, ramped up from k/steps; None: no guidance.
        temperature: scale of the initial noise.
    """

    steps: int = 100
    sampler: str = "p"
    guidance: float | None = 2.0
    temperature: float = 1.0

    def __post_init__(self):
        if self.sampler not in SAMPLERS:
            raise UserError(f"no sampler is named {self.sampler!r}; there are {', '.join(SAMPLERS)}")
        if not 1 <= self.steps <= TRAINED_STEPS:
            raise UserError(f"--steps {self.steps}: diffusion takes 1 to {TRAINED_STEPS} steps")
        if self.guidance is not None and not 0 <= self.guidance < np.inf:
            raise UserError(f"--guidance {self.guidance}: it is a scale from 0 (none) up; 2 is upstream's")
        if not 0 <= self.temperature < np.inf:
            raise UserError(f"--noise {self.temperature}: it is a scale from 0 up; 1 is upstream's")


def frames_of(latents: int) -> int:
    """Mel frames at 24 kHz for a number of latents: four frames a code at 22.05 kHz, upstream's rounding."""
    return latents * 4 * 24000 // 22050


def spaced_timesteps(steps: int) -> np.ndarray:
    """``steps`` of the 4000 trained timesteps, evenly spaced from 0 to 3999: (steps,) int64 ascending."""
    stride = (TRAINED_STEPS - 1) / (steps - 1) if steps > 1 else 1.0
    # upstream accumulates the index in floating point and rounds each with Python's round
    index, timesteps = 0.0, []
    for _ in range(steps):
        timesteps.append(round(index))
        index += stride
    return np.array(timesteps)


class Schedule:
    """The noise schedule respaced to a number of steps. Arrays are (steps,) float64; noise grows with the index."""

    def __init__(self, steps: int):
        self.timesteps = spaced_timesteps(steps)
        scale = 1000 / TRAINED_STEPS
        trained = np.linspace(scale * 1e-4, scale * 0.02, TRAINED_STEPS, dtype=np.float64)
        kept = np.cumprod(1 - trained)[self.timesteps]
        self.betas = 1 - kept / np.append(1.0, kept[:-1])

    @cached_property
    def alphas_cumprod(self) -> np.ndarray:
        return np.cumprod(1 - self.betas)

    @cached_property
    def alphas_cumprod_prev(self) -> np.ndarray:
        return np.append(1.0, self.alphas_cumprod[:-1])

    @cached_property
    def sqrt_recip_alphas_cumprod(self) -> np.ndarray:
        return np.sqrt(1 / self.alphas_cumprod)

    @cached_property
    def sqrt_recipm1_alphas_cumprod(self) -> np.ndarray:
        return np.sqrt(1 / self.alphas_cumprod - 1)

    @cached_property
    def posterior_mean_coef1(self) -> np.ndarray:
        return self.betas * np.sqrt(self.alphas_cumprod_prev) / (1 - self.alphas_cumprod)

    @cached_property
    def posterior_mean_coef2(self) -> np.ndarray:
        return (1 - self.alphas_cumprod_prev) * np.sqrt(1 - self.betas) / (1 - self.alphas_cumprod)

    @cached_property
    def posterior_log_variance_clipped(self) -> np.ndarray:
        variance = self.betas * (1 - self.alphas_cumprod_prev) / (1 - self.alphas_cumprod)
        # the variance of the first step is 0: upstream takes the second's (with one step there is only beta)
        return np.log(np.append(variance[1:2] if len(variance) > 1 else self.betas[:1], variance[1:]))


@dataclass(frozen=True)
class Prediction:
    """What a step makes of the network's output: the clean sample it implies, and the learned log-variance."""

    x0: np.ndarray              # (1, 100, L) within ±1
    log_variance: np.ndarray    # (1, 100, L)


def predict(schedule: Schedule, index: int, x: np.ndarray, output: np.ndarray, guidance: float | None,
            prediction: str = "epsilon") -> Prediction:
    """Read the network's output (1 or 2, 200, L) at a step: guide, then find the clean sample, clipped to ±1.

    ``prediction`` is what the network was trained to say of x = √ᾱ·x0 + √(1−ᾱ)·ε: "epsilon", "v" = √ᾱ·ε − √(1−ᾱ)·x0
    (Salimans & Ho 2022) or "x0". Guidance: m = (1 + c)·m_cond − c·m_uncond with c = k·(1 − index / steps) (Ho &
    Salimans 2022, ramped as upstream). The variance is interpolated in the log domain between the posterior's and
    beta (Nichol & Dhariwal 2021, eq. 15).
    """
    said, spread = np.split(output[:1], 2, axis=1)
    if guidance is not None:
        scale = guidance * (1 - index / len(schedule.betas))
        said = np.float32(1 + scale) * said - np.float32(scale) * output[1:, :said.shape[1]]
    share = (spread + np.float32(1)) / np.float32(2)
    low = np.float32(schedule.posterior_log_variance_clipped[index])
    high = np.float32(np.log(schedule.betas[index]))
    if prediction == "epsilon":
        x0 = (np.float32(schedule.sqrt_recip_alphas_cumprod[index]) * x
              - np.float32(schedule.sqrt_recipm1_alphas_cumprod[index]) * said)
    elif prediction == "v":
        kept = schedule.alphas_cumprod[index]
        x0 = np.float32(np.sqrt(kept)) * x - np.float32(np.sqrt(1 - kept)) * said
    elif prediction == "x0":
        x0 = said
    else:
        raise ValueError(f"prediction {prediction!r} is none of {', '.join(PREDICTIONS)}")
    return Prediction(np.clip(x0, -1, 1), share * high + (1 - share) * low)


def step_p(schedule: Schedule, index: int, x: np.ndarray, now: Prediction, rng: np.random.Generator) -> np.ndarray:
    """One ancestral step (Ho et al. 2020); noise is drawn at the last step too, and not used."""
    mean = (np.float32(schedule.posterior_mean_coef1[index]) * now.x0
            + np.float32(schedule.posterior_mean_coef2[index]) * x)
    noise = rng.standard_normal(x.shape, dtype=np.float32)
    return mean if index == 0 else mean + np.exp(np.float32(0.5) * now.log_variance) * noise


def step_ddim(schedule: Schedule, index: int, x: np.ndarray, now: Prediction) -> np.ndarray:
    """One deterministic step, η = 0 (Song et al. 2021), along the noise that the clipped x0 implies."""
    noise = ((np.float32(schedule.sqrt_recip_alphas_cumprod[index]) * x - now.x0)
             / np.float32(schedule.sqrt_recipm1_alphas_cumprod[index]))
    kept = np.float32(schedule.alphas_cumprod_prev[index])
    return now.x0 * np.sqrt(kept) + np.sqrt(1 - kept) * noise


def step_dpmpp_2m(schedule: Schedule, index: int, x: np.ndarray, now: Prediction,
                  before: Prediction | None) -> np.ndarray:
    """One multistep step of DPM-Solver++(2M) (Lu et al. 2022, algorithm 2), in λ = ln(α/σ); the last gives x0."""
    if index == 0:
        return now.x0

    def log_snr(i: int) -> float:
        return 0.5 * np.log(schedule.alphas_cumprod[i] / (1 - schedule.alphas_cumprod[i]))

    h = log_snr(index - 1) - log_snr(index)
    x0 = now.x0
    if before is not None:
        r = (log_snr(index) - log_snr(index + 1)) / h
        x0 = np.float32(1 + 1 / (2 * r)) * now.x0 - np.float32(1 / (2 * r)) * before.x0
    kept, kept_next = schedule.alphas_cumprod[index], schedule.alphas_cumprod[index - 1]
    shrink = np.sqrt((1 - kept_next) / (1 - kept))
    return np.float32(shrink) * x - np.float32(np.sqrt(kept_next) * np.expm1(-h)) * x0


def sample(denoiser: Denoiser, frames: int, diffusion: Diffusion, rng: np.random.Generator,
           progress: Progress = silent, prediction: str = "epsilon") -> np.ndarray:
    """Draw a normalised mel (1, 100, frames) float32 within ±1; ``prediction``: see ``predict``.

    Draws from ``rng``, all (1, 100, frames) float32 normals: x_T, then for ``p`` one a step.
    """
    schedule = Schedule(diffusion.steps)
    guided = diffusion.guidance is not None and diffusion.guidance != 0
    x = rng.standard_normal((1, MELS, frames), dtype=np.float32) * np.float32(diffusion.temperature)
    before = None
    for index in reversed(range(diffusion.steps)):
        output = denoiser(x, int(schedule.timesteps[index]), guided)
        if not np.isfinite(output).all():
            raise UserError("the diffusion decoder gave NaN or infinite values: the weights are damaged, or "
                            "--precision is too narrow for them (try fp32)")
        now = predict(schedule, index, x, output, diffusion.guidance if guided else None, prediction)
        if diffusion.sampler == "p":
            x = step_p(schedule, index, x, now, rng)
        elif diffusion.sampler == "ddim":
            x = step_ddim(schedule, index, x, now)
        else:
            x = step_dpmpp_2m(schedule, index, x, now, before)
        before = now
        progress(diffusion.steps - index, diffusion.steps)
    return x


def spectrogram(backend: Backend, latents: np.ndarray, voice: np.ndarray, diffusion: Diffusion,
                rng: np.random.Generator, progress: Progress = silent, prediction: str = "epsilon") -> np.ndarray:
    """Latents (N, D) and the voice's diffusion latent (1, C) → log-mel (1, 100, L) float32 for the vocoder."""
    frames = frames_of(len(latents))
    denoiser = backend.denoiser(latents[None], voice, frames)
    return denormalise_mel(sample(denoiser, frames, diffusion, rng, progress, prediction))

