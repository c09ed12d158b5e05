"""Test that the golden checkpoints and the embedded bundle return what unmodified upstream returns with their weights.

The golden checkpoints run on torch, and in Core ML packages that are interpreted in float32.
tests/converters/test_conformance.py compares ONNX packages with torch. tools/upstream_demo.py wrote the golden file of
the embedded bundle, in upstream's own environment.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from ane.backends.base import Backend
from ane.backends.mil import MilRuntime
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.torch.backend import TorchBackend
from ane.bundles import open_model
from ane.bundles.package_records import PackageFolder
from ane.models.tortoise.decoding import Embeddings
from ane.models.tortoise.vocoding import hifigan_sound
from ane.system.decibels import snr_db
from converters.coreml import coreml_package as to_coreml
from converters.tortoise.tortoise_functions import FUNCTIONS

CORE_ML_SNR_DB = 90.0  # required dB. Both sides are float32, but sum in another order

Comparison = Callable[[np.ndarray, str, str], None]


@pytest.fixture(scope="module")
def reference(model) -> TorchBackend:
    return TorchBackend(model, "cpu", "fp32")


@pytest.fixture(scope="module")
def torch(reference) -> Callable[[str], Backend]:
    return lambda network: reference


@pytest.fixture(scope="module")
def coreml(model, reference, golden_stage, tmp_path_factory) -> Callable[[str], Backend]:
    """``coreml(network)``: a backend with that network as an fp32 package, with buckets that the golden set needs."""
    latents, frames = golden_stage("diffusion")["latents"].shape[1], golden_stage("diffusion")["x"].shape[-1]
    codes = golden_stage("autoregressive")["codes"].shape[1] + 1
    text = golden_stage("autoregressive")["text_ids"].shape[1] + 4
    options = to_coreml.CoreMLOptions(
        "fp32",
        lanes=(1, 3),
        caches=("io",),
        buckets={
            "prefill": (text + 3,),
            "step": (text + 3 * codes + 5,),
            "condition": (latents + 3,),
            "denoise": (frames + 9,),
            "steps": (1,),
            "clvp_text": (golden_stage("clvp")["text_ids"].shape[1] + 3,),
            "clvp_speech": (golden_stage("clvp")["codes"].shape[1] + 2, golden_stage("clvp")["codes_500"].shape[1]),
            "univnet": (14,),
            "hifigan": (14,),
        },
    )
    folder: Path = tmp_path_factory.mktemp("golden-coreml")

    @cache
    def backend(network: str) -> PackagedBackend:
        package = to_coreml.write_package(model, network, options, folder)
        return PackagedBackend(model, MilRuntime(), reference, unpublished=PackageFolder(folder, [package]))

    return backend


@pytest.fixture(scope="module", params=["torch", "coreml"])
def format_name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def packaged(format_name, request) -> Callable[[str], Backend]:
    """``packaged(network)``: a backend with that network, on torch or as a package of that format."""
    return request.getfixturevalue(format_name)


@pytest.fixture
def near(format_name, golden_stage, assert_parity) -> Comparison:
    """``near(actual, stage, name)``: the golden tensor, within torch's tolerance; for Core ML, ``CORE_ML_SNR_DB``."""

    def check(actual: np.ndarray, stage: str, name: str) -> None:
        assert snr_db(golden_stage(stage)[name], actual) >= CORE_ML_SNR_DB, f"{stage}/{name}"

    return check if format_name == "coreml" else assert_parity


def test_the_golden_set_has_every_network_that_is_converted(model):
    not_upstreams = {"bigvgan", "source_filter", "mel_source_filter"}
    assert {row.network for row in FUNCTIONS if row.coreml} - not_upstreams <= model.networks
    assert {row.network for row in FUNCTIONS if row.onnx} - not_upstreams == model.networks


Golden = Callable[[str], Mapping[str, np.ndarray]]


def conditioning(kind: str) -> Callable[[Backend, Golden], np.ndarray]:
    return lambda backend, golden: backend.run(f"{kind}_conditioning", mel=golden("audio")[f"{kind}_mel_clip1"])


def random_voice(kind: str) -> Callable[[Backend, Golden], np.ndarray]:
    return lambda backend, golden: backend.run(f"{kind}_random", noise=golden("random_latent")[f"{kind}_noise"])


def clvp(codes: str) -> Callable[[Backend, Golden], np.ndarray]:
    def scores(backend: Backend, golden: Golden) -> np.ndarray:
        text = backend.run("clvp_text", tokens=golden("clvp")["text_ids"].astype(np.int64))
        return (text * backend.run("clvp_speech", codes=golden("clvp")[codes].astype(np.int64))).sum(axis=-1)

    return scores


