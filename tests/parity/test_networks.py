"""Compare the values in and between networks with upstream's. test_packages.py tests the stages of every backend."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ane.models.tortoise.networks import NETWORKS


@pytest.fixture(scope="module")
def network(model) -> Callable[[str], nn.Module]:
    """``network(name)``: the PyTorch network with the golden set's weights."""

    def build(name: str) -> nn.Module:
        with torch.device("meta"):
            module = NETWORKS[name].module(model.config(name))
        module.load_state_dict(model.tensors(name), assign=True)
        return module.eval()

    return build


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.inference_mode():
        yield


def as_tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.copy())  # golden arrays are read-only, and torch has no read-only tensors


def columns(voice, cond_latent: Tensor, text_ids: Tensor, codes: Tensor) -> tuple[Tensor, int]:
    """The input of upstream's second pass, [voice][start, text, stop][start, codes, stop], and where codes begin."""
    config = voice.config

    def framed(start: int, ids: Tensor, stop: int) -> Tensor:
        return torch.cat((torch.tensor([[start]]), ids, torch.tensor([[stop]])), dim=1)

    text = framed(config.start_text_token, text_ids, config.stop_text_token)
    speech = framed(config.start_mel_token, codes, config.stop_mel_token)
    text_emb = voice.text_embedding(text) + voice.text_pos_embedding.emb.weight[: text.shape[1]]
    code_emb = voice.mel_embedding(speech) + voice.mel_pos_embedding.emb.weight[: speech.shape[1]]
    return torch.cat((cond_latent[:, None], text_emb, code_emb), dim=1), 1 + text.shape[1]


def hidden_states(voice, stage: dict[str, np.ndarray], codes: str) -> Tensor:
    """The hidden states (codes + 2, D) at upstream's code positions, all computed in one pass."""
    inputs = (as_tensor(stage[name]) for name in ("cond_latent", "text_ids", codes))
    x, begin = columns(voice, *inputs)
    return voice(x)[0, begin:]


def test_one_pass_gives_upstreams_logits_and_latents(network, golden_stage, assert_parity):
    """A latent is the hidden state that predicts its code."""
    voice = network("autoregressive")
    hidden = hidden_states(voice, golden_stage("autoregressive"), "codes")
    assert_parity(voice.logits(hidden), "autoregressive", "logits_train_positions")
    assert_parity(hidden[None, :-2], "autoregressive", "latents")
    hidden = hidden_states(voice, golden_stage("single_pass"), "codes_fixed")
    assert_parity(hidden[None, :-2], "single_pass", "second_pass_latents")


def test_clvp_latents_before_normalisation(network, golden_stage, assert_parity):
    clvp, stage = network("clvp"), golden_stage("clvp")
    text = clvp.text_latent(as_tensor(stage["text_ids"]))
    assert_parity(text.expand(len(stage["text_latent"]), -1), "clvp", "text_latent")
    assert_parity(clvp.speech_latent(as_tensor(stage["codes"])), "clvp", "speech_latent")


def test_diffusion_aligns_latents_with_mel_frames(network, golden_stage, assert_parity):
    stage = golden_stage("diffusion")
    inputs = (as_tensor(stage[name]) for name in ("latents", "conditioning_latent"))
    assert_parity(network("diffusion").condition(*inputs, stage["x"].shape[-1]), "diffusion", "code_emb")
