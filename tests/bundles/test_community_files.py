"""Test Tortoise's weights in community layouts: single fine-tunes, wrapped, renamed, halved or with more tokens."""

import json
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
from ane.bundles.writing import write_bundle
from ane.models.tortoise.checkpoint_files import REQUIRED, find_files
from ane.models.tortoise.checkpoints import find_voices, import_tortoise, packaged_file
from ane.system.errors import UserError
from ane.voices.voice import Voice, save_voice
from tests.bundles.community_layouts import GPT, HIFIGAN, LAYOUTS, Files, write_all
from tests.imported import imported


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
    stated = json.loads(golden_config.read_text())
    del stated[GPT]["constructor"]["number_text_tokens"]
    path = tmp_path_factory.mktemp("sizes") / "sizes.json"
    path.write_text(json.dumps(stated))
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
    tokenizer = json.loads(packaged_file("tokenizer.json").read_text())
    if language:
        tokenizer["model"]["language"] = language
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    bundle = write_bundle(import_tortoise(directory), tmp_path / "spoken")
    synthesizer = ane.load(bundle.path, "torch")
    assert synthesizer.normaliser(synthesizer.request(text).settings)(text) == spoken


def test_a_lone_file_and_another_model_are_refused_with_what_they_are(directory, tmp_path, official):
    shutil.copy(directory / GPT, tmp_path / "8301_gpt.pth")
    with pytest.raises(UserError, match=r"has no diffusion_decoder.pth, vocoder.pth, clvp2.pth: it is autoregressive"):
        import_tortoise(tmp_path / "8301_gpt.pth")
    torch.save({key: torch.zeros(2) for key in ("generator.weight", "other.bias")}, tmp_path / "other.pth")
    with pytest.raises(UserError, match=r"does not hold a Tortoise network, but generator\.weight, other\.bias"):
        import_tortoise(tmp_path / "other.pth", base=official)
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(UserError, match="is a pipeline of diffusers"):
        import_tortoise(tmp_path)


def test_voices_of_the_base_come_with_a_fine_tune_where_their_latents_fit(directory, tmp_path, capsys):
    (directory / "voices").mkdir()
    ar, diffusion = (np.zeros((1, width), np.float32) for width in imported(directory).widths)
    save_voice(directory / "voices" / "ann.safetensors", Voice(ar, diffusion, "ann"))
    base = write_bundle(import_tortoise(directory), tmp_path / "base", default_voice="ann", source={})
    fine_tune = shutil.copy(directory / GPT, tmp_path / "8301_gpt.pth")
    assert cli.main(["import", str(fine_tune), "--base", str(base.path), "-o", str(tmp_path / "tuned")]) == 0
    assert "This model gets the voices of base, whose decoder differs" in " ".join(capsys.readouterr().out.split())
    assert ane.load(tmp_path / "tuned", "torch").voices == ["ann", "random"]
    assert open_model(bundle=tmp_path / "tuned").default_voice == "ann"
    sizes = {name: base.config(name) for name in base.networks}
    wider = sizes | {"autoregressive": replace(sizes["autoregressive"], model_dim=2 * ar.shape[1])}
    assert find_voices(directory / "none", base, wider, "") == ({}, "random", [])
