"""A denoiser's calls compute the same whether they are run or recorded once and replayed."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.cuda_graphs import CudaGraphRunner, run_eagerly
from ane.backends.torch.denoiser import CapturedDenoiser, CapturedOne, TorchBatchedDenoiser, TorchDenoiser
from ane.models.tortoise.diffusion import SOLVERS, Diffusion, Schedule, denoising_steps, sample, sample_batch
from tests.random_model import CONFIGS, RandomModel

CONFIG = CONFIGS["diffusion"]
VOICE = np.random.default_rng(1).standard_normal((1, 2 * CONFIG.model_channels), dtype=np.float32)


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return TorchBackend(RandomModel(), "cpu", "fp32", keep=True)


def bound(backend: TorchBackend, make: Callable[..., TorchBatchedDenoiser], frames: list[int]) -> TorchBatchedDenoiser:
    latents = [backend._to_device(draw(length, 1, length // 4, CONFIG.in_latent_channels), backend.dtype)
               for length in frames]
    return make(backend.network("diffusion"), latents, backend._to_device(VOICE, backend.dtype), frames)


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def noisy(seed: int, frames: list[int]) -> list[np.ndarray]:
    return [draw(seed + length, 1, 100, length) for length in frames]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("frames", [[40], [12, 40, 28]])
def test_buffered_calls_equal_plain_calls(backend, graphs, recorded, frames):
    run = graphs() if recorded else run_eagerly
    plain, buffered = (bound(backend, make, frames)
                       for make in (TorchBatchedDenoiser, partial(CapturedDenoiser, run=run)))
    for turn, guided in enumerate([True, False, True, True, False, False, True]):
        outputs = [denoiser(noisy(turn, frames), 900 - 100 * turn, guided) for denoiser in (plain, buffered)]
        for expected, actual in zip(*outputs, strict=True):
            assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_array_equal(actual, expected)
    if recorded:
        assert {guided: graph.replays for guided, graph in run.graphs.items()} == {True: 3, False: 2}


def test_utterances_in_turn_replay_their_own_recordings(backend, graphs):
    """A layer keeps the bias of the last length alone, which another utterance replaces."""
    lengths = [[40], [24]]
    plain, recorded = ([bound(backend, make(), frames) for frames in lengths]
                       for make in (lambda: TorchBatchedDenoiser, lambda: partial(CapturedDenoiser, run=graphs())))
    for turn in range(4):
        for frames, *both in zip(lengths, plain, recorded, strict=True):
            expected, actual = (denoiser(noisy(turn, frames), 500, True)[0] for denoiser in both)
            np.testing.assert_array_equal(actual, expected)


def test_biases_that_a_recording_reads_are_kept(backend, graphs):
    """A batch of lengths A, B, A computes that of A twice: the call reads the earlier one first."""
    denoiser = bound(backend, partial(CapturedDenoiser, run=graphs()), frames := [40, 24, 40])
    denoiser(noisy(0, frames), 500, True)
    layers = [layer for layer in backend.network("diffusion").modules() if getattr(layer, "kept", None)]
    read = [layer.kept[2] for layer in layers]
    denoiser(noisy(1, frames), 400, True)       # recorded
    held = {id(kept[2]) for kept in denoiser.biases[True] if kept is not None}
    assert {id(bias) for bias in read} <= held
    assert all(id(layer.kept[2]) in held for layer in layers)


def test_the_next_call_does_not_overwrite_returned_arrays(backend):
    denoiser = bound(backend, partial(CapturedDenoiser, run=run_eagerly), [20])
    [first] = denoiser(noisy(0, [20]), 500, True)
    kept = first.copy()
    denoiser(noisy(1, [20]), 400, True)
    np.testing.assert_array_equal(first, kept)


def test_a_denoiser_on_cuda_is_recorded(backend, graphs, monkeypatch):
    """With the backend's device named CUDA, and its tensors on the CPU."""
    made = []
    monkeypatch.setattr("ane.backends.torch.backend.CapturedDenoiser", lambda *args, run: made.append(run))
    monkeypatch.setattr(TorchBackend, "_to_device", lambda self, array, dtype, device=None: array)
    cuda = TorchBackend(RandomModel(), "cpu", "fp32", keep=True)
    cuda.network("diffusion")
    cuda.device = type("Device", (), {"type": "cuda"})()
    cuda._recording_stream = graphs().stream
    cuda.batched_denoiser([VOICE], VOICE, [40])
    assert [type(run) for run in made] == [CudaGraphRunner]


@pytest.mark.parametrize("guided_steps", [None, 4])
@pytest.mark.parametrize("sampler", SOLVERS)
@pytest.mark.parametrize("frames", [[40], [12, 40, 28]])
def test_a_sampler_on_the_device_gives_the_mel_of_the_one_in_numpy(backend, graphs, frames, sampler, guided_steps):
    """Nineteen steps: two calls of eight and one of three, or split where guidance begins."""
    diffusion = Diffusion(19, sampler, 2.0, guidance_steps=guided_steps)
    plain, captured = (bound(backend, make, frames)
                       for make in (TorchBatchedDenoiser, partial(CapturedDenoiser, run=graphs())))
    done: list[int] = []
    in_numpy, on_device = (
        sample_batch(denoiser, frames, diffusion, [np.random.default_rng(length) for length in frames], progress)
        for denoiser, progress in ((plain, lambda *_: None), (captured, lambda step, _: done.append(step))))
    assert done == ([8, 15, 19] if guided_steps else [8, 16, 19])
    for expected, actual in zip(in_numpy, on_device, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("sampler", "uses_noise"), [("p", True), ("ddim", False), ("dpm++2m", False)])
def test_noise_is_sent_to_the_device_only_for_a_sampler_that_uses_it(backend, sampler, uses_noise):
    denoiser = bound(backend, partial(CapturedDenoiser, run=run_eagerly), [24])
    steps = denoising_steps(Schedule(8), Diffusion(8, sampler))
    denoiser.advance(noisy(0, [24]), noisy(1, [24]), steps, [draw(2, 8, 100, 24)])
    assert denoiser.sampler.noise[0].device.any() == uses_noise


def test_each_step_of_the_sampler_is_one_replay(backend, graphs):
    run = graphs()
    denoiser = bound(backend, partial(CapturedDenoiser, run=run), [24])
    sample_batch(denoiser, [24], Diffusion(17, "ddim", 2.0, guidance_steps=8), [np.random.default_rng(0)])
    # the first of each kind is not recorded; the ninth without guidance is a call of its own
    assert {key: graph.replays for key, graph in run.graphs.items()} == {
        ("sampler", False): 7, ("sampler", True): 7}


def test_one_utterance_advances_as_a_batch_of_it(backend, graphs):
    captured = bound(backend, partial(CapturedDenoiser, run=run_eagerly), [24])
    one, plain = CapturedOne(captured), TorchDenoiser(bound(backend, TorchBatchedDenoiser, [24]))
    assert max(one.fused_steps(True)) > 1
    both = [sample(denoiser, 24, Diffusion(9, "p", 2.0), np.random.default_rng(3)) for denoiser in (plain, one)]
    np.testing.assert_allclose(both[1], both[0], rtol=0, atol=1e-5)
