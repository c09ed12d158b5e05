"""Test which files of a folder of checkpoints are loaded, and weights in the layouts of the community."""

import functools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ane
from ane import cli
from ane.bundles import Bundle, open_model
from ane.bundles.contents import Contents
from ane.bundles.opening import read_constructor_arguments
from ane.bundles.torch_checkpoint import fold_weight_norm, summarise_keys
from ane.bundles.weights import skeleton
from ane.bundles.writing import write_bundle
from ane.models.tortoise.checkpoint_files import REQUIRED, find_files, settings_of_tokenizer
from ane.models.tortoise.checkpoints import find_voices, import_tortoise, packaged_file
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.settings import TortoiseSettings
from ane.text import NORMALISERS
from ane.voices.voice import Voice, save_voice
from tests.bundles.community_layouts import GPT, HIFIGAN, LAYOUTS, Files, write_files
from tests.edits import edit_checkpoint, edit_json
from tests.imported import contents_of, imported
from tests.random_model import CONFIGS
from tests.refusals import assert_refused


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
    gain, direction = (entries[f"conv_pre.weight_{part}"] for part in "gv")
    for stored, wanted in ((torch.float16, torch.float16), (torch.float64, torch.float32)):
        assert fold_weight_norm(gain.to(stored), direction.to(stored)).dtype == wanted


def test_weight_norm_as_a_parametrization_gives_the_same_weights(directory):
    before = copies(import_tortoise(directory).tensors("hifigan"))

    def rename_keys(entries: dict) -> None:
        for key in [key for key in entries if key.endswith(("weight_g", "weight_v"))]:
            new = key.replace("weight_g", "parametrizations.weight.original0")
            entries[new.replace("weight_v", "parametrizations.weight.original1")] = entries.pop(key)

    edit_checkpoint(directory / "hifidecoder.pth", rename_keys)
    after = import_tortoise(directory).tensors("hifigan")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("zipped", [True, False])
def test_weights_without_weight_norm_load_in_the_old_format_too(directory, zipped):
    before = copies(import_tortoise(directory).tensors("hifigan"))
    torch.save(before, directory / "hifidecoder.pth", _use_new_zipfile_serialization=zipped)
    after = import_tortoise(directory).tensors("hifigan")
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_the_precision_is_that_of_the_decoder_and_others_load_too(directory):
    assert import_tortoise(directory).precision == "fp32"
    for file, dtype in (("clvp2", torch.float64), ("rlg_auto", torch.bfloat16), ("autoregressive", torch.float16)):
        edit_checkpoint(directory / f"{file}.pth", lambda e, to=dtype: e.update({k: v.to(to) for k, v in e.items()}))
    model = import_tortoise(directory)
    assert model.precision == "fp16"
    assert {tensor.dtype for tensor in model.tensors("clvp").values()} == {torch.float32}
    assert {tensor.dtype for tensor in model.tensors("rlg_auto").values()} == {torch.bfloat16}


def test_the_identity_changes_with_weights_and_not_with_times(directory, original):
    before = Bundle(original).identity
    os.utime(directory / "clvp2.pth", ns=(1, 1))
    assert imported(directory).identity == before
    edit_checkpoint(directory / "clvp2.pth", lambda entries: entries["to_text_latent.weight"][0].__setitem__(3, 0.5))
    assert imported(directory).identity != before


# Files next to the checkpoints


def test_tokenizer_and_mel_norms_beside_the_checkpoints_replace_the_packaged_ones(directory):
    (directory / "mel_norms.pth").unlink()
    packaged = import_tortoise(directory)
    assert (packaged.mel_norms.shape, packaged.mel_norms.dtype) == ((80,), np.float32)
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
    assert_refused(r"mel_norms\.pth", import_tortoise, directory)


@pytest.mark.parametrize("text", ["", '{"model": 3}'])
def test_a_file_that_is_no_tokenizer_is_refused(directory, text):
    (directory / "tokenizer.json").write_text(text)
    assert_refused(r"tokenizer\.json", import_tortoise, directory)


# Surplus and optional files


def test_entries_that_inference_does_not_need_are_ignored_and_reported(directory):
    edit_checkpoint(directory / "vocoder.pth", lambda loaded: loaded.update(epoch=7, model_d={"x": torch.zeros(1)}))
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


