"""Samplers on a problem whose answer is known: data that is one Gaussian, with the exact noise prediction."""

import numpy as np
import pytest

from ane.models.tortoise.diffusion import (
    MELS,
    SAMPLERS,
    SPACINGS,
    Diffusion,
    Schedule,
    denoising_steps,
    frame_count,
    log_snr,
    sample,
    spaced_timesteps,
    take_step,
    trained_alphas_cumprod,
)
from ane.system.errors import UserError

MEAN, DEVIATION, FRAMES = 0.1, 0.12, 40


class Exact:
    """The denoiser that training on N(MEAN, DEVIATION²) would end in, whatever it was trained to say; guided, both
    branches say the same."""

    def __init__(self, prediction: str = "epsilon"):
        self.alphas_cumprod, self.prediction = trained_alphas_cumprod(), prediction
        self.called: list[int] = []

    def kept(self, timestep: int) -> float:
        return float(self.alphas_cumprod[timestep])

    def __call__(self, x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        self.called.append(timestep)
        kept = self.kept(timestep)
        noise = np.sqrt(1 - kept) * (x - np.sqrt(kept) * MEAN) / (kept * DEVIATION**2 + 1 - kept)
        x0 = (x - np.sqrt(1 - kept) * noise) / np.sqrt(kept)
        said = {"epsilon": noise, "x0": x0, "v": np.sqrt(kept) * noise - np.sqrt(1 - kept) * x0}[self.prediction]
        output = np.concatenate((said, np.zeros_like(said)), axis=1).astype(np.float32)
        return np.repeat(output, 2, axis=0) if guided else output


def solve(sampler: str, steps: int, guidance: float | None = None,
          spacing: str = "even") -> tuple[np.ndarray, np.ndarray]:
    """What the sampler makes of seed 0's noise, and what the probability-flow ODE makes of it, which is known."""
    denoiser = Exact()
    diffusion = Diffusion(steps, sampler, guidance, spacing=spacing)
    mel = sample(denoiser, FRAMES, diffusion, np.random.default_rng(0))
    assert denoiser.called == sorted(denoiser.called, reverse=True)
    assert len(denoiser.called) == steps
    start = np.random.default_rng(0).standard_normal((1, MELS, FRAMES), dtype=np.float32)
    kept = denoiser.kept(3999)
    z = (start - np.sqrt(kept) * MEAN) / np.sqrt(kept * DEVIATION**2 + 1 - kept)
    return mel, MEAN + DEVIATION * z


@pytest.mark.parametrize(("sampler", "steps", "error"), [("ddim", 400, 0.005), ("dpm++2m", 20, 0.02)])
def test_deterministic_samplers_follow_the_flow(sampler, steps, error):
    mel, exact = solve(sampler, steps)
    assert np.abs(mel - exact).mean() < error


def test_dpm_solver_needs_fewer_steps_than_ddim():
    errors = {sampler: np.abs(np.subtract(*solve(sampler, 12))).mean() for sampler in ("ddim", "dpm++2m")}
    assert errors["dpm++2m"] < errors["ddim"] / 2


def test_the_ancestral_sampler_draws_from_the_distribution():
    mel, _ = solve("p", 200)
    assert abs(mel.mean() - MEAN) < 0.01
    assert abs(mel.std() - DEVIATION) < 0.01


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_guidance_changes_nothing_where_both_branches_agree(sampler):
    np.testing.assert_allclose(solve(sampler, 10, guidance=2.0)[0], solve(sampler, 10)[0], atol=1e-4)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2])
