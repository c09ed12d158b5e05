"""The embedded bundle, trained weights and all, says what unmodified upstream says of the same weights.

tests/parity/upstream_demo.py made the golden file, in upstream's own environment.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from ane.backends.torch.backend import TorchBackend
from ane.bundles import open_model
from ane.models.tortoise.embeddings import Embeddings
from ane.models.tortoise.vocoding import hifigan_sound

GOLDEN = Path(__file__).with_name("demo.safetensors")
FAITHFUL = 10       # times upstream's own float32 noise


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return TorchBackend(open_model(), "cpu", "fp32", keep=True)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with safe_open(GOLDEN, framework="np") as file:
        return {key: file.get_tensor(key) for key in file.keys()}       # noqa: SIM118 (no mapping)


@pytest.fixture
def given(golden) -> dict[str, np.ndarray]:
    return {key.removeprefix("in."): value for key, value in golden.items() if key.startswith("in.")}


def latents(backend: TorchBackend, given: dict[str, np.ndarray]) -> np.ndarray:
    config, codes = open_model().config("autoregressive"), given["codes"][0]
    tables = Embeddings(**backend.embeddings())
    decoder = backend.decoder(1, len(codes))
    first, _ = decoder.prefill(tables.prefix(given["ar_latent"], given["tokens"][0], config))
    hidden, _ = decoder.step(tables.codes(codes[:-1], np.arange(1, len(codes)))[None], np.array([0]))
    return np.concatenate((first[None], hidden[0]))[None]


def denoised(backend: TorchBackend, given: dict[str, np.ndarray]) -> np.ndarray:
    denoiser = backend.denoiser(given["latents"], given["diffusion_latent"], given["x"].shape[-1])
    return denoiser(given["x"], int(given["timestep"][0]), True)


def clvp(backend: TorchBackend, given: dict[str, np.ndarray]) -> np.ndarray:
    text = backend.run("clvp_text", tokens=given["tokens"])
    return (text * backend.run("clvp_speech", codes=given["codes"])).sum(axis=1)


SAID = {
    "ar_conditioning": lambda engine, given: engine.run("ar_conditioning", mel=given["clip_mel"]),
    "diffusion_conditioning": lambda engine, given: engine.run("diffusion_conditioning",
                                                               mel=given["clip_diffusion_mel"]),
    "latents": latents,
    "denoised": lambda engine, given: denoised(engine, given)[:1],
    "unconditioned": lambda engine, given: denoised(engine, given)[1:],
    "clvp": clvp,
    "univnet": lambda engine, given: engine.run("univnet", mel=given["mel"], noise=given["noise"]),
    "hifigan": lambda engine, given: hifigan_sound(engine, given["ar_latent"], given["latents"][0])[None, None],
    "rlg_auto": lambda engine, given: engine.run("ar_random", noise=given["ar_latent"]),
    "rlg_diffuser": lambda engine, given: engine.run("diffusion_random", noise=given["diffusion_latent"]),
}


def test_the_golden_file_was_made_from_the_embedded_bundle():
    with safe_open(GOLDEN, framework="np") as file:
        made_from = json.loads(file.metadata()["weights"])
    manifest = open_model().manifest
    assert made_from == {name: network.weights.sha256 for name, network in manifest.networks.items()}, \
        "run tests/parity/upstream_demo.py again: the bundle has changed"


def test_every_network_was_asked(golden):
    assert {key.removeprefix("out.") for key in golden if key.startswith("out.")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_trained_networks_say_what_upstream_says(backend, golden, given, name):
    ours, theirs = SAID[name](backend, given), golden[f"out.{name}"]
    assert ours.shape == theirs.shape
    allowed = FAITHFUL * max(float(golden[f"noise.{name}"]), float(np.spacing(np.abs(theirs).max())))
    assert np.abs(ours - theirs).max() <= allowed
