"""Test that the embedded bundle's networks return what unmodified upstream returns with the same weights.

tests/parity/upstream_demo.py wrote the golden file, in upstream's own environment.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from ane.backends.torch.backend import TorchBackend
from ane.bundles import open_model
from ane.models.tortoise.decoding import Embeddings
from ane.models.tortoise.vocoding import hifigan_sound

GOLDEN = Path(__file__).with_name("demo.safetensors")
NOISE_MULTIPLE = 10  # tolerance as a multiple of upstream's own float32 noise


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return TorchBackend(open_model("demo"), "cpu", "fp32", keep=True)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with safe_open(GOLDEN, framework="np") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)


@pytest.fixture
def inputs(golden) -> dict[str, np.ndarray]:
    return {key.removeprefix("in."): value for key, value in golden.items() if key.startswith("in.")}


def latents(backend: TorchBackend, inputs: dict[str, np.ndarray]) -> np.ndarray:
    config, codes = open_model("demo").config("autoregressive"), inputs["codes"][0]
    tables = Embeddings(**backend.embeddings())
    decoder = backend.decoder(1, len(codes))
    first, _ = decoder.prefill(tables.prefix(inputs["ar_latent"], inputs["tokens"][0], config))
    hidden, _ = decoder.step(tables.codes(codes[:-1], np.arange(1, len(codes)))[None], np.array([0]))
    return np.concatenate((first[None], hidden[0]))[None]


def denoised(backend: TorchBackend, inputs: dict[str, np.ndarray]) -> np.ndarray:
    denoiser = backend.denoiser([inputs["latents"]], inputs["diffusion_latent"], [inputs["x"].shape[-1]])
    return denoiser([inputs["x"]], int(inputs["timestep"][0]), True)[0]


def clvp(backend: TorchBackend, inputs: dict[str, np.ndarray]) -> np.ndarray:
    text = backend.run("clvp_text", tokens=inputs["tokens"])
    return (text * backend.run("clvp_speech", codes=inputs["codes"])).sum(axis=1)


OUTPUTS = {
    "ar_conditioning": lambda backend, inputs: backend.run("ar_conditioning", mel=inputs["clip_mel"]),
    "diffusion_conditioning": lambda backend, inputs: backend.run(
        "diffusion_conditioning", mel=inputs["clip_diffusion_mel"]
    ),
    "latents": latents,
    "denoised": lambda backend, inputs: denoised(backend, inputs)[:1],
    "unconditioned": lambda backend, inputs: denoised(backend, inputs)[1:],
    "clvp": clvp,
    "univnet": lambda backend, inputs: backend.run("univnet", mel=inputs["mel"], noise=inputs["noise"]),
    "hifigan": lambda backend, inputs: hifigan_sound(backend, inputs["ar_latent"], inputs["latents"][0])[None, None],
    "rlg_auto": lambda backend, inputs: backend.run("ar_random", noise=inputs["ar_latent"]),
    "rlg_diffuser": lambda backend, inputs: backend.run("diffusion_random", noise=inputs["diffusion_latent"]),
}


def test_the_golden_file_was_made_from_the_embedded_bundle():
    with safe_open(GOLDEN, framework="np") as file:
        made_from = json.loads(file.metadata()["weights"])
    manifest = open_model("demo").manifest
    assert made_from == {name: network.weights.sha256 for name, network in manifest.networks.items()}, (
        "run tests/parity/upstream_demo.py again: the bundle has changed"
    )


def test_every_output_of_the_golden_file_is_compared(golden):
    assert {key.removeprefix("out.") for key in golden if key.startswith("out.")} == set(OUTPUTS)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_trained_network_returns_upstreams_output(backend, golden, inputs, name):
    actual, expected = OUTPUTS[name](backend, inputs), golden[f"out.{name}"]
    assert actual.shape == expected.shape
    allowed = NOISE_MULTIPLE * max(float(golden[f"noise.{name}"]), float(np.spacing(np.abs(expected).max())))
    assert np.abs(actual - expected).max() <= allowed
