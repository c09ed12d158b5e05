"""Several utterances denoised in one call: each gets what it gets alone, whatever its neighbours."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.base import BatchingBackend
from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.diffusion import SAMPLERS, Diffusion, frame_count, group_by_frames, spectrogram, spectrograms
from ane.models.tortoise.networks import layers
from tests.random_model import CONFIGS, RandomModel

WIDTH = CONFIGS["diffusion"].in_latent_channels
VOICE = np.random.default_rng(1).standard_normal((1, 2 * CONFIGS["diffusion"].model_channels), dtype=np.float32)
ROUNDING = {"fp32": 1e-4, "bf16": 0.1}      # of the largest value; products of other shapes are summed in another order

utterances = st.lists(st.integers(1, 40), min_size=1, max_size=5)       # latents of each


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return TorchBackend(RandomModel(), "cpu", "fp32", keep=True)


def latents(counts: Sequence[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal((count, WIDTH), dtype=np.float32) for count in counts]


def generators(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(count)]


def assert_near(actual: np.ndarray, expected: np.ndarray, share: float) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=share * np.abs(expected).max())


@settings(deadline=None, max_examples=25)
@given(counts=utterances, timestep=st.integers(0, 3999), guided=st.booleans())
def test_an_utterance_is_denoised_as_if_it_were_alone(backend, counts, timestep, guided):
    rows, frames = [array[None] for array in latents(counts)], [frame_count(count) for count in counts]
    noisy = [rng.standard_normal((1, 100, length), dtype=np.float32)
             for rng, length in zip(generators(len(counts)), frames, strict=True)]
    together = backend.batched_denoiser(rows, VOICE, frames)(noisy, timestep, guided)
    for row, length, x, said in zip(rows, frames, noisy, together, strict=True):
        alone = backend.denoiser(row, VOICE, length)(x, timestep, guided)
        assert said.shape == alone.shape == (1 + guided, 200, length)
        assert_near(said, alone, ROUNDING["fp32"])


@settings(deadline=None, max_examples=12)
@given(counts=utterances, most=st.integers(0, 400), sampler=st.sampled_from(SAMPLERS),
       guidance=st.sampled_from([None, 2.0]))
def test_a_chunk_sounds_the_same_whatever_is_sampled_with_it(backend, counts, most, sampler, guidance):
    backend.max_batched_frames = most
    diffusion, rows = Diffusion(3, sampler, guidance), latents(counts)
    together = spectrograms(backend, rows, VOICE, diffusion, generators(len(rows)))
    for row, rng, mel in zip(rows, generators(len(rows)), together, strict=True):
        assert_near(mel, spectrogram(backend, row, VOICE, diffusion, rng), ROUNDING["fp32"])


def test_half_precision_keeps_utterances_apart_too():
    backend, rows = TorchBackend(RandomModel(), "cpu", "bf16", keep=True), latents([30, 7])
    noisy = [np.zeros((1, 100, frame_count(len(row))), np.float32) for row in rows]
    frames = [x.shape[-1] for x in noisy]
    before, other = (backend.batched_denoiser([row[None] for row in pair], VOICE, frames)(noisy, 2000, True)[0]
                     for pair in (rows, [rows[0], -rows[1]]))
    np.testing.assert_array_equal(before, other)
    assert_near(before, backend.denoiser(rows[0][None], VOICE, frames[0])(noisy[0], 2000, True), ROUNDING["bf16"])


@given(lengths=st.lists(st.integers(1, 1000), max_size=20), most=st.integers(0, 3000))
def test_groups_are_neighbours_within_what_the_backend_wants(lengths, most):
    together = group_by_frames(lengths, most)
    assert [index for group in together for index in group] == list(range(len(lengths)))
    for group in together:
        assert len(group) == 1 or sum(lengths[index] for index in group) <= most
    for group, following in pairwise(together):
        assert sum(lengths[index] for index in group) + lengths[following.start] > most


@pytest.mark.parametrize("most", [0, 100, 10_000])
def test_progress_counts_the_steps_of_all_utterances(backend, most):
    backend.max_batched_frames, told = most, []
    rows = latents([5, 20, 9])
    spectrograms(backend, rows, VOICE, Diffusion(4), generators(3), lambda done, total: told.append((done, total)))
    assert told == sorted(set(told))
    assert told[-1] == (12, 12)


def test_a_backend_that_takes_one_at_a_time_is_asked_for_one_at_a_time(backend):
    class OneByOne:
        name = "one by one"
        denoiser = staticmethod(backend.denoiser)

    assert isinstance(backend, BatchingBackend)
    assert not isinstance(OneByOne(), BatchingBackend)
    rows = latents([3, 4])
    mels = spectrograms(OneByOne(), rows, VOICE, Diffusion(2), generators(2))
    assert [mel.shape[-1] for mel in mels] == [frame_count(3), frame_count(4)]


def test_nothing_to_speak_is_no_spectrogram(backend):
    assert spectrograms(backend, [], VOICE, Diffusion(2), []) == []


@pytest.mark.parametrize(("length", "block"), [(40, 2**20), (40, 2 * 40**2), (40, 1)])
def test_attention_in_blocks_is_attention(length, block, monkeypatch):
    monkeypatch.setattr(layers, "SCORES", block)
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 5, length, 8, generator=generator).unbind()
    bias = torch.randn(5, length, length, generator=generator)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
    torch.testing.assert_close(layers.attention_in_blocks(q, k, v, bias), expected.transpose(1, 2).flatten(2))


def test_a_tall_guidance_reaches_every_utterance(backend):
    """Guided rows lie beside each other for every utterance: swapped or shared rows would show at once."""
    diffusion, rows = Diffusion(2, "ddim", 2.0), latents([12, 25])
    backend.max_batched_frames = 1000
    plain, guided = (spectrograms(backend, rows, VOICE, settings, generators(2))
                     for settings in (replace(diffusion, guidance=None), diffusion))
    for without, with_guidance, row, rng in zip(plain, guided, rows, generators(2), strict=True):
        assert not np.allclose(without, with_guidance)
        assert_near(with_guidance, spectrogram(backend, row, VOICE, diffusion, rng), ROUNDING["fp32"])


def test_a_relative_bias_of_half_precision_weights_is_scaled_in_float32():
    bias = layers.RelativePositionBias(2, 23.0)
    half = layers.RelativePositionBias(2, 23.0).half()
    half.load_state_dict(bias.state_dict())
    bias.load_state_dict(half.state_dict())
    torch.testing.assert_close(half(40, torch.float32), bias(40, torch.float32), rtol=0, atol=0)