def test_one_and_two_steps_work(sampler, steps, spacing):
    """Upstream crashes on one step."""
    diffusion = Diffusion(steps, sampler, None, spacing=spacing)

    def anything(x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        return np.zeros((1, 2 * MELS, x.shape[-1]), np.float32)

    mel = sample(anything, 7, diffusion, np.random.default_rng(0))
    assert mel.shape == (1, MELS, 7)
    assert np.isfinite(mel).all()
    assert np.abs(mel).max() <= 1


@pytest.mark.parametrize(("sampler", "order"), [("ddim", 1), ("dpm++2m", 2)])
def test_twice_the_steps_leave_an_error_smaller_by_the_solvers_order(sampler, order):
    """Evenly spaced in λ, in which both are solvers of that order (Lu et al. 2022)."""
    some, twice = (np.abs(np.subtract(*solve(sampler, steps, spacing="logsnr"))).mean() for steps in (20, 40))
    assert np.log2(some / twice) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("sampler", ["ddim", "dpm++2m"])
@pytest.mark.parametrize("steps", [5, 10, 20])
def test_few_steps_follow_the_flow_better_when_evenly_spaced_in_log_snr(sampler, steps):
    errors = {spacing: np.abs(np.subtract(*solve(sampler, steps, spacing=spacing))).mean() for spacing in SPACINGS}
    assert errors["logsnr"] < errors["even"] / 1.5


def test_the_ancestral_sampler_draws_from_the_distribution_in_few_steps_evenly_spaced_in_log_snr():
    mel, _ = solve("p", 60, spacing="logsnr")
    assert abs(mel.mean() - MEAN) < 0.01
    assert abs(mel.std() - DEVIATION) < 0.01


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("steps", [2, 3, 17, 80, 1999, 4000])
def test_timesteps_are_distinct_and_span_the_trained_ones(steps, spacing):
    timesteps = spaced_timesteps(steps, spacing)
    assert len(timesteps) == steps
    assert timesteps[0] == 0
    assert timesteps[-1] == 3999
    assert (np.diff(timesteps) > 0).all()


@pytest.mark.parametrize("steps", [5, 10, 14])
def test_steps_in_log_snr_are_of_one_size_up_to_the_rounding_to_a_trained_timestep(steps):
    snr = log_snr(trained_alphas_cumprod())
    sizes = -np.diff(snr[spaced_timesteps(steps, "logsnr")])
    even = (snr[0] - snr[-1]) / (steps - 1)
    np.testing.assert_allclose(sizes, even, atol=np.abs(np.diff(snr)).max())
    assert sizes.sum() == pytest.approx(even * (steps - 1))


def test_a_single_step_in_log_snr_starts_where_there_is_nothing_but_noise():
    assert spaced_timesteps(1, "logsnr").tolist() == [3999]


def test_an_unknown_spacing_is_answered_with_those_there_are():
    with pytest.raises(UserError, match="even, logsnr"):
        Diffusion(spacing="karras")


def test_a_code_lasts_as_long_as_1024_samples_at_22050_hz():
    for latents in (1, 10, 500):
        assert abs(frame_count(latents) * 256 / 24000 - latents * 1024 / 22050) < 256 / 24000


def test_a_network_that_gives_nan_is_reported():
    def broken(x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        return np.full((1, 2 * MELS, x.shape[-1]), np.nan, np.float32)

    with pytest.raises(UserError, match="NaN"):
        sample(broken, 5, Diffusion(3, "p", None), np.random.default_rng(0))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("prediction", ["v", "x0"])
def test_what_the_network_predicts_makes_no_difference_when_it_is_exact(prediction, sampler):
    diffusion = Diffusion(30, sampler, 1.5)
    epsilon, other = (sample(Exact(said), FRAMES, diffusion, np.random.default_rng(3), prediction=said)
                      for said in ("epsilon", prediction))
    np.testing.assert_allclose(other, epsilon, atol=2e-3)


@pytest.mark.parametrize("prediction", ["eps", "V", ""])
def test_an_unknown_prediction_is_not_taken_for_a_known_one(prediction):
    with pytest.raises(ValueError, match="epsilon, v, x0"):
        denoising_steps(Schedule(4), Diffusion(4), prediction)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_several_steps_at_once_draw_the_same_numbers_and_give_the_same_mel(sampler):
    class Fused(Exact):
        def steps(self, guided):
            return 2, 5

        def advance(self, x, before, denoising_steps, noise):
            taken.append(len(denoising_steps))
            for step, drawn in zip(denoising_steps, noise, strict=True):
                output = self(x, step.timestep, step.guided)
                x, before = take_step(step, x, before, output, drawn)
            return x, before, output

    taken, done, diffusion = [], [], Diffusion(18, sampler, 2.0)
    fused = sample(Fused(), FRAMES, diffusion, np.random.default_rng(4), lambda step, _: done.append(step))
    np.testing.assert_array_equal(fused, sample(Exact(), FRAMES, diffusion, np.random.default_rng(4)))
    assert taken == [5, 5, 5, 2]
    assert done == [5, 10, 15, 17, 18]
