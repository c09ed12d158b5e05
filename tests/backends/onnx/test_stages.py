"""Test on ONNX Runtime that a batch equals its rows, and that the denoiser and whole speech equal torch's."""

import copy

import numpy as np
import pytest
import torch

from ane.backends import load_backend
from ane.models.tortoise.family import STAGES
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker

# Largest errors, as a share of the largest value.
LARGEST_ERROR = 1e-4
# UnivNet amplifies rounding: with random weights, torch's float32 differs from its float64 by 5e-4.
UNIVNET_ERROR = 2e-3
# The unconditioned prediction hardly varies along frames, and norms amplify the rest. With random weights, ONNX Runtime
# differs from float64 by up to 3e-3 (333 frames), and torch by up to 8e-2 when it computes both rows at once. So the
# unconditioned row is compared with float64. With the embedded voice's weights, the two differ by at most 7e-6.
UNCONDITIONED_ERROR = 5e-3


@pytest.fixture(scope="module")
def backends(bundle):
    return [load_backend(name, bundle, "fp32", threads=1, keep=True) for name in ("torch:cpu", "onnx:cpu")]


def inputs_of(stage: str, bundle, batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(length)
    sizes = {
        "B": batch,
        "L": length,
        "L+10": length + 10,
        "N": length,
        "T": length,
        "S": length,
        "samples": 500 * length,
        "D": bundle.widths[0],
        "C": bundle.widths[1],
        "Z": bundle.config("univnet").noise_dim,
    }
    return {
        name: rng.integers(0, 200, [sizes.get(axis, axis) for axis in tensor.shape])
        if tensor.dtype == "int64"
        else rng.standard_normal([sizes.get(axis, axis) for axis in tensor.shape], dtype=np.float32)
        for name, tensor in STAGES[stage].inputs.items()
    }


def error(expected: np.ndarray, actual: np.ndarray) -> float:
    assert actual.shape == expected.shape
    assert actual.dtype == np.float32
    return float(np.abs(expected - actual).max() / np.abs(expected).max())


def test_a_batch_equals_its_rows_on_every_stage(bundle, backends):
    stages = [name for name, stage in STAGES.items() if stage.network in bundle.networks]
    assert len(stages) == 8
    for stage in stages:
        threshold = UNIVNET_ERROR if stage == "univnet" else LARGEST_ERROR
        inputs = inputs_of(stage, bundle, 3, 25)
        rows = [
            backends[1].run(stage, **{name: array[row : row + 1] for name, array in inputs.items()}) for row in range(3)
        ]
        assert error(np.concatenate(rows), backends[1].run(stage, **inputs)) <= threshold, stage


def exact(backend, x: np.ndarray, timestep: int) -> np.ndarray:
    """The unconditioned prediction in float64: (200, L)."""
    network = copy.deepcopy(backend.network("diffusion")).double()
    with torch.no_grad():
        prediction = network(torch.tensor(x).double(), torch.tensor([timestep]), network.unconditioned(x.shape[-1]))
    return prediction.float().numpy()[0]


@pytest.mark.parametrize(("latents", "frames"), [(4, 17), (30, 130), (64, 280)])
@pytest.mark.parametrize("guided", [False, True])
def test_the_denoiser_returns_what_torch_returns(bundle, backends, latents, frames, guided):
    rng = np.random.default_rng(frames)
    encoded = rng.standard_normal((1, latents, bundle.widths[0]), dtype=np.float32)
    voice = rng.standard_normal((1, bundle.widths[1]), dtype=np.float32)
    both = [backend.denoiser([encoded, -encoded[:, 1:]], voice, [frames, frames - 3]) for backend in backends]
    for timestep in (3999, 12):
        x = rng.standard_normal((1, 100, frames), dtype=np.float32)
        (wanted, second), (prediction, own_second) = (each([x, -x[..., 3:]], timestep, guided) for each in both)
        assert error(second[0], own_second[0]) <= LARGEST_ERROR
        assert error(wanted[0], prediction[0]) <= LARGEST_ERROR
        if guided:
            assert error(exact(backends[0], x, timestep), prediction[1]) <= UNCONDITIONED_ERROR


@pytest.mark.parametrize("preset", ["fastest", "ultra_fast"])
def test_the_same_seed_gives_the_same_speech(bundle, backends, preset):
    settings = TortoiseSettings.of(
        preset, bundle.settings, candidates=3 if preset == "ultra_fast" else 1, sampling=Sampling(max_codes=40)
    )
    expected, actual = (
        TortoiseSpeaker(bundle, backend).speak("Hello, turtle.", seed=3, settings=settings) for backend in backends
    )
    assert actual.codes == expected.codes
    # only 40 dB, because random weights amplify rounding, most of all in UnivNet
    assert np.square(expected.audio - actual.audio).sum() <= 1e-4 * np.square(expected.audio).sum()


def test_a_call_uses_the_sessions_that_load_loaded_and_a_released_network_is_loaded_again(bundle):
    backend, noise = load_backend("onnx:cpu", bundle, "fp32", threads=1), np.ones((1, bundle.widths[0]), np.float32)
    backend.load("rlg_auto", "autoregressive")
    assert len(backend.sessions._loaded) == 3  # the functions rlg_auto, prefill and step
    first = backend.run("ar_random", noise=noise)
    decoder = backend.decoder(1, 4)
    decoder.prefill(np.ones((5, 32), np.float32))
    decoder.step(np.ones((1, 1, 32), np.float32), np.zeros(1, dtype=np.int64))
    assert len(backend.sessions._loaded) == 3
    backend.release()
    assert len(backend.sessions._loaded) == 0
    assert (backend.run("ar_random", noise=noise) == first).all()
