"""Schedules, samplers and complete sampling runs equal upstream's."""

import re

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.bundles import open_model
from ane.models.tortoise.diffusion import (
    Diffusion,
    Schedule,
    denoising_steps,
    frame_count,
    sample,
    spectrograms,
)
from tests.parity.conftest import RecordedNoise

# ten times the difference from float64 arithmetic on the stored outputs; the first steps have cancellation
ARITHMETIC = 10 * 6e-5
COEFFICIENTS = ("betas", "alphas_cumprod", "posterior_mean_coef1", "posterior_mean_coef2",
                "posterior_log_variance_clipped", "sqrt_recip_alphas_cumprod", "sqrt_recipm1_alphas_cumprod")


def runs(stage: dict[str, np.ndarray]) -> list[str]:
    return sorted(name.removesuffix(".x_T") for name in stage if name.endswith(".x_T"))


def recorded_noise(stage: dict[str, np.ndarray], run: str) -> RecordedNoise:
    return RecordedNoise([stage[f"{run}.x_T"], *stage.get(f"{run}.noise", [])])


def test_schedules_are_upstreams_to_twelve_digits(golden_stage):
    stage = golden_stage("schedule")
    for steps in sorted({int(name.split(".")[0]) for name in stage if name.endswith(".timesteps")}):
        schedule = Schedule(steps)
        np.testing.assert_array_equal(schedule.timesteps, stage[f"{steps}.timesteps"])
        for name in COEFFICIENTS:
            np.testing.assert_allclose(getattr(schedule, name), stage[f"{steps}.{name}"], rtol=1e-12, err_msg=name)


def test_sampler_arithmetic_is_upstreams(golden_stage, assert_close):
    """With the stored model outputs, every step gives upstream's sample."""
    stage = golden_stage("sampler")
    for run in runs(stage):
        guided = f"{run}.model_out_uncond" in stage
        guidance = (1.5 if run == "p30" else 2.0) if guided else None
        diffusion = Diffusion(len(stage[f"{run}.timesteps"]), re.match(r"p|ddim", run).group(), guidance)
        rng = recorded_noise(stage, run)
        x = rng.standard_normal(stage[f"{run}.x_T"].shape, np.float32)
        previous_x0 = np.zeros_like(x)
        for number, step in enumerate(denoising_steps(Schedule(diffusion.steps), diffusion)):
            assert step.timestep == stage[f"{run}.timesteps"][number]
            branches = ("model_out", "model_out_uncond") if guided else ("model_out",)
            output = np.stack([stage[f"{run}.{branch}"][number] for branch in branches])
            noise = rng.standard_normal(x.shape, np.float32) if diffusion.sampler == "p" else np.zeros_like(x)
            x, previous_x0 = step.take(x, previous_x0, output, noise)
            assert_close(previous_x0[0], stage[f"{run}.pred_xstart"][number], ARITHMETIC, f"{run} x0 of step {number}")
            assert_close(x[0], stage[f"{run}.samples"][number], ARITHMETIC, f"{run} step {number}")


@pytest.fixture(scope="module")
def backend(golden_checkpoints, golden_config) -> TorchBackend:
    return TorchBackend(open_model(checkpoints=golden_checkpoints, config=golden_config), "cpu", "fp32")


def test_complete_sampling_runs_are_upstreams(golden_stage, backend, tolerance, assert_close):
    stage = golden_stage("diffusion")
    for run in runs(stage):
        samples = stage[f"{run}.samples"]
        sampler = re.match(r"p|ddim", run).group()
        diffusion = Diffusion(len(samples), sampler, None if run.endswith("nocf") else 2.0)
        frames = frame_count(stage["latents"].shape[1])
        denoiser = backend.denoiser([stage["latents"]], stage["conditioning_latent"], [frames])
        mel = sample(denoiser, frames, diffusion, recorded_noise(stage, run))
        assert_close(mel[0], samples[-1], tolerance("diffusion", f"{run}.samples"), run)
        [mel] = spectrograms(backend, [stage["latents"][0]], stage["conditioning_latent"], diffusion,
                             [recorded_noise(stage, run)])
        assert_close(mel, stage[f"{run}.mel"], tolerance("diffusion", f"{run}.mel"), f"{run}, denormalised")
