"""Test the samplers on a problem with a known solution: data from one Gaussian, and its exact denoiser."""

import numpy as np
import pytest

from ane.backends.denoising import Denoiser
from ane.models.tortoise.diffusion import MELS, Diffusion, denoising_steps, frame_count, sample
from ane.models.tortoise.schedule import SAMPLERS, Schedule, log_snr, spaced_timesteps, trained_alphas_cumprod
from tests.refusals import assert_refused

MEAN, DEVIATION, FRAMES = 0.1, 0.12, 40

SPACINGS = "even", "logsnr"


class GaussianDenoiser(Denoiser):
    """The optimal denoiser of data from N(MEAN, DEVIATION²), for every kind of prediction; with guidance both rows are
    the same."""

    def __init__(self, prediction: str = "epsilon"):
        self.alphas_cumprod, self.prediction = trained_alphas_cumprod(), prediction
        self.called: list[int] = []

    def alpha_cumprod(self, timestep: int) -> float:
        return float(self.alphas_cumprod[timestep])

    def __call__(self, x: list[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        self.called.append(timestep)
        return [self.output(mel, timestep, guided) for mel in x]

    def output(self, x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        kept = self.alpha_cumprod(timestep)
        noise = np.sqrt(1 - kept) * (x - np.sqrt(kept) * MEAN) / (kept * DEVIATION**2 + 1 - kept)
        x0 = (x - np.sqrt(1 - kept) * noise) / np.sqrt(kept)
        prediction = {"epsilon": noise, "x0": x0, "v": np.sqrt(kept) * noise - np.sqrt(1 - kept) * x0}[self.prediction]
        output = np.concatenate((prediction, np.zeros_like(prediction)), axis=1).astype(np.float32)
        return np.repeat(output, 2, axis=0) if guided else output


class ConstantDenoiser(Denoiser):
    """Predicts one value everywhere."""

    def __init__(self, value: float):
        self.value = value

    def __call__(self, x: list[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        return [np.full((1, 2 * MELS, mel.shape[-1]), self.value, np.float32) for mel in x]


def solve(
    sampler: str, steps: int, guidance: float | None = None, spacing: str = "even"
) -> tuple[np.ndarray, np.ndarray]:
    """The sampler's result for the noise of seed 0, and the known solution of the probability-flow ODE."""
    denoiser = GaussianDenoiser()
    diffusion = Diffusion(steps, sampler, guidance, spacing=spacing)
    [mel] = sample(denoiser, [FRAMES], diffusion, [np.random.default_rng(0)])
    assert denoiser.called == sorted(denoiser.called, reverse=True)
    assert len(denoiser.called) == steps
    start = np.random.default_rng(0).standard_normal((1, MELS, FRAMES), dtype=np.float32)
    kept = denoiser.alpha_cumprod(3999)
    z = (start - np.sqrt(kept) * MEAN) / np.sqrt(kept * DEVIATION**2 + 1 - kept)
    return mel, MEAN + DEVIATION * z


@pytest.mark.parametrize(("sampler", "steps", "error"), [("ddim", 400, 0.005), ("dpm++2m", 20, 0.02)])
def test_deterministic_samplers_solve_the_probability_flow(sampler, steps, error):
    mel, exact = solve(sampler, steps)
    assert np.abs(mel - exact).mean() < error


@pytest.mark.parametrize(("steps", "spacing"), [(200, "even"), (60, "logsnr")])
def test_the_ancestral_sampler_samples_the_distribution(steps, spacing):
    mel, _ = solve("p", steps, spacing=spacing)
    assert abs(mel.mean() - MEAN) < 0.01
    assert abs(mel.std() - DEVIATION) < 0.01


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_guidance_has_no_effect_where_both_predictions_agree(sampler):
    np.testing.assert_allclose(solve(sampler, 10, guidance=2.0)[0], solve(sampler, 10)[0], atol=1e-4)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2])
def test_one_or_two_steps_return_a_finite_mel(sampler, steps, spacing):
    """Upstream crashes on one step."""
    diffusion = Diffusion(steps, sampler, None, spacing=spacing)
    [mel] = sample(ConstantDenoiser(0), [7], diffusion, [np.random.default_rng(0)])
    assert mel.shape == (1, MELS, 7)
    assert np.isfinite(mel).all()
    assert np.abs(mel).max() <= 1


@pytest.mark.parametrize(("sampler", "order"), [("ddim", 1), ("dpm++2m", 2)])
def test_twice_the_steps_reduce_the_error_by_the_order_of_the_solver(sampler, order):
    """Evenly spaced in λ, in which both are solvers of that order (Lu et al. 2022)."""
    error, error_of_twice = (np.abs(np.subtract(*solve(sampler, steps, spacing="logsnr"))).mean() for steps in (20, 40))
    assert np.log2(error / error_of_twice) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("sampler", ["ddim", "dpm++2m"])
@pytest.mark.parametrize("steps", [5, 20])
def test_few_steps_are_more_accurate_when_evenly_spaced_in_log_snr(sampler, steps):
    errors = {spacing: np.abs(np.subtract(*solve(sampler, steps, spacing=spacing))).mean() for spacing in SPACINGS}
    assert errors["logsnr"] < errors["even"] / 1.5


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("steps", [2, 3, 17, 80, 1999, 4000])
def test_timesteps_are_distinct_and_span_all_trained_ones(steps, spacing):
    timesteps = spaced_timesteps(steps, spacing)
    assert (len(timesteps), timesteps[0], timesteps[-1]) == (steps, 0, 3999)
    assert (np.diff(timesteps) > 0).all()


@pytest.mark.parametrize("steps", [5, 10, 14])
def test_steps_in_log_snr_have_equal_sizes_up_to_rounding(steps):
    snr = log_snr(trained_alphas_cumprod())
    sizes = -np.diff(snr[spaced_timesteps(steps, "logsnr")])
    even = (snr[0] - snr[-1]) / (steps - 1)
    np.testing.assert_allclose(sizes, even, atol=np.abs(np.diff(snr)).max())
    assert sizes.sum() == pytest.approx(even * (steps - 1))


def test_a_single_step_in_log_snr_starts_at_the_last_timestep():
    assert spaced_timesteps(1, "logsnr").tolist() == [3999]


def test_the_frames_of_a_code_last_as_long_as_1024_samples_at_22050_hz():
    for latents in (1, 10, 500):
        assert abs(frame_count(latents) * 256 / 24000 - latents * 1024 / 22050) < 256 / 24000


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("prediction", ["v", "x0"])
def test_an_exact_denoiser_gives_the_same_mel_for_every_kind_of_prediction(prediction, sampler):
    diffusion = Diffusion(30, sampler, 1.5)
    [epsilon], [other] = (
        sample(GaussianDenoiser(kind), [FRAMES], diffusion, [np.random.default_rng(3)], prediction=kind)
        for kind in ("epsilon", prediction)
    )
    np.testing.assert_allclose(other, epsilon, atol=2e-3)


def test_only_the_last_steps_are_guided():
    def guided(steps: int | None) -> list[bool]:
        return [step.guided for step in denoising_steps(Schedule(6), Diffusion(6, guidance_steps=steps))]

    assert guided(2) == [False] * 4 + [True] * 2
    assert guided(None) == guided(6) == guided(9) == [True] * 6


@pytest.mark.parametrize(
    ("guidance", "steps", "message"),
    [
        (None, 3, "guidance_steps has no effect without guidance"),
        (0, 3, "guidance_steps has no effect"),
        (2.0, 0, "guidance_steps must be at least 1, got 0"),
    ],
)
def test_steps_of_guidance_that_would_be_ignored_are_refused(guidance, steps, message):
    assert_refused(message, Diffusion, 10, guidance=guidance, guidance_steps=steps)


@pytest.mark.parametrize("steps", [2, 3])
def test_the_first_variance_of_the_posterior_is_the_second_as_upstream_has_it(steps):
    logarithms = Schedule(steps).posterior_log_variance_clipped
    assert logarithms[0] == logarithms[1]