def univnet(backend: Backend, golden: Golden) -> np.ndarray:
    return backend.run("univnet", mel=golden("vocoder")["mel"], noise=golden("vocoder")["z"])


def hifigan(backend: Backend, golden: Golden) -> np.ndarray:
    return hifigan_sound(backend, golden("hifigan")["speaker_latent"], golden("hifigan")["latents"][0])[None, None]


@pytest.mark.parametrize(
    ("network", "output", "stage", "name"),
    [
        ("conditioning_encoder", conditioning("ar"), "conditioning", "ar_latent_clip1"),
        ("contextual_embedder", conditioning("diffusion"), "conditioning", "diffusion_latent_clip1"),
        ("rlg_auto", random_voice("ar"), "random_latent", "ar_latent"),
        ("rlg_diffuser", random_voice("diffusion"), "random_latent", "diffusion_latent"),
        ("clvp", clvp("codes"), "clvp", "scores"),
        ("clvp", clvp("codes_500"), "clvp", "scores_500"),
        ("univnet", univnet, "vocoder", "wave"),
        ("hifigan", hifigan, "hifigan", "wave"),
    ],
)
def test_a_network_gives_upstreams_output(packaged, golden_stage, near, network, output, stage, name):
    near(output(packaged(network), golden_stage), stage, name)


def test_the_decoder_gives_upstreams_latents_and_logits(packaged, golden_stage, near, model):
    stage, backend, config = golden_stage("autoregressive"), packaged("autoregressive"), model.config("autoregressive")
    tables = Embeddings(**backend.embeddings())
    codes = stage["codes"][0]
    decoder = backend.decoder(1, len(codes) + 1)
    hidden, logits = decoder.prefill(tables.prefix(stage["cond_latent"], stage["text_ids"][0], config))
    latents, scores = [hidden], [logits]
    for position, code in enumerate(np.append(codes, config.stop_mel_token)):
        step = decoder.step(tables.codes(int(code), position + 1)[None, None], np.array([position]))
        latents.append(step[0][0, 0])
        scores.append(step[1][0])
    near(np.stack(latents)[None, :-2], "autoregressive", "latents")
    near(np.stack(scores), "autoregressive", "logits_train_positions")


def test_the_denoiser_gives_upstreams_predictions(packaged, golden_stage, near):
    stage = golden_stage("diffusion")
    denoiser = packaged("diffusion").denoiser([stage["latents"]], stage["conditioning_latent"], [stage["x"].shape[-1]])
    timesteps = [
        int(name.removeprefix("out_t")) for name in stage if name.startswith("out_t") and not name.endswith("uncond")
    ]
    assert timesteps
    for timestep in timesteps:
        [[conditional, unconditional]] = denoiser([stage["x"].copy()], timestep, True)
        near(conditional[None], "diffusion", f"out_t{timestep}")
        if f"out_t{timestep}_uncond" in stage:
            near(unconditional[None], "diffusion", f"out_t{timestep}_uncond")


GOLDEN = Path(__file__).with_name("demo.safetensors")
NOISE_MULTIPLE = 10  # tolerance as a multiple of upstream's own float32 noise


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return TorchBackend(open_model("demo"), "cpu", "fp32", keep=True)


@pytest.fixture(scope="module")
def demo() -> dict[str, np.ndarray]:
    with safe_open(GOLDEN, framework="np") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)


@pytest.fixture
def inputs(demo) -> dict[str, np.ndarray]:
    return {key.removeprefix("in."): value for key, value in demo.items() if key.startswith("in.")}


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


def ranks(backend: TorchBackend, inputs: dict[str, np.ndarray]) -> np.ndarray:
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
    "clvp": ranks,
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
        "run tools/upstream_demo.py again: the bundle has changed"
    )


def test_every_output_of_the_golden_file_is_compared(demo):
    assert {key.removeprefix("out.") for key in demo if key.startswith("out.")} == set(OUTPUTS)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_trained_network_returns_upstreams_output(backend, demo, inputs, name):
    actual, expected = OUTPUTS[name](backend, inputs), demo[f"out.{name}"]
    assert actual.shape == expected.shape
    allowed = NOISE_MULTIPLE * max(float(demo[f"noise.{name}"]), float(np.spacing(np.abs(expected).max())))
    assert np.abs(actual - expected).max() <= allowed
