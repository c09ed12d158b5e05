"""Test that the stages of the golden checkpoints return upstream's outputs.

They run on torch, in Core ML packages that are interpreted in float32, and in ONNX packages on the CPU.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ane.backends.base import Backend
from ane.backends.mil import MilRuntime
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.torch.backend import TorchBackend
from ane.bundles import Bundle
from ane.bundles.package_records import PackageFolder
from ane.models.tortoise.decoding import Embeddings
from ane.models.tortoise.vocoding import hifigan_sound
from ane.system.decibels import snr_db
from converters.coreml import coreml_package as to_coreml
from converters.tortoise.tortoise_functions import FUNCTIONS

CORE_ML_SNR_DB = 90.0  # required dB. Both sides are float32, but sum in another order

Comparison = Callable[[np.ndarray, str, str], None]


@pytest.fixture(scope="module")
def model(golden_model) -> Bundle:
    return golden_model


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


@pytest.fixture(scope="module")
def onnx(model, reference, onnx_packages) -> Callable[[str], Backend]:
    """``onnx(network)``: a backend with that network as an fp32 package."""

    @cache
    def backend(network: str) -> OnnxBackend:
        found = PackageFolder(onnx_packages.folder, [onnx_packages.package(network)])
        return OnnxBackend(model, DEVICES["cpu"], reference, threads=1, unpublished=found)

    return backend


@pytest.fixture(scope="module", params=["torch", "coreml", "onnx"])
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


@pytest.mark.parametrize(("network", "kind"), [("conditioning_encoder", "ar"), ("contextual_embedder", "diffusion")])
def test_a_clip_gives_upstreams_latent(packaged, golden_stage, near, network, kind):
    latent = packaged(network).run(f"{kind}_conditioning", mel=golden_stage("audio")[f"{kind}_mel_clip1"])
    near(latent, "conditioning", f"{kind}_latent_clip1")


@pytest.mark.parametrize(("network", "kind"), [("rlg_auto", "ar"), ("rlg_diffuser", "diffusion")])
def test_noise_gives_upstreams_random_voice(packaged, golden_stage, near, network, kind):
    noise = golden_stage("random_latent")[f"{kind}_noise"]
    near(packaged(network).run(f"{kind}_random", noise=noise), "random_latent", f"{kind}_latent")


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


@pytest.mark.parametrize(("codes", "scores"), [("codes", "scores"), ("codes_500", "scores_500")])
def test_clvp_gives_upstreams_scores(packaged, golden_stage, near, codes, scores):
    backend, stage = packaged("clvp"), golden_stage("clvp")
    text = backend.run("clvp_text", tokens=stage["text_ids"].astype(np.int64))
    speech = backend.run("clvp_speech", codes=stage[codes].astype(np.int64))
    near((text * speech).sum(axis=-1), "clvp", scores)


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


def test_univnet_gives_upstreams_audio(packaged, golden_stage, near):
    stage = golden_stage("vocoder")
    near(packaged("univnet").run("univnet", mel=stage["mel"], noise=stage["z"]), "vocoder", "wave")


def test_hifigan_gives_upstreams_audio(packaged, golden_stage, near):
    stage = golden_stage("hifigan")
    sound = hifigan_sound(packaged("hifigan"), stage["speaker_latent"], stage["latents"][0])
    near(sound[None, None], "hifigan", "wave")
