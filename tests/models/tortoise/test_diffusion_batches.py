"""Test that utterances which are denoised in one call get the results that they would get alone."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.denoising import Denoiser, bind_separately
from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.diffusion import MELS, Diffusion, frame_count, group_by_frames, sample, spectrograms
from ane.models.tortoise.schedule import SAMPLERS
from ane.system.errors import UserError
from tests.random_model import CONFIGS, random_model

WIDTH = CONFIGS["diffusion"].in_latent_channels
VOICE = np.random.default_rng(1).standard_normal((1, 2 * CONFIGS["diffusion"].model_channels), dtype=np.float32)
# largest error, as a share of the largest value. Sums of other shapes have another order
ROUNDING = {"fp32": 1e-4, "bf16": 0.1}

latent_counts = st.lists(st.integers(1, 40), min_size=1, max_size=5)  # number of latents of each utterance


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return TorchBackend(random_model(), "cpu", "fp32", keep=True)


def random_latents(counts: Sequence[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal((count, WIDTH), dtype=np.float32) for count in counts]


def generators(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(count)]


def assert_close(actual: np.ndarray, expected: np.ndarray, share: float) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=share * np.abs(expected).max())


@settings(deadline=None, max_examples=25)
@given(counts=latent_counts, timestep=st.integers(0, 3999), guided=st.booleans())
def test_a_prediction_in_a_batch_equals_that_of_the_utterance_alone(backend, counts, timestep, guided):
    latents, frames = [rows[None] for rows in random_latents(counts)], [frame_count(count) for count in counts]
    noisy = [
        rng.standard_normal((1, MELS, length), dtype=np.float32)
        for rng, length in zip(generators(len(counts)), frames, strict=True)
    ]
    together = backend.denoiser(latents, VOICE, frames)(noisy, timestep, guided)
    for rows, length, x, prediction in zip(latents, frames, noisy, together, strict=True):
        [alone] = backend.denoiser([rows], VOICE, [length])([x], timestep, guided)
        assert prediction.shape == alone.shape == (1 + guided, 2 * MELS, length)
        assert_close(prediction, alone, ROUNDING["fp32"])


@settings(deadline=None, max_examples=12)
@given(
    counts=latent_counts,
    limit=st.integers(0, 400),
    sampler=st.sampled_from(sorted(SAMPLERS)),
    guidance=st.sampled_from([None, 2.0]),
)
def test_a_spectrogram_does_not_depend_on_the_batch(backend, counts, limit, sampler, guidance):
    backend.max_batched_frames = limit
    diffusion, latents = Diffusion(3, sampler, guidance), random_latents(counts)
    together = spectrograms(backend, latents, VOICE, diffusion, generators(len(latents)))
    for rows, rng, mel in zip(latents, generators(len(latents)), together, strict=True):
        assert_close(mel, spectrograms(backend, [rows], VOICE, diffusion, [rng])[0], ROUNDING["fp32"])


def test_utterances_do_not_affect_each_other_in_bf16():
    backend, latents = TorchBackend(random_model(), "cpu", "bf16", keep=True), random_latents([30, 7])
    noisy = [np.zeros((1, MELS, frame_count(len(rows))), np.float32) for rows in latents]
    frames = [x.shape[-1] for x in noisy]
    denoisers = [
        backend.denoiser([rows[None] for rows in pair], VOICE, frames) for pair in (latents, [latents[0], -latents[1]])
    ]
    first, beside_another = (denoiser(noisy, 2000, True)[0] for denoiser in denoisers)
    np.testing.assert_array_equal(first, beside_another)
    [alone] = backend.denoiser([latents[0][None]], VOICE, frames[:1])(noisy[:1], 2000, True)
    assert_close(first, alone, ROUNDING["bf16"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("broken", [0, 1])
def test_a_prediction_that_is_not_finite_is_refused_for_any_utterance(broken, value):
    class BrokenDenoiser(Denoiser):
        def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
            return [
                np.full((1, 2 * MELS, each.shape[-1]), value if index == broken else 0, np.float32)
                for index, each in enumerate(x)
            ]

    with pytest.raises(UserError, match="the diffusion decoder returned NaN or infinite values"):
        sample(BrokenDenoiser(), [5, 8], Diffusion(3, "ddim", None), generators(2))


@given(lengths=st.lists(st.integers(1, 1000), max_size=20), limit=st.integers(0, 3000))
def test_consecutive_utterances_are_grouped_up_to_the_limit_of_frames(lengths, limit):
    groups = group_by_frames(lengths, limit)
    assert [index for group in groups for index in group] == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or sum(lengths[index] for index in group) <= limit
    for group, following in pairwise(groups):
        assert sum(lengths[index] for index in group) + lengths[following.start] > limit


@pytest.mark.parametrize("limit", [0, 100, 10_000])
def test_progress_counts_the_steps_of_all_utterances(backend, limit):
    backend.max_batched_frames, reports = limit, []
    latents = random_latents([5, 20, 9])
    spectrograms(backend, latents, VOICE, Diffusion(4), generators(3), lambda *report: reports.append(report))
    assert reports == sorted(set(reports))
    assert reports[-1] == (12, 12)


def test_utterances_that_are_denoised_one_by_one_are_those_alone(backend):
    latents, frames = [rows[None] for rows in random_latents([3, 4])], [frame_count(3), frame_count(4)]
    separate = bind_separately(lambda rows, length: backend.denoiser([rows], VOICE, [length]), latents, frames)
    together = sample(separate, frames, Diffusion(2, "p", 2.0), generators(2))
    for rows, length, rng, mel in zip(latents, frames, generators(2), together, strict=True):
        alone = backend.denoiser([rows], VOICE, [length])
        np.testing.assert_array_equal(mel, sample(alone, [length], Diffusion(2, "p", 2.0), [rng])[0])


def test_no_utterances_give_no_spectrograms(backend):
    assert spectrograms(backend, [], VOICE, Diffusion(2), []) == []
