"""Test Whisper checkpoints in all three layouts, and the one-line errors for bad checkpoints."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ane.bundles.writing import write_bundle
from ane.models.whisper.checkpoints import find_whisper_weights, import_whisper, is_whisper, whisper_files
from ane.system.errors import UserError
from tests.models.whisper.random_whisper import (
    RANKS,
    RandomSizes,
    random_tensors,
    write_ctranslate2,
    write_hugging_face,
    write_openai,
)
from tests.refusals import assert_refused, refusal_of


def without_prefix(folder: Path) -> Path:
    """A Hugging Face folder whose keys lack the prefix "model."."""
    file = write_hugging_face(folder) / "model.safetensors"
    save_file({key.removeprefix("model."): value for key, value in load_file(file).items()}, file)
    return folder


@pytest.mark.parametrize(
    ("write", "changes"),
    [
        (lambda folder: write_openai(folder).parent, {}),
        (write_hugging_face, {}),
        (lambda folder: write_hugging_face(folder, shards=3, tied=True), {}),
        (without_prefix, {}),
        (write_ctranslate2, {"alignment_heads": ((1, 0), (0, 1))}),
        (lambda folder: write_ctranslate2(folder) / "model.bin", {"alignment_heads": ((1, 0), (0, 1))}),
    ],
    ids=["a folder with a .pt file", "Hugging Face", "shards", "no prefix", "CTranslate2", "its file"],
)
def test_all_layouts_hold_the_same_model(tmp_path, openai_file, write, changes):
    path = write(tmp_path)
    theirs, ours = import_whisper(path), import_whisper(openai_file)
    assert is_whisper(path)
    assert theirs.configs["encoder"] == ours.configs["encoder"]
    assert theirs.configs["decoder"] == replace(ours.configs["decoder"], **changes)
    assert theirs.tokenizer == ours.tokenizer
    for name in ours.configs:
        tensors = theirs.tensors(name)
        assert all(torch.equal(tensor, tensors[key]) for key, tensor in ours.tensors(name).items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder/conv1/weight_scale": np.ones(8, np.float32)}, "is quantised (encoder/conv1/weight_scale): convert"),
        ({"encoder/num_heads": np.zeros(0, np.int16)}, "lacks a tensor of Whisper"),
        ({"decoder/layer_0/ffn/linear_0/weight": np.ones((3, 2), np.float32)}, "has shape 3×2, but the network has"),
        ({"decoder/layer_2/ffn/linear_0/weight": np.ones((3, 2), np.float32)}, "is missing"),
        (
            {"decoder/layer_0/self_attention/linear_0/bias": np.ones(24, np.float32)},
            "model.bin: decoder.blocks.N.attn.key",
        ),
    ],
)
def test_another_model_of_ctranslate2_is_refused_in_one_line(tmp_path, changes, message):
    assert message in refusal_of(lambda: import_whisper(write_ctranslate2(tmp_path, **changes)))


@pytest.mark.parametrize("length", [17, 23, 60, 20000])
def test_a_truncated_model_of_ctranslate2_is_refused(tmp_path, length):
    path = write_ctranslate2(tmp_path) / "model.bin"
    path.write_bytes(path.read_bytes()[:length])
    assert_refused(r"cannot be read as CTranslate2's Whisper \(.*get the file again$", import_whisper, tmp_path)


def test_the_files_of_shards_are_listed_and_a_folder_is_known_by_its_pt_file(tmp_path, openai_file):
    assert len(whisper_files(write_hugging_face(tmp_path, shards=3))[2]) == 3
    assert find_whisper_weights(openai_file.parent) == openai_file


def test_a_bundle_holds_the_model_and_cannot_speak(tmp_path, openai_file):
    checkpoint = import_whisper(openai_file)
    bundle = write_bundle(checkpoint, tmp_path / "bundle", precision="fp32")
    bundle.verify()
    assert json.loads((bundle.path / "bundle.json").read_text())["model"] == bundle.family.name == "whisper"
    assert (bundle.config("decoder"), bundle.tokenizer) == (checkpoint.configs["decoder"], checkpoint.tokenizer)
    assert all(
        torch.equal(tensor, checkpoint.tensors(name)[key])
        for name in bundle.networks
        for key, tensor in bundle.tensors(name).items()
    )
    assert not (bundle.path / "mel_norms.safetensors").exists()
    with pytest.raises(UserError, match="has no mel norms"):
        _ = bundle.mel_norms
    assert_refused(
        r"is a Whisper model: it transcribes speech .* and cannot speak$", bundle.family.synthesizer, bundle, None
    )
    assert_refused("is a Whisper model, which has no autoregressive network", bundle.require, "autoregressive")


def change(**changes):
    """A damage of a .pt file's state dict: key → value, or None to remove it."""

    def damage(content):
        for key, value in changes.items():
            content["model_state_dict"].pop(key, None)
            if value is not None:
                content["model_state_dict"][key] = value
        return content

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda content: content["model_state_dict"],
            "is not a Whisper checkpoint: it has no dims and model_state_dict",
        ),
        (lambda content: [1], "is not a Whisper checkpoint"),
        (lambda content: content | {"dims": [1]}, "is damaged"),
        (
            lambda content: content | {"dims": content["dims"] | {"n_mels": "80"}},
            "n_mels must be a positive whole number",
        ),
        (lambda content: content | {"dims": content["dims"] | {"n_audio_head": 3}}, "cannot be split among 3"),
        (
            lambda content: content | {"dims": content["dims"] | {"n_text_layer": 1}},
            "say that the decoder has 1 layers, but",
        ),
        (lambda content: content | {"dims": content["dims"] | {"n_text_layer": 3}}, "there are tensors for 2"),
        (lambda content: content | {"dims": content["dims"] | {"n_audio_layer": 10**7}}, "has 10000000 layers"),
        (
            lambda content: content | {"dims": content["dims"] | {"n_vocab": 51864}},
            "has shape 51865×8, but the network has",
        ),
        (lambda content: content | {"dims": content["dims"] | {"n_vocab": 512}}, "a vocabulary of 512 tokens"),
        (change(**{"decoder.ln.bias": None}), "decoder.ln.bias is missing"),
        (change(**{"decoder.ln.bias": 3}), "must be a tensor, not int"),
        (
            change(**{"decoder.ln.bias": torch.zeros(8, dtype=torch.int8)}),
            "is torch.int8 instead of a plain tensor of floats",
        ),
        (change(**{"gpt.wte.weight": torch.zeros(8)}), "gpt.wte.weight. The model may sound different"),
    ],
)
def test_another_pt_file_is_refused_in_one_line(tmp_path, openai_file, damage, message):
    path = tmp_path / "other.pt"
    torch.save(damage(torch.load(openai_file, weights_only=True)), path)
    assert message in refusal_of(import_whisper, path)


