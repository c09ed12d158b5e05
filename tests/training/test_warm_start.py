"""Initial weights from an earlier voice."""

import dataclasses

import numpy as np
import pytest
import torch

from ane.bundles import open_model
from ane.models.tortoise.networks.clvp import CLVP
from ane.system.errors import UserError
from ane.voices import load_voice
from training.decoder import DecoderInTraining
from training.quantiser import Quantiser
from training.recipe import CONFIGS, ENTRIES, EarlierVoice, load_recipe
from training.warm_start import (
    CODE_KEYS,
    code_weights,
    copy_matching_weights,
    describe_earlier_voice,
    open_earlier_voice,
    start_decoder,
)


def test_embeddings_of_new_codes_start_as_means_of_the_earlier_codes_they_coincide_with():
    """A quantiser that always gives code 0 receives the frequencies of the earlier codes."""
    torch.manual_seed(0)
    earlier, quantiser = open_model(bundle="demo"), Quantiser(ENTRIES, 2)
    quantiser.codebook[1:] = 1e6                 # no encoding is near these
    texts, voices = ["hello there", "good morning"], ("rms", "slt")
    model = DecoderInTraining(CONFIGS["autoregressive"], 2, 0.7)
    start_decoder(model, earlier, voices, quantiser, texts)
    theirs, ours = earlier.tensors("autoregressive"), model.network.state_dict()
    old, new = earlier.config("autoregressive"), model.config
    weights = code_weights(earlier, voices, quantiser, texts)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(weights)))
    torch.testing.assert_close(weights[1], weights[2])        # never used: the frequencies overall
    torch.testing.assert_close(weights[0], weights[1])        # always used: the same
    assert (weights[0] > 0).sum() > 10
    for key in ("gpt.h.0.attn.c_attn.weight", "text_embedding.weight"):
        torch.testing.assert_close(ours[key], theirs[key].float())
    for key in CODE_KEYS:
        torch.testing.assert_close(ours[key][new.stop_mel_token], theirs[key][old.stop_mel_token].float())
        torch.testing.assert_close(ours[key][0], weights[0] @ theirs[key][:old.calm_token].float())
    voice = load_voice(earlier.voices / "slt.safetensors", "slt")
    np.testing.assert_allclose(model.voices[1].detach().numpy(), voice.ar[0])


def test_weights_of_equal_key_and_shape_are_copied_except_excluded_ones():
    earlier = open_model(bundle="demo")
    config = dataclasses.replace(earlier.config("clvp"), num_text_tokens=9)
    torch.manual_seed(0)
    network = CLVP(config)
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    copy_matching_weights(network, earlier, "clvp", ("speech_emb.weight",))
    theirs, ours = earlier.tensors("clvp"), network.state_dict()
    assert before["text_emb.weight"].shape != theirs["text_emb.weight"].shape
    for key in ours:
        excluded = key in ("speech_emb.weight", "text_emb.weight")
        torch.testing.assert_close(ours[key], before[key] if excluded else theirs[key].float())


def test_the_earlier_voice_of_the_recipe_is_found_in_the_history_of_the_repository(tmp_path):
    recipe = load_recipe()
    try:
        model = open_earlier_voice(recipe.earlier_voice, tmp_path / "earlier", recipe.voices)
    except UserError as error:
        pytest.skip(f"no full history here: {error}")
    assert model.identity == recipe.earlier_voice.identity
    again = dataclasses.replace(recipe.earlier_voice, commit="0" * 40)      # the folder is not extracted twice
    assert open_earlier_voice(again, tmp_path / "earlier", recipe.voices).identity == model.identity
    stated = describe_earlier_voice(model, recipe.earlier_voice)
    assert stated["bundle"] == model.identity
    assert stated["steps"]["autoregressive"] == 8200


def test_an_earlier_voice_outside_the_history_is_refused(tmp_path):
    with pytest.raises(UserError, match="full history"):
        open_earlier_voice(EarlierVoice("ane/demo/bundle", "0" * 40), tmp_path / "earlier", ("rms", "slt"))
    assert not list(tmp_path.iterdir())


def test_an_earlier_voice_of_another_identity_is_refused(tmp_path):
    with pytest.raises(UserError, match="the recipe names 000000"):
        open_earlier_voice(EarlierVoice("demo", identity="0" * 64), tmp_path, ("rms", "slt"))
