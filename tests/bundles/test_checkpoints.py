"""Test which files of a folder with official checkpoints are loaded, and which are ignored."""

import json
import os

import numpy as np
import pytest
import torch

import ane
from ane.bundles import open_model
from ane.bundles.opening import read_constructor_arguments
from ane.bundles.torch_checkpoint import summarise_keys
from ane.bundles.weights import skeleton
from ane.models.tortoise.checkpoint_files import REQUIRED
from ane.models.tortoise.checkpoints import import_tortoise
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError
from tests.imported import imported
from tests.random_model import CONFIGS


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies that do not change when the memory-mapped file is written again."""
    return {key: tensor.clone() for key, tensor in tensors.items()}


# Loading


def test_every_network_loads_strictly_into_its_module(directory):
    model = import_tortoise(directory)
    assert model.configs.keys() == set(CONFIGS)
    for name in model.configs:
        module = skeleton(NETWORKS[name], model.configs[name])
        module.load_state_dict(model.tensors(name), strict=True, assign=True)
        assert not any(value.is_meta for value in module.state_dict().values())


def test_weight_norm_is_folded_in(directory):
    entries = torch.load(directory / "vocoder.pth", weights_only=True)["model_g"]
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(*entries["conv_pre.weight_v"].shape[1::-1], 7))
    layer.load_state_dict(
        {
            "bias": entries["conv_pre.bias"],
            "parametrizations.weight.original0": entries["conv_pre.weight_g"],
            "parametrizations.weight.original1": entries["conv_pre.weight_v"],
        }
    )
    folded = import_tortoise(directory).tensors("univnet")["conv_pre.weight"]
    torch.testing.assert_close(folded, layer.weight.detach(), rtol=1e-6, atol=1e-7)


def test_weight_norm_as_a_parametrization_gives_the_same_weights(directory, edit):
    before = copies(import_tortoise(directory).tensors("hifigan"))

    def rename_keys(entries: dict) -> None:
        for key in [key for key in entries if key.endswith(("weight_g", "weight_v"))]:
            new = key.replace("weight_g", "parametrizations.weight.original0")
            entries[new.replace("weight_v", "parametrizations.weight.original1")] = entries.pop(key)

    edit(directory / "hifidecoder.pth", rename_keys)
    after = import_tortoise(directory).tensors("hifigan")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("zipped", [True, False])
def test_weights_without_weight_norm_load_in_the_old_format_too(directory, zipped):
    before = copies(import_tortoise(directory).tensors("hifigan"))
    torch.save(before, directory / "hifidecoder.pth", _use_new_zipfile_serialization=zipped)
    after = import_tortoise(directory).tensors("hifigan")
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_half_and_double_precision_checkpoints_load(directory, edit):
    edit(directory / "clvp2.pth", lambda e: e.update({key: value.double() for key, value in e.items()}))
    edit(directory / "rlg_auto.pth", lambda e: e.update({key: value.bfloat16() for key, value in e.items()}))
    model = import_tortoise(directory)
    assert {tensor.dtype for tensor in model.tensors("clvp").values()} == {torch.float32}
    assert {tensor.dtype for tensor in model.tensors("rlg_auto").values()} == {torch.bfloat16}


def test_the_precision_is_that_of_the_decoder(directory, edit):
    assert import_tortoise(directory).precision == "fp32"
    edit(directory / "autoregressive.pth", lambda e: e.update({key: value.half() for key, value in e.items()}))
    assert import_tortoise(directory).precision == "fp16"


def test_the_widths_are_those_of_the_two_latents_of_a_voice(directory):
    loaded = torch.load(directory / "diffusion_decoder.pth", weights_only=True)
    decoder = torch.load(directory / "autoregressive.pth", weights_only=True)["final_norm.weight"]
    voice_channels = 2 * len(loaded["code_norm.weight"])
    assert imported(directory).widths == (len(decoder), voice_channels)


def test_an_import_takes_a_config_elsewhere(directory, golden_config):
    configs = import_tortoise(directory).configs
    (directory / "config.json").unlink()
    assert import_tortoise(directory, read_constructor_arguments(golden_config)).configs == configs


@pytest.mark.parametrize("name", ["directory", "file"])
def test_opening_checkpoints_names_the_import(directory, name):
    source = directory if name == "directory" else directory / "autoregressive.pth"
    for open_it in (open_model, ane.load):
        with pytest.raises(UserError, match=f"`ane import {source} -o NAME`"):
            open_it(source)


def test_the_identity_changes_with_weights_and_configs(directory, edit, edit_json):
    before = imported(directory).identity
    os.utime(directory / "clvp2.pth", ns=(1, 1))
    assert imported(directory).identity == before
    edit(directory / "clvp2.pth", lambda entries: entries["to_text_latent.weight"][0].__setitem__(3, 0.5))
    changed = imported(directory).identity
    edit_json(directory / "config.json", lambda c: c["autoregressive.pth"]["constructor"].update(heads=1))
    assert len({before, changed, imported(directory).identity}) == 3


# Files next to the checkpoints


def test_tokenizer_and_mel_norms_beside_the_checkpoints_replace_the_packaged_ones(directory):
    (directory / "mel_norms.pth").unlink()
    packaged = import_tortoise(directory)
    assert packaged.mel_norms.shape == (80,)
    assert packaged.mel_norms.dtype == np.float32
    assert len(json.loads(packaged.tokenizer)["model"]["vocab"]) == 255
    torch.save(torch.full((80,), -2.0), directory / "mel_norms.pth")
    stated = json.loads(packaged.tokenizer)
    stated["model"]["end_of_word_suffix"] = "!"
    (directory / "tokenizer.json").write_text(json.dumps(stated))
    own = import_tortoise(directory)
    assert (own.mel_norms == -2).all()
    assert json.loads(own.tokenizer)["model"]["end_of_word_suffix"] == "!"


@pytest.mark.parametrize(
    "norms",
    [
        torch.ones(81),
        {"mel_norms": torch.ones(80)},
        torch.zeros(80),
        torch.full((80,), torch.nan),
        torch.ones(80).long(),
    ],
)
def test_unusable_mel_norms_are_refused(directory, norms):
    torch.save(norms, directory / "mel_norms.pth")
    with pytest.raises(UserError, match=r"mel_norms\.pth"):
        import_tortoise(directory)


@pytest.mark.parametrize("text", ["", '{"model": 3}'])
def test_a_file_that_is_no_tokenizer_is_refused(directory, text):
    (directory / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        import_tortoise(directory)


# Surplus and optional files


def test_entries_that_inference_does_not_need_are_ignored_and_reported(directory, edit):
    edit(directory / "vocoder.pth", lambda loaded: loaded.update(epoch=7, model_d={"x": torch.zeros(1)}))
    model = import_tortoise(directory)
    surplus = model.surplus.unneeded
    layers = model.configs["autoregressive"].layers
    assert set(summarise_keys(surplus["autoregressive.pth"]).split(", ")) == {
        f"{layers} × gpt.h.N.attn.bias",
        f"{layers} × gpt.h.N.attn.masked_bias",
        "text_head.weight",
        "text_head.bias",
    }
    assert {"epoch", "model_d"} <= set(surplus["vocoder.pth"])
    assert surplus.keys() == {"autoregressive.pth", "diffusion_decoder.pth", "vocoder.pth"}


@pytest.mark.parametrize("file", sorted({NETWORKS[name].file for name in CONFIGS} - {*REQUIRED}))
def test_an_optional_file_is_missed_only_when_its_network_is_used(directory, file):
    (directory / file).unlink()
    model = imported(directory)
    network = next(name for name in NETWORKS if NETWORKS[name].file == file)
    assert network not in model.networks
    for ask in (model.config, model.tensors):
        with pytest.raises(UserError, match=file):
            ask(network)


@pytest.mark.parametrize("name", [*CONFIGS, "bigvgan"])
def test_a_skeleton_of_official_size_takes_no_memory(name):
    state = skeleton(NETWORKS[name], NETWORKS[name].official()).state_dict().values()
    assert sum(value.nbytes for value in state if not value.is_meta) < 1_000_000
    assert sum(value.nbytes for value in state) > 20_000_000
