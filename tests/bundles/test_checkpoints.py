"""Test which files of a folder of checkpoints are loaded, and weights in the layouts of the community."""

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
from ane.bundles.opening import family_of_checkpoints
from ane.bundles.torch_checkpoint import summarise_keys
from ane.bundles.weights import skeleton
from ane.bundles.writing import write_bundle
from ane.models.tortoise.checkpoint_files import REQUIRED, find_files
from ane.models.tortoise.checkpoints import find_voices, import_tortoise, packaged_file
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError
from ane.voices.voice import Voice, save_voice
from tests.bundles.community_layouts import GPT, HIFIGAN, LAYOUTS, Files, write_all
from tests.edits import edit_checkpoint, edit_json
from tests.imported import imported
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


def test_half_and_double_precision_checkpoints_load(directory):
    edit_checkpoint(directory / "clvp2.pth", lambda e: e.update({key: value.double() for key, value in e.items()}))
    edit_checkpoint(directory / "rlg_auto.pth", lambda e: e.update({key: value.bfloat16() for key, value in e.items()}))
    model = import_tortoise(directory)
    assert {tensor.dtype for tensor in model.tensors("clvp").values()} == {torch.float32}
    assert {tensor.dtype for tensor in model.tensors("rlg_auto").values()} == {torch.bfloat16}


def test_the_precision_is_that_of_the_decoder(directory):
    assert import_tortoise(directory).precision == "fp32"
    edit_checkpoint(
        directory / "autoregressive.pth", lambda e: e.update({key: value.half() for key, value in e.items()})
    )
    assert import_tortoise(directory).precision == "fp16"


def test_the_widths_are_those_of_the_two_latents_of_a_voice(directory):
    loaded = torch.load(directory / "diffusion_decoder.pth", weights_only=True)
    decoder = torch.load(directory / "autoregressive.pth", weights_only=True)["final_norm.weight"]
    voice_channels = 2 * len(loaded["code_norm.weight"])
    assert imported(directory).widths == (len(decoder), voice_channels)


def test_the_identity_changes_with_weights_and_configs(directory):
    before = imported(directory).identity
    os.utime(directory / "clvp2.pth", ns=(1, 1))
    assert imported(directory).identity == before
    edit_checkpoint(directory / "clvp2.pth", lambda entries: entries["to_text_latent.weight"][0].__setitem__(3, 0.5))
    changed = imported(directory).identity
    edit_json(directory / "config.json", lambda c: c["autoregressive.pth"]["constructor"].update(heads=1))
    assert len({before, changed, imported(directory).identity}) == 3


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


@pytest.mark.parametrize("file", sorted({NETWORKS[name].file for name in CONFIGS} - {*REQUIRED}))
def test_an_optional_file_is_missed_only_when_its_network_is_used(directory, file):
    (directory / file).unlink()
    model = imported(directory)
    network = next(name for name in NETWORKS if NETWORKS[name].file == file)
    assert network not in model.networks
    for ask in (model.config, model.tensors):
        assert_refused(file, ask, network)


@pytest.mark.parametrize("name", [*CONFIGS, "bigvgan"])
def test_a_skeleton_of_official_size_takes_no_memory(name):
    state = skeleton(NETWORKS[name], NETWORKS[name].official()).state_dict().values()
    assert sum(value.nbytes for value in state if not value.is_meta) < 1_000_000
    assert sum(value.nbytes for value in state) > 20_000_000


def same_weights(found, expected) -> bool:
    """Whether two models have the same networks, of the same numbers."""

    def equal(name: str) -> bool:
        tensors = found.tensors(name)  # each call reads a file
        return found.config(name) == expected.config(name) and all(
            torch.equal(tensor, tensors[key]) for key, tensor in expected.tensors(name).items()
        )

    return found.networks == expected.networks and all(map(equal, expected.networks))


@pytest.fixture(scope="module")
def files(golden_checkpoints: Path) -> Files:
    """The entries of the official files that speech needs, of HiFi-GAN and of the random voices."""
    return {
        name: torch.load(golden_checkpoints / name, weights_only=True)
        for name in (*REQUIRED, HIFIGAN, "rlg_auto.pth", "rlg_diffuser.pth")
    }