def test_an_optional_file_is_missed_only_when_its_network_is_used(directory):
    optional = {name: NETWORKS[name].file for name in CONFIGS if NETWORKS[name].file not in REQUIRED}
    for file in optional.values():
        (directory / file).unlink()
    model = imported(directory)
    assert optional
    assert model.networks == set(CONFIGS) - set(optional)
    for network, file in optional.items():
        for ask in (model.config, model.tensors):
            assert_refused(file, ask, network)


@pytest.mark.parametrize("name", [*CONFIGS, "bigvgan"])
def test_a_skeleton_of_official_size_takes_no_memory(name):
    state = skeleton(NETWORKS[name], NETWORKS[name].official()).state_dict().values()
    assert sum(value.nbytes for value in state if not value.is_meta) < 1_000_000
    assert sum(value.nbytes for value in state) > 20_000_000


def assert_same_weights(found: Contents, expected: Contents) -> None:
    """Two models have the same networks, of the same numbers."""
    assert found.configs == expected.configs
    for name in expected.configs:
        ours, theirs = found.tensors(name), expected.tensors(name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.fixture(scope="module")
def files(golden_checkpoints: Path) -> Files:
    """The entries of the official files that speech needs, of HiFi-GAN and of the random voices."""
    return {
        name: torch.load(golden_checkpoints / name, weights_only=True)
        for name in (*REQUIRED, HIFIGAN, "rlg_auto.pth", "rlg_diffuser.pth")
    }


@pytest.fixture(scope="module")
def sizes(golden_config: Path) -> dict:
    """The golden sizes; the vocabulary is left to the weights."""
    sizes = read_constructor_arguments(golden_config)
    sizes[GPT]["constructor"].pop("number_text_tokens")
    return sizes


@pytest.fixture(scope="module")
def official(checkpoints: Contents) -> Contents:
    """The official files, whose tensors are read once."""
    return replace(checkpoints, tensors=functools.cache(checkpoints.tensors))


@pytest.fixture(scope="module")
def base(original: Path) -> Bundle:
    return Bundle(original)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_file_of_the_community_has_the_weights_of_the_official_files(name, files, official, base, sizes, tmp_path):
    layout, expected = LAYOUTS[name], official
    (tmp_path / "theirs").mkdir()
    changed = layout.change(files) if layout.change else files
    source = layout.write(tmp_path / "theirs", changed)
    tuned = contents_of(source, base=base) if layout.based else contents_of(source, config=sizes)
    if layout.change:
        expected = contents_of(write_files(tmp_path / "official", changed), config=sizes)
    assert_same_weights(tuned, expected)
    assert tuned.tokenizer == expected.tokenizer


def test_the_command_imports_such_a_file_with_the_licence_that_the_user_states(files, base, official, tmp_path):
    source = LAYOUTS["of Lightning, as a module"].write(tmp_path, files)
    flags = ["--base", str(base.path), "-o", str(tmp_path / "tuned"), "--license", "CC-BY-4.0"]
    assert cli.main(["import", str(source), *flags]) == 0
    assert_same_weights(Bundle(tmp_path / "tuned").contents(), official)
    assert Bundle(tmp_path / "tuned").manifest.licence == "CC-BY-4.0"


def test_sizes_stated_for_the_fine_tune_leave_those_of_the_base(directory, base, official, tmp_path):
    stated = json.loads((directory / "config.json").read_text())
    shutil.copy(directory / GPT, tmp_path / "8301_gpt.pth")
    assert_same_weights(contents_of(tmp_path / "8301_gpt.pth", config={GPT: stated[GPT]}, base=base), official)


def test_halved_weights_stay_halved(directory, base, tmp_path):
    halved = {key: tensor.half() for key, tensor in torch.load(directory / GPT, weights_only=True).items()}
    torch.save(halved, tmp_path / "autoregressive_half.pth")
    model = import_tortoise(tmp_path / "autoregressive_half.pth", base=base)
    assert {tensor.dtype for tensor in model.tensors("autoregressive").values()} == {torch.float16}
    assert {tensor.dtype for tensor in model.tensors("clvp").values()} == {torch.float32}


def test_files_of_other_names_are_known_by_their_keys(directory, base, official):
    # these networks have the same keys, and only the official widths tell them apart
    for name in ("rlg_auto.pth", "rlg_diffuser.pth"):
        (directory / name).unlink()
    names = set(find_files(directory))
    for index, name in enumerate(sorted(names)):
        (directory / name).rename(directory / f"{index}.pth")
    assert set(find_files(directory)) == names
    assert_same_weights(contents_of(directory, base=base), official)


def test_the_config_of_coqui_is_left_aside(directory, official):
    stated = json.loads((directory / "config.json").read_text())
    coqui = {"model": "tortoise", "model_args": {"autoregressive_layers": 30}}
    (directory / "config.json").write_text(json.dumps(coqui))
    assert_same_weights(contents_of(directory, config=stated), official)
    assert_refused(r"config\.json", import_tortoise, directory)  # without config.json, the official sizes are assumed


@pytest.mark.parametrize(
    ("language", "text", "spoken"),
    [
        ("es", "¿Cómo está, 3 piñas?", "¿cómo está, tres piñas?"),
        ("sv", "3 öar", "3 öar"),
        ("de-AT", "21 Äpfel", "einundzwanzig äpfel"),
        ("en", "3 piñas", "three pinas"),
        (None, "3 piñas", "three pinas"),
    ],
)
def test_a_tokenizer_of_another_language_is_not_read_as_english(language, text, spoken):
    tokenizer = json.loads(packaged_file("tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"] |= {"language": language} if language else {}
    settings = TortoiseSettings.of(model=settings_of_tokenizer(json.dumps(tokenizer)))
    assert NORMALISERS[settings.normaliser](text) == spoken


def test_the_language_of_a_tokenizer_next_to_the_checkpoints_becomes_a_setting(directory):
    file = Path(shutil.copy(packaged_file("tokenizer.json"), directory))
    edit_json(file, lambda tokenizer: tokenizer["model"].update(language="es"))
    assert import_tortoise(directory).settings == {"normaliser": "es"}


def test_a_lone_file_and_another_model_are_refused_with_what_they_are(directory, tmp_path, base):
    shutil.copy(directory / GPT, tmp_path / "8301_gpt.pth")
    assert_refused(
        r"has no diffusion_decoder.pth, vocoder.pth, clvp2.pth: it is autoregressive",
        lambda: import_tortoise(tmp_path / "8301_gpt.pth"),
    )
    torch.save({key: torch.zeros(2) for key in ("generator.weight", "other.bias")}, tmp_path / "other.pth")
    assert_refused(
        r"does not hold a Tortoise network, but generator\.weight, other\.bias",
        lambda: import_tortoise(tmp_path / "other.pth", base=base),
    )
    (tmp_path / "model_index.json").write_text("{}")
    assert_refused("is a pipeline of diffusers", import_tortoise, tmp_path)


def test_voices_of_the_base_come_with_a_fine_tune_where_their_latents_fit(directory, checkpoints, tmp_path, succeed):
    widths = len(checkpoints.tensors("autoregressive")["final_norm.weight"]), checkpoints.configs["diffusion"]
    ar, diffusion = (np.zeros((1, width), np.float32) for width in (widths[0], 2 * widths[1].model_channels))
    (directory / "voices").mkdir()
    save_voice(directory / "voices" / "ann.safetensors", Voice(ar, diffusion, "ann"))
    base = write_bundle(import_tortoise(directory), tmp_path / "base", default_voice="ann", source={})
    assert base.widths == (ar.shape[1], diffusion.shape[1])
    fine_tune = shutil.copy(directory / GPT, tmp_path / "8301_gpt.pth")
    assert "This model gets the voices of base, whose decoder differs" in " ".join(
        succeed("import", fine_tune, "--base", base.path, "-o", tmp_path / "tuned").split()
    )
    assert ane.load(tmp_path / "tuned", "torch").voices == ["ann", "random"]
    assert open_model(bundle=tmp_path / "tuned").default_voice == "ann"
    sizes = {name: base.config(name) for name in base.networks}
    wider = sizes | {"autoregressive": replace(sizes["autoregressive"], model_dim=2 * ar.shape[1])}
    assert find_voices(directory / "none", base, wider, "") == ({}, "random", [])
