"""Test that `ane import --lora` merges a LoRA as PEFT does, and refuses an adapter that it cannot merge.

The folder peft/ was written by PEFT 0.21.2, for a layer of transformers' GPT-2 and a linear layer, with the options
use_rslora, rank_pattern and alpha_pattern: the adapter, and the weights before and after ``merge_and_unload()``.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import ane
from ane.bundles import Bundle, open_model
from ane.bundles.hashes import sha256_of
from ane.bundles.writing import write_bundle
from ane.models.tortoise.checkpoints import import_tortoise
from ane.models.tortoise.lora import LoraAdapter, read_lora
from ane.models.tortoise.voices import cloning_notes
from ane.voices import Voice, load_voice, save_voice
from benchmarks.__main__ import main as benchmarks
from tests.imported import imported
from tests.refusals import refusal_of

PEFT = Path(__file__).parent / "peft"
LAYER = "gpt.h.0.attn.c_attn.weight"
FACTOR = "base_model.model.gpt.h.0.attn.c_attn.lora_A.weight"


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small files in the official layout, with their LoRA."""
    folder = tmp_path_factory.mktemp("official") / "files"
    benchmarks(["checkpoints", "--small", str(folder)])
    return folder


@pytest.fixture(scope="module")
def small(official: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Those files as a bundle, without the LoRA."""
    return imported(official, tmp_path_factory.mktemp("lora") / "small")


def test_a_lora_is_merged_bit_by_bit_as_peft_merges_it():
    stored = load_file(PEFT / "weights.safetensors")
    before, after = (
        {key.removeprefix(f"{when}."): stored[key] for key in stored if key.startswith(f"{when}.")}
        for when in ("before", "after")
    )
    merged = read_lora(PEFT).merged("autoregressive", before)
    assert merged.keys() == after.keys()
    for key, weight in after.items():
        assert torch.equal(merged[key], weight), key
        assert not torch.equal(before[key], weight), key


def test_a_fine_tune_is_imported_with_its_lora_and_speaks(official, small, tmp_path, succeed):
    source, styled = shutil.copy(official / "autoregressive.pth", tmp_path / "8301_gpt.pth"), tmp_path / "styled"
    printed = succeed("import", source, "-o", styled, "--base", small.path, "--lora", official / "lora")
    assert f"The LoRA {official / 'lora' / 'adapter_model.safetensors'} changes 3 layers" in printed
    model = open_model(styled)
    plain, changed = small.tensors("autoregressive"), model.tensors("autoregressive")
    factors = load_file(official / "lora" / "adapter_model.safetensors")
    change = 2 * (factors[FACTOR.replace("lora_A", "lora_B")] @ factors[FACTOR]).T
    assert torch.allclose(changed[LAYER], plain[LAYER] + change, atol=1e-6)
    assert {key for key in plain if not torch.equal(plain[key], changed[key])} == {
        LAYER.replace("0", str(layer)) for layer in range(3)
    }
    assert model.manifest.source["files"].keys() == {"autoregressive.pth", "lora", "adapter_config.json"}
    voice = ane.load(str(styled), "torch").voice_of_clips(np.sin(np.arange(24000), dtype=np.float32), 24000)
    assert voice.decoder == model.decoder_md5
    sounds = (ane.load(bundle.path).speak("Hello.", "random", preset="fastest", seed=1) for bundle in (small, model))
    assert not np.array_equal(*(speech.audio for speech in sounds))


def add_voices(official: Path, small: Bundle, folder: Path, decoders: dict[str, str]) -> Path:
    """A copy of the official files, with voices that these decoders made."""
    shutil.copytree(official, folder)
    (folder / "voices").mkdir()
    for name, decoder in decoders.items():
        latents = (np.zeros((1, width), np.float32) for width in small.widths)
        save_voice(folder / "voices" / f"{name}.safetensors", Voice(*latents, name, decoder=decoder[:8]))
    return folder


def test_voices_of_the_base_are_of_another_decoder_once_a_lora_is_merged(official, small, tmp_path):
    base = imported(add_voices(official, small, tmp_path / "files", {"ann": small.decoder_md5}), tmp_path / "base")
    ann = load_voice(base.voices / "ann.safetensors")
    scaled = Path(shutil.copytree(official / "lora", tmp_path / "scaled"))
    with_setting("lora_alpha", 3)(scaled)
    md5s = set()
    for lora in (None, official / "lora", scaled):
        tuned = import_tortoise(official / "autoregressive.pth", base=base, lora=lora)
        assert any("This model gets the voices of base, whose decoder differs" in note for note in tuned.notes) == bool(
            lora
        )
        md5s.add(tuned.source["decoder_md5"])
    assert len(md5s) == 3
    merged = write_bundle(tuned, tmp_path / "tuned")
    for model, differs in ((base, False), (merged, True)):
        assert any("was made with another decoder" in note for note in cloning_notes(model, ann)) == differs


def test_voices_next_to_the_checkpoints_are_of_another_decoder_once_a_lora_is_merged(official, small, tmp_path):
    styled = import_tortoise(official, lora=official / "lora").source["decoder_md5"]
    decoders = {"ann": "", "bob": small.decoder_md5, "cat": styled}
    folder = add_voices(official, small, tmp_path / "files", decoders)
    (folder / "voices" / "damaged.safetensors").write_bytes(b"x")
    for lora, others in ((None, "cat"), (official / "lora", "ann, bob, damaged")):
        notes = import_tortoise(folder, lora=lora).notes
        assert any(f"Another decoder made the voices {others}: if" in note for note in notes)


def test_a_lora_changes_only_the_network_whose_layer_has_its_shape():
    adapter = LoraAdapter(Path("lora"), {"layers.5": (torch.ones(2, 8), torch.ones(8, 2))}, {"layers.5": 1.0})
    shapes = {"rlg_auto": (8, 8), "rlg_diffuser": (16, 16)}
    adapter.check_layers({network: {"layers.5.weight": shape} for network, shape in shapes.items()})
    for network, shape in shapes.items():
        merged = adapter.merged(network, {"layers.5.weight": torch.zeros(shape)})
        assert merged["layers.5.weight"].unique().tolist() == [2.0 if network == "rlg_auto" else 0.0]


def test_a_changed_file_of_a_lora_is_not_the_recorded_one(official, tmp_path, complain):
    lora = Path(shutil.copytree(official / "lora", tmp_path / "lora"))
    recorded = tmp_path / "expected.json"
    recorded.write_text(json.dumps({"adapter_config.json": sha256_of(lora / "adapter_config.json")}))
    with_setting("lora_alpha", 3)(lora)
    assert "adapter_config.json has SHA-256" in complain(
        "import", official, "-o", tmp_path / "second", "--lora", lora, "--expect", recorded
    )


def test_a_lora_in_the_folder_of_the_checkpoints_is_merged_on_request_only(official, small, tmp_path, complain):
    folder, out = Path(shutil.copytree(official, tmp_path / "files")), tmp_path / "out"
    lora = folder / "adapter_model.safetensors"
    for file in (folder / "lora").iterdir():
        file.rename(folder / file.name)
    assert "Pass PEFT's file of a LoRA for Tortoise as --lora FILE" in complain("import", folder, "-o", out)
    assert f"The LoRA {lora} changes 3 layers" in import_tortoise(folder, lora=lora).notes
    assert "import its model and add --lora " in complain("import", lora, "-o", out, "--base", small.path)


def test_a_lora_is_read_with_all_settings_that_only_training_needs(tmp_path):
    folder = Path(shutil.copytree(PEFT, tmp_path / "lora"))
    layer = "gpt.h.0.attn.c_attn"
    for change in (
        {"alpha_pattern": None},
        {"alpha_pattern": {"attn": 1, "0.attn.c_attn": 16, "c_attn": 4}},
        {"r": 64, "lora_dropout": 0.1, "target_modules": "all-linear", "eva_config": {"rho": 2}},
    ):
        for name, value in change.items():
            with_setting(name, value)(folder)
        scale = read_lora(folder).scales[layer]
        assert scale == (16 if "0.attn" in str((folder / "adapter_config.json").read_text()) else 8) / 2**0.5


def without_config(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


def with_setting(name: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | {name: value}))

    return change


def with_factors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        file = folder / "adapter_model.safetensors"
        save_file(change(load_file(file)), file)

    return write


FAULTS = {
    "adapter_config.json is not a file: name PEFT's folder": without_config,
    "must be an object with the finite number lora_alpha": with_setting("lora_alpha", None),
    "use_dora True): merge them": with_setting("use_dora", True),
    "init_lora_weights 'pissa'": with_setting("init_lora_weights", "pissa"),
    "(alora_invocation_tokens [1, 2]): merge them": with_setting("alora_invocation_tokens", [1, 2]),
    "(target_parameters ['mel_head.weight'])": with_setting("target_parameters", ["mel_head.weight"]),
    "(lora_bias True)": with_setting("lora_bias", True),
    "(new_in_peft_1 'x')": with_setting("new_in_peft_1", "x"),
    "(use_rslora 'no')": with_setting("use_rslora", "no"),
    "must have finite numbers by layer as alpha_pattern, not {'c_attn': 'x'}": with_setting(
        "alpha_pattern", {"c_attn": "x"}
    ),
    "must have finite numbers by layer as alpha_pattern, not ['c_attn']": with_setting("alpha_pattern", ["c_attn"]),
    "lora/adapter_config.json has the alpha_pattern 'c_(', but": with_setting("alpha_pattern", {"c_(": 2}),
    "has the alpha_pattern '(.*.*)*x', but `ane` reads only names": with_setting("alpha_pattern", {"(.*.*)*x": 2}),
    "lora_alpha, as PEFT writes it": with_setting("lora_alpha", math.nan),
    "with the finite number lora_alpha, as PEFT": with_setting("lora_alpha", True),
    "an object with the finite number lora_alpha, as": with_setting("lora_alpha", 10**400),
    "alone (3 × gpt.h.N.attn.c_attn): merge": with_factors(
        lambda factors: {key: value[:0] if "lora_A" in key else value[:, :0] for key, value in factors.items()}
    ),
    "(it has no factors)": with_factors(lambda factors: {}),
    "(gpt.h.N.attn.c_attn)": with_factors(lambda factors: {key: factors[key] for key in factors if key != FACTOR}),
    "(base_model.model.gpt.h.N.attn.c_attn.lora_A.weight)": with_factors(
        lambda factors: factors | {FACTOR: factors[FACTOR] / 0}
    ),
    "(base_model.model.mel_head.bias)": with_factors(
        lambda factors: factors | {"base_model.model.mel_head.bias": torch.ones(3)}
    ),
    "changes a weight (64, 192) of gpt.h.7.attn.c_attn, but this model has no such layer": with_factors(
        lambda factors: {key.replace(".0.", ".7."): value for key, value in factors.items()}
    ),
    "changes layers.5, and both rlg_auto and rlg_diffuser have a layer of this name and shape: merge": with_factors(
        lambda factors: {
            "base_model.model.layers.5.lora_A.weight": torch.ones(2, 64),
            "base_model.model.layers.5.lora_B.weight": torch.ones(64, 2),
        }
    ),
    "changes a weight (8, 192) of gpt.h.0.attn.c_attn, but this model has (64, 192)": with_factors(
        lambda factors: factors | {FACTOR: factors[FACTOR][:, :8].contiguous()}
    ),
}


@pytest.mark.parametrize(("message", "spoil"), FAULTS.items(), ids=FAULTS)
def test_an_adapter_that_cannot_be_merged_is_refused(official, tmp_path, message, spoil):
    folder = Path(shutil.copytree(official / "lora", tmp_path / "lora"))
    spoil(folder)
    assert message in refusal_of(lambda: read_lora(folder) and import_tortoise(official, lora=folder))


def test_an_adapter_that_makes_weights_infinite_is_refused_without_a_bundle(official, tmp_path, complain):
    folder = Path(shutil.copytree(official / "lora", tmp_path / "lora"))
    with_factors(lambda factors: {key: 1e30 * value for key, value in factors.items()})(folder)
    assert "makes the weight of gpt.h.0.attn.c_attn infinite or NaN" in complain(
        "import", official, "-o", tmp_path / "out", "--lora", folder
    )
