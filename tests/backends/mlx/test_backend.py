"""Test speech on MLX: the embedded Tortoise gives what torch gives, on any thread, and a faulty decoder is rejected.

tests/backends/test_contract.py tests the decoder itself.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest

import ane
from ane.backends import load_backend
from ane.backends.mlx.backend import MlxBackend
from ane.backends.mlx.decoder import MlxDecoder
from ane.backends.mlx.diffusion import distance_buckets
from ane.backends.mlx.owner import on_owner
from ane.backends.mlx.proof import ProvenDecoders
from ane.backends.torch.backend import TorchBackend
from ane.bundles.opening import open_model
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from tests.arrays import assert_equal
from tests.backends.decoder_steps import answers, turns
from tests.refusals import assert_refused

SENTENCES = ("Hello there, old friend.", "The turtle was first, after all!", "Is this seat taken?")
DENOISER_DB = {"fp32": 120, "fp16": 60}
LANES, PREFIX, STEPS = 3, 7, 5


@pytest.fixture(scope="module")
def model():
    return open_model(bundle="demo")


@pytest.fixture(scope="module")
def reference(model) -> TorchBackend:
    return TorchBackend(model, "cpu", "fp32", keep=True, exact=True)


@pytest.fixture(scope="module")
def backend(model, reference):
    """``backend(precision)``: MLX with networks that stay loaded."""
    return lambda precision: MlxBackend(model, reference, precision, keep=True)


@pytest.fixture(scope="module")
def voice(model) -> dict[str, np.ndarray]:
    """Random latents of a voice and of an utterance of 40 codes."""
    config, random = model.config("diffusion"), np.random.default_rng(1)
    return {
        "latents": random.standard_normal((1, 40, config.in_latent_channels), np.float32),
        "conditioning": random.standard_normal((1, 2 * config.model_channels), np.float32),
    }


def decoded(engine: MlxBackend, seed: int = 0) -> list[np.ndarray]:
    """What a new decoder answers to a prefix and to steps."""
    return spoken(engine.decoder(LANES, STEPS, 1, PREFIX), seed)


def spoken(decoder: MlxDecoder, seed: int) -> list[np.ndarray]:
    return answers(decoder, turns(PREFIX, LANES, STEPS, decoder.shape.width, seed))


def test_codes_and_words_in_float32_are_those_of_torch():
    both = [ane.load("demo", backend=name, precision="fp32") for name in ("torch:cpu", "mlx")]
    for seed, text in enumerate(SENTENCES):
        torch_speech, mlx_speech = (speaker.speak(text, seed=seed) for speaker in both)
        assert torch_speech.facts == mlx_speech.facts
        assert [vars(word) for word in mlx_speech.words] == pytest.approx([vars(word) for word in torch_speech.words])
        assert snr_db(torch_speech.audio, mlx_speech.audio) > 60


@pytest.mark.parametrize("precision", DENOISER_DB)
@pytest.mark.parametrize("frames", [1, 63, 170])
def test_the_denoiser_computes_what_torch_computes(backend, reference, voice, precision, frames):
    noisy = [np.random.default_rng(frames).standard_normal((1, 100, frames), np.float32)]
    bound = [
        engine.denoiser([voice["latents"]], voice["conditioning"], [frames])
        for engine in (reference, backend(precision))
    ]
    for guided in (False, True):
        [expected], [found] = (denoiser(noisy, 917, guided) for denoiser in bound)
        assert found.shape == expected.shape == (1 + guided, 200, frames)
        assert found.dtype == np.float32
        assert snr_db(expected, found) > DENOISER_DB[precision]


def test_utterances_of_different_lengths_equal_each_alone(backend, voice):
    engine, random = backend("fp32"), np.random.default_rng(5)
    noisy = [random.standard_normal((1, 100, frames), np.float32) for frames in (20, 31)]
    latents = [voice["latents"], voice["latents"][:, :9]]
    together = engine.denoiser(latents, voice["conditioning"], [20, 31])(noisy, 3, True)
    for rows, mel, found in zip(latents, noisy, together, strict=True):
        [alone] = engine.denoiser([rows], voice["conditioning"], [mel.shape[2]])([mel], 3, True)
        np.testing.assert_array_equal(found, alone)


def test_far_distances_share_the_buckets_of_t5():
    buckets = distance_buckets(200)
    assert buckets[7, 0] == 7
    assert buckets[0, 7] == 16 + 7
    assert buckets[199, 0] == 15
    assert len(np.unique(buckets)) == 32 - 1  # keys ahead of the query have no bucket for distance 0


def test_a_decoder_made_on_one_thread_gives_the_same_on_others(backend):
    engine = backend("fp32")
    alone = [decoded(engine, seed) for seed in range(3)]
    with ThreadPoolExecutor(1) as maker, ThreadPoolExecutor(3) as users:
        decoders = [maker.submit(engine.decoder, LANES, STEPS, 1, PREFIX).result() for _ in range(3)]
        together = list(users.map(spoken, decoders, range(3)))
    for expected, found in zip(alone, together, strict=True):
        assert_equal(expected, found)


def test_networks_are_released_and_loaded_again(model, reference):
    engine = MlxBackend(model, reference, "fp32")
    before = decoded(engine)
    engine.release()
    assert engine._networks == {}
    assert_equal(before, decoded(engine))


def test_a_decoder_that_computes_wrongly_is_refused_and_a_right_one_proved_once(
    model, reference, backend, tmp_path, monkeypatch
):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    spoiled = MlxBackend(model, reference, "fp16", keep=True)
    projection = spoiled.network("autoregressive").blocks[0].c_proj
    projection.weight = on_owner(lambda: [mx.zeros_like(part) for part in projection.weight])()
    assert_refused(r"^MLX's decoder in fp16 differs too much .* dB, and 40 dB is needed", spoiled.decoder, 1, 4)
    assert not list(tmp_path.rglob("mlx/*")), "what failed is asked again"
    right = backend("fp16")
    right.decoder(1, 4)
    [record] = tmp_path.rglob("mlx/*")
    assert float(record.read_text().removesuffix(" dB\n")) > 40
    # a decoder that has passed the comparison is not compared again, so the reference gets no calls
    ProvenDecoders(model.identity, right.precision).prove(right.network("autoregressive"), reference=None)


def test_models_and_precisions_that_mlx_does_not_run_are_refused_in_a_line(backend):
    assert_refused(r"^backend mlx runs no network of heart models", ane.load, "heart", backend="mlx")
    assert_refused(r"^precision must be auto, fp16, fp32, 8bit, 4bit on MLX, got '6bit'$", backend, "6bit")


def test_auto_is_mlx_on_apple_silicon_for_a_large_tortoise_that_passes(model, monkeypatch, tmp_path, caplog):
    """The embedded bundle is copied, because an embedded voice speaks on the CPU."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("ane.backends.choosing.sys.platform", "darwin")
    monkeypatch.setattr("ane.backends.choosing.platform.machine", lambda: "arm64")
    large = open_model(bundle=shutil.copytree(model.path, tmp_path / "large"))
    assert load_backend("auto", model).name.startswith("torch")
    assert load_backend("auto", large).name.startswith("mlx:cpu fp16")
    assert load_backend("auto", large, "fp32").name.startswith("torch")
    monkeypatch.setattr(ProvenDecoders, "prove", fails)
    with caplog.at_level("INFO"):
        assert load_backend("auto", large).name.startswith("torch")
    assert caplog.messages == ["MLX has 3 dB. Running on torch instead."]


def fails(*_: object) -> None:
    raise UserError("MLX has 3 dB")
