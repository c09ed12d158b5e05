"""ONNX packages of the golden checkpoints give what upstream gives, on the CPU in float32."""

from pathlib import Path

import numpy as np
import pytest

from ane.autoregressive import Embeddings
from ane.backends.ort.backend import OrtBackend
from ane.backends.ort.providers import DEVICES
from ane.backends.pytorch import TorchBackend
from ane.model import Model, open_model
from ane.vocoding import hifigan_sound
from converters.onnx.graphs import GRAPHS
from converters.parity import Unpublished
from converters.to_onnx import OnnxOptions, write_package


@pytest.fixture(scope="module")
def model(golden_checkpoints, golden_config) -> Model:
    return open_model(checkpoints=golden_checkpoints, config=golden_config)


@pytest.fixture(scope="module")
def onnx(model, tmp_path_factory):
    """``onnx(network)``: a backend with that network as an fp32 package."""
    folder: Path = tmp_path_factory.mktemp("golden-onnx")
    reference, made = TorchBackend(model, "cpu", "fp32"), {}

    def backend(network: str) -> OrtBackend:
        if network not in made:
            package = write_package(model, network, OnnxOptions("fp32"), folder)
            made[network] = OrtBackend(Unpublished(model, folder, [package], reference), DEVICES["cpu"], reference,
                                       threads=1)
        return made[network]

    return backend


def test_the_golden_set_knows_every_network_that_is_converted(model):
    assert set(GRAPHS) == model.networks


@pytest.mark.parametrize(("network", "kind"), [("conditioning_encoder", "ar"), ("contextual_embedder", "diffusion")])
def test_a_clip_gives_upstreams_latent(onnx, golden_stage, assert_parity, network, kind):
    latent = onnx(network).run(f"{kind}_conditioning", mel=golden_stage("audio")[f"{kind}_mel_clip1"])
    assert_parity(latent, "conditioning", f"{kind}_latent_clip1")


@pytest.mark.parametrize(("network", "kind"), [("rlg_auto", "ar"), ("rlg_diffuser", "diffusion")])
def test_noise_gives_upstreams_random_voice(onnx, golden_stage, assert_parity, network, kind):
    noise = golden_stage("random_latent")[f"{kind}_noise"]
    assert_parity(onnx(network).run(f"{kind}_random", noise=noise), "random_latent", f"{kind}_latent")


def test_the_decoder_gives_upstreams_latents_and_logits(onnx, golden_stage, assert_parity, model):
    stage, backend, config = golden_stage("autoregressive"), onnx("autoregressive"), model.config("autoregressive")
    tables = Embeddings(**backend.embeddings())
    codes = stage["codes"][0]
    decoder = backend.decoder(1, len(codes) + 1)
    hidden, logits = decoder.prefill(tables.prefix(stage["cond_latent"], stage["text_ids"][0], config))
    latents, scores = [hidden], [logits]
    for position, code in enumerate(np.append(codes, config.stop_mel_token)):
        step = decoder.step(tables.codes(int(code), position + 1)[None, None], np.array([position]))
        latents.append(step[0][0, 0])
        scores.append(step[1][0])
    assert_parity(np.stack(latents)[None, :-2], "autoregressive", "latents")
    assert_parity(np.stack(scores), "autoregressive", "logits_train_positions")


@pytest.mark.parametrize(("codes", "scores"), [("codes", "scores"), ("codes_500", "scores_500")])
def test_clvp_gives_upstreams_scores(onnx, golden_stage, assert_parity, codes, scores):
    backend, stage = onnx("clvp"), golden_stage("clvp")
    text = backend.run("clvp_text", tokens=stage["text_ids"].astype(np.int64))
    speech = backend.run("clvp_speech", codes=stage[codes].astype(np.int64))
    assert_parity((text * speech).sum(axis=-1), "clvp", scores)


@pytest.mark.parametrize(("codes", "clip", "scores"), [
    ("codes", "clip1", "scores_clip1"), ("codes_500", "clip1", "scores_500_clip1")])
def test_cvvp_gives_upstreams_scores(onnx, golden_stage, assert_parity, codes, clip, scores):
    backend, stage = onnx("cvvp"), golden_stage("cvvp")
    heard = backend.run("cvvp_clip", mel=golden_stage("audio")[f"ar_mel_{clip}"])
    speech = backend.run("cvvp_speech", codes=stage[codes].astype(np.int64))
    assert_parity((heard * speech).sum(axis=-1), "cvvp", scores)


def test_the_denoiser_gives_upstreams_predictions(onnx, golden_stage, assert_parity):
    stage = golden_stage("diffusion")
    denoiser = onnx("diffusion").denoiser(stage["latents"], stage["conditioning_latent"], stage["x"].shape[-1])
    timesteps = [int(name.removeprefix("out_t")) for name in stage
                 if name.startswith("out_t") and not name.endswith("uncond")]
    assert timesteps
    for timestep in timesteps:
        conditional, unconditional = denoiser(stage["x"], timestep, True)
        assert_parity(conditional[None], "diffusion", f"out_t{timestep}")
        if f"out_t{timestep}_uncond" in stage:
            assert_parity(unconditional[None], "diffusion", f"out_t{timestep}_uncond")


def test_univnet_gives_upstreams_sound(onnx, golden_stage, assert_parity):
    stage = golden_stage("vocoder")
    assert_parity(onnx("univnet").run("univnet", mel=stage["mel"], noise=stage["z"]), "vocoder", "wave")


def test_hifigan_gives_upstreams_sound(onnx, golden_stage, assert_parity):
    stage = golden_stage("hifigan")
    sound = hifigan_sound(onnx("hifigan"), stage["speaker_latent"], stage["latents"][0])
    assert_parity(sound[None, None], "hifigan", "wave")


def test_the_classifier_gives_the_same_verdict(onnx, golden_stage, assert_parity):
    stage = golden_stage("classifier")
    assert_parity(onnx("classifier").run("classifier", audio=stage["clip"][:, None]), "classifier", "logits")