@pytest.fixture(scope="module")
def sizes(golden_config: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The flag for the golden sizes; the vocabulary is left to the weights."""
    path = Path(shutil.copy(golden_config, tmp_path_factory.mktemp("sizes") / "sizes.json"))
    edit_json(path, lambda stated: stated[GPT]["constructor"].pop("number_text_tokens"))
    return ["--config", str(path)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_file_of_the_community_has_the_weights_of_the_official_layout(name, files, original, sizes, tmp_path):
    layout, reference = LAYOUTS[name], original
    (tmp_path / "theirs").mkdir()
    changed = layout.change(files) if layout.change else files
    source = layout.write(tmp_path / "theirs", changed)
    base = ["--base", str(original)] if layout.based else sizes
    assert cli.main(["import", str(source), *base, "-o", str(tmp_path / "tuned")]) == 0
    if layout.change:
        official, reference = write_all(tmp_path / "official", changed), tmp_path / "reference"
        assert cli.main(["import", str(official), *sizes, "-o", str(reference)]) == 0
    tuned, expected = open_model(bundle=tmp_path / "tuned"), open_model(bundle=reference)
    assert same_weights(tuned, expected)
    assert tuned.tokenizer == expected.tokenizer


def test_the_licence_that_the_user_states_is_recorded(directory, tmp_path):
    assert cli.main(["import", str(directory), "-o", str(tmp_path / "own"), "--license", "CC-BY-4.0"]) == 0
    assert open_model(tmp_path / "own").manifest.licence == "CC-BY-4.0"


@pytest.fixture
def official(directory: Path) -> Bundle:
    return imported(directory)


def test_sizes_stated_for_the_fine_tune_leave_those_of_the_base(directory, official, original, tmp_path):
    stated = json.loads((directory / "config.json").read_text())
    shutil.copy(directory / GPT, tmp_path / "8301_gpt.pth")
    model = imported(tmp_path / "8301_gpt.pth", config={GPT: stated[GPT]}, base=open_model(bundle=original))
    assert same_weights(model, official)


def test_halved_weights_stay_halved(directory, official, tmp_path):
    halved = {key: tensor.half() for key, tensor in torch.load(directory / GPT, weights_only=True).items()}
    torch.save(halved, tmp_path / "autoregressive_half.pth")
    model = import_tortoise(tmp_path / "autoregressive_half.pth", base=official)
    assert {tensor.dtype for tensor in model.tensors("autoregressive").values()} == {torch.float16}
    assert {tensor.dtype for tensor in model.tensors("clvp").values()} == {torch.float32}


@pytest.mark.parametrize("suffix", [".ckpt", ".pt"])
def test_a_fine_tune_is_known_by_its_content_whatever_its_suffix(suffix, directory, official, original):
    tuned = directory.parent / f"tuned{suffix}"
    shutil.copy(directory / GPT, tuned)
    assert family_of_checkpoints(tuned).name == "tortoise"
    assert same_weights(imported(tuned, base=open_model(bundle=original)), official)


def test_files_of_other_names_are_known_by_their_keys(directory, original):
    # these networks have the same keys, and only the official widths tell them apart
    for name in ("rlg_auto.pth", "rlg_diffuser.pth"):
        (directory / name).unlink()
    names = set(find_files(directory))
    for index, name in enumerate(sorted(names)):
        (directory / name).rename(directory / f"{index}.pth")
    assert set(find_files(directory)) == names
    assert same_weights(imported(directory, base=open_model(bundle=original)), open_model(bundle=original))


def test_the_config_of_coqui_is_left_aside(directory, official):
    stated = json.loads((directory / "config.json").read_text())
    coqui = {"model": "tortoise", "model_args": {"autoregressive_layers": 30}}
    (directory / "config.json").write_text(json.dumps(coqui))
    assert same_weights(imported(directory, config=stated), official)
    with pytest.raises(UserError, match=r"config\.json"):  # without config.json, the official sizes are assumed
        import_tortoise(directory)


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
def test_a_tokenizer_of_another_language_is_not_read_as_english(language, text, spoken, directory, tmp_path):
    file = Path(shutil.copy(packaged_file("tokenizer.json"), directory))
    edit_json(file, lambda tokenizer: tokenizer["model"].update({"language": language} if language else {}))
    bundle = write_bundle(import_tortoise(directory), tmp_path / "spoken")
    synthesizer = ane.load(bundle.path, "torch")
    assert synthesizer.normaliser(synthesizer.request(text).settings)(text) == spoken


def test_a_lone_file_and_another_model_are_refused_with_what_they_are(directory, tmp_path, official):
    shutil.copy(directory / GPT, tmp_path / "8301_gpt.pth")
    assert_refused(
        r"has no diffusion_decoder.pth, vocoder.pth, clvp2.pth: it is autoregressive",
        lambda: import_tortoise(tmp_path / "8301_gpt.pth"),
    )
    torch.save({key: torch.zeros(2) for key in ("generator.weight", "other.bias")}, tmp_path / "other.pth")
    assert_refused(
        r"does not hold a Tortoise network, but generator\.weight, other\.bias",
        lambda: import_tortoise(tmp_path / "other.pth", base=official),
    )
    (tmp_path / "model_index.json").write_text("{}")
    assert_refused("is a pipeline of diffusers", import_tortoise, tmp_path)


def test_voices_of_the_base_come_with_a_fine_tune_where_their_latents_fit(directory, tmp_path, succeed):
    (directory / "voices").mkdir()
    ar, diffusion = (np.zeros((1, width), np.float32) for width in imported(directory).widths)
    save_voice(directory / "voices" / "ann.safetensors", Voice(ar, diffusion, "ann"))
    base = write_bundle(import_tortoise(directory), tmp_path / "base", default_voice="ann", source={})
    fine_tune = shutil.copy(directory / GPT, tmp_path / "8301_gpt.pth")
    assert "This model gets the voices of base, whose decoder differs" in " ".join(
        succeed("import", fine_tune, "--base", base.path, "-o", tmp_path / "tuned").split()
    )
    assert ane.load(tmp_path / "tuned", "torch").voices == ["ann", "random"]
    assert open_model(bundle=tmp_path / "tuned").default_voice == "ann"
    sizes = {name: base.config(name) for name in base.networks}
    wider = sizes | {"autoregressive": replace(sizes["autoregressive"], model_dim=2 * ar.shape[1])}
    assert find_voices(directory / "none", base, wider, "") == ({}, "random", [])
