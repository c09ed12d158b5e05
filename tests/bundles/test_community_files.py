"""Tortoise's weights as its community stores them: fine-tunes alone, wrapped, renamed, halved, with more tokens."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import ane
from ane import cli
from ane.bundles import open_model
from ane.bundles.bundle import write_bundle
from ane.models.tortoise.checkpoint_files import find_files
from ane.models.tortoise.checkpoints import CheckpointDirectory, packaged_file
from ane.system.errors import UserError

GPT = "autoregressive.pth"


def wrapped(key: str) -> Callable[[dict], dict]:
    return lambda entries: {key: entries, "optimizer": {"state": {}}, "epoch": 7}


def in_parallel(entries: dict) -> dict:
    return {f"module.{key}": value for key, value in entries.items()}


def with_old_buffers(entries: dict) -> dict:
    return {**entries, "gpt.h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8),
            "gpt.h.0.attn.masked_bias": torch.tensor(-1e4), "gpt.wte.weight": torch.zeros(3, 4)}


CHANGES = {"8301_gpt.pth": lambda entries: entries, "8301_gpt_ema.pth": dict, "model.pth": wrapped("model"),
           "trained.pth": wrapped("state_dict"), "parallel.pth": in_parallel,
           "both.pth": lambda entries: wrapped("state_dict")(in_parallel(entries)), "old.pth": with_old_buffers}


def same_weights(found, expected) -> bool:
    """Whether two models have the same networks, of the same numbers."""
    def equal(name: str) -> bool:
        tensors = found.tensors(name)           # a file is read for each call
        return found.config(name) == expected.config(name) and all(
            torch.equal(tensor, tensors[key]) for key, tensor in expected.tensors(name).items())

    return found.networks == expected.networks and all(map(equal, expected.networks))


@pytest.fixture
def official(directory: Path) -> CheckpointDirectory:
    return CheckpointDirectory(directory)


@pytest.mark.parametrize("name", CHANGES)
def test_a_fine_tuned_decoder_alone_takes_the_other_networks_from_a_base(name, directory, official, original, tmp_path):
    torch.save(CHANGES[name](torch.load(directory / GPT, weights_only=True)), tmp_path / name)
    model = CheckpointDirectory(tmp_path / name, base=open_model(bundle=original))
    model.check()
    assert same_weights(model, official)


def test_sizes_stated_for_the_fine_tune_leave_those_of_the_base(directory, official, original, tmp_path):
    stated = json.loads((directory / "config.json").read_text())
    shutil.copy(directory / GPT, tmp_path / "8301_gpt.pth")
    model = CheckpointDirectory(tmp_path / "8301_gpt.pth", {GPT: stated[GPT]}, base=open_model(bundle=original))
    model.check()
    assert same_weights(model, official)


def test_safetensors_are_read(directory, official, tmp_path):
    save_file({key: tensor.clone() for key, tensor in torch.load(directory / GPT, weights_only=True).items()},
              tmp_path / "gpt.safetensors")
    assert same_weights(CheckpointDirectory(tmp_path / "gpt.safetensors", base=official), official)


def test_halved_weights_stay_halved(directory, official, tmp_path):
    halved = {key: tensor.half() for key, tensor in torch.load(directory / GPT, weights_only=True).items()}
    torch.save(halved, tmp_path / "autoregressive_half.pth")
    model = CheckpointDirectory(tmp_path / "autoregressive_half.pth", base=official)
    assert {tensor.dtype for tensor in model.tensors("autoregressive").values()} == {torch.float16}
    assert {tensor.dtype for tensor in model.tensors("clvp").values()} == {torch.float32}


def test_files_in_a_folder_named_models_are_found(directory, original):
    (directory / "models").mkdir()
    for file in directory.glob("*.pth"):
        shutil.move(file, directory / "models")
    shutil.move(directory / "config.json", directory / "models")
    assert same_weights(CheckpointDirectory(directory), open_model(bundle=original))


def test_files_of_other_names_are_known_by_their_keys(directory, original):
    for name in ("rlg_auto.pth", "rlg_diffuser.pth"):       # they have the same keys, and differ by the official widths
        (directory / name).unlink()
    names = set(find_files(directory))
    for index, name in enumerate(sorted(names)):
        (directory / name).rename(directory / f"{index}.pth")
    assert set(find_files(directory)) == names
    assert same_weights(CheckpointDirectory(directory, base=open_model(bundle=original)), open_model(bundle=original))


def test_the_config_of_coqui_is_left_aside(directory, official):
    stated = json.loads((directory / "config.json").read_text())
    coqui = {"model": "tortoise", "model_args": {"autoregressive_layers": 30}}
    (directory / "config.json").write_text(json.dumps(coqui))
    assert same_weights(CheckpointDirectory(directory, stated), official)
    with pytest.raises(UserError, match=r"config\.json"):      # without sizes the official ones are meant
        CheckpointDirectory(directory).check()


def test_a_larger_vocabulary_is_that_of_the_weights(directory, edit, edit_json):
    def grow(entries: dict) -> None:
        for key in ("text_embedding.weight", "text_head.weight", "text_head.bias"):
            entries[key] = torch.cat((entries[key], torch.ones(44, *entries[key].shape[1:])))

    edit_json(directory / "config.json", lambda stated: stated[GPT]["constructor"].pop("number_text_tokens", None)
              if "constructor" in stated[GPT] else stated[GPT].pop("number_text_tokens", None))
    before = CheckpointDirectory(directory).config("autoregressive")
    edit(directory / GPT, grow)
    after = CheckpointDirectory(directory)
    after.check()
    assert after.config("autoregressive").number_text_tokens == before.number_text_tokens + 44
    assert after.config("autoregressive").start_text_token == before.start_text_token


@pytest.mark.parametrize(("language", "text", "spoken"), [
    ("es", "¿Cómo está, 3 piñas?", "¿cómo está, tres piñas?"), ("sv", "3 öar", "3 öar"),
    ("de-AT", "21 Äpfel", "einundzwanzig äpfel"),
    ("en", "3 piñas", "three pinas"),
    (None, "3 piñas", "three pinas")])
def test_a_tokenizer_of_another_language_is_not_read_as_english(language, text, spoken, directory, tmp_path):
    tokenizer = json.loads(packaged_file("tokenizer.json").read_text())
    if language:
        tokenizer["model"]["language"] = language
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    bundle = write_bundle(CheckpointDirectory(directory), tmp_path / "spoken")
    synthesizer = ane.load(bundle.path, "torch")
    assert synthesizer.normaliser(synthesizer.request(text).settings)(text) == spoken


def test_the_command_imports_a_fine_tune_that_speaks_as_the_official_layout(directory, official, original, tmp_path):
    torch.save(wrapped("model")(torch.load(directory / GPT, weights_only=True)), tmp_path / "8301_gpt.pth")
    tuned = tmp_path / "tuned"
    assert cli.main(["import", str(tmp_path / "8301_gpt.pth"), "--base", str(original), "-o", str(tuned)]) == 0
    spoken = [ane.load(path, "torch").speak("Hi.", "random", seed=1, preset="fastest").audio
              for path in (tuned, original)]
    assert np.array_equal(*spoken)


def test_what_is_missing_and_what_would_cure_it_is_said(directory, tmp_path):
    torch.save(torch.load(directory / GPT, weights_only=True), tmp_path / "8301_gpt.pth")
    with pytest.raises(UserError, match=r"has no diffusion_decoder.pth, vocoder.pth, clvp2.pth: it is autoregressive"):
        CheckpointDirectory(tmp_path / "8301_gpt.pth")


@pytest.mark.parametrize(("keys", "message"), [
    (("speech_decoder_model.model.x", "text_encoder_model.y"), "transformers' CLVP"),
    (("generator.weight", "other.bias"), "no network of Tortoise, but"),
])
def test_another_model_is_refused_with_what_was_seen(keys, message, tmp_path, official):
    torch.save({key: torch.zeros(2) for key in keys}, tmp_path / "other.pth")
    with pytest.raises(UserError, match=message):
        CheckpointDirectory(tmp_path / "other.pth", base=official)