def test_a_pt_file_with_code_or_without_its_end_is_refused(tmp_path, openai_file):
    torch.save({"dims": RandomSizes(), "model_state_dict": {}}, tmp_path / "code.pt")
    (tmp_path / "cut.pt").write_bytes(openai_file.read_bytes()[:5000])
    for name, message in (("code.pt", "contains code"), ("cut.pt", "truncated or damaged")):
        with pytest.raises(UserError, match=message):
            import_whisper(tmp_path / name)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", {"model_type": "bert"}, "is not a Whisper checkpoint: give a .pt file"),
        (
            "config.json",
            {"model_type": "whisper"},
            "config.json: num_mel_bins must be a positive whole number, got None",
        ),
        ("config.json", None, "is not a Whisper checkpoint"),
        ("model.safetensors", None, "has no model.safetensors: download it"),
        ("model.safetensors", b"x" * 100, "cannot be read as safetensors"),
    ],
)
def test_another_folder_is_refused_in_one_line(tmp_path, hugging_face_folder, file, content, message):
    shutil.copytree(hugging_face_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert message in refusal_of(import_whisper, tmp_path)


def test_a_missing_file_is_named(tmp_path):
    write_hugging_face(tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert_refused(r"has no model-00002-of-00002.safetensors, which .*index.json lists", import_whisper, tmp_path)
    assert_refused("no such file or folder in ", lambda: import_whisper(tmp_path / "none.pt"))


@pytest.mark.parametrize(("vocabulary", "mels"), [(51864, 80), (51866, 128)])
def test_the_other_vocabularies_load(tmp_path, vocabulary, mels):
    sizes = replace(RandomSizes(), n_vocab=vocabulary, n_mels=mels)
    path = write_openai(tmp_path, sizes)
    (tmp_path / "gpt2.tiktoken").write_bytes((tmp_path / RANKS.name).read_bytes())
    model = import_whisper(path)
    assert model.configs["decoder"].n_vocab == vocabulary
    assert set(random_tensors(sizes)) == {f"{name}.{key}" for name in model.configs for key in model.tensors(name)}
