"""Test FastSpeech checkpoints: sizes come from the tensors, and one clear line rejects any other file."""

import numpy as np
import pytest
import torch

from ane.bundles.bundle import Bundle
from ane.bundles.writing import write_bundle
from ane.models.fastspeech.checkpoints import import_fastspeech
from ane.system.errors import UserError
from tests.fastspeech_files import SMALL, V1, fastspeech_entries, write_fastspeech, write_hifigan
from tests.imported import imported


def test_sizes_are_read_from_the_tensors_of_a_checkpoint_or_a_plain_state_dict(files, tmp_path):
    torch.save(fastspeech_entries(), tmp_path / "plain.pt")
    assert imported(tmp_path / "plain.pt").config("fastspeech") == SMALL
    model = import_fastspeech(files / "checkpoint.pt")
    assert model.configs == {"fastspeech": SMALL}
    assert model.surplus.unneeded == {
        "checkpoint.pt": ["step", "optim", "phoneme_side.position.weight", "mel_side.position.weight"]
    }


def test_a_bundle_keeps_the_family_the_sizes_and_the_weights(files, tmp_path):
    model = import_fastspeech(files / "checkpoint.pt", {"padding": "published"}, vocoder=files / "generator.pth")
    bundle = write_bundle(model, tmp_path / "bundle", precision="fp16")
    bundle.verify()
    again = Bundle(tmp_path / "bundle")
    assert (again.family.name, again.precision, again.networks) == ("fastspeech", "fp16", model.configs.keys())
    assert again.config("fastspeech").padding == "published"
    assert again.config("vocoder") == V1
    for network in model.configs:
        for key, tensor in model.tensors(network).items():
            np.testing.assert_allclose(again.tensors(network)[key].float(), tensor, rtol=1e-3, atol=1e-6)
    assert sorted(path.name for path in again.path.iterdir()) == ["bundle.json", "weights"]
    with pytest.raises(UserError, match="is a FastSpeech model, which has no tokenizer"):
        _ = again.tokenizer
    with pytest.raises(UserError, match="which has no voices"):
        _ = again.widths


def without(key):
    return lambda entries: entries.pop(key)


def resized(key, *shape):
    return lambda entries: entries.update({key: torch.zeros(shape)})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (without("word_emb.weight"), "key word_emb.weight is missing: this is not a checkpoint of NVIDIA"),
        (without("mel_linear.bias"), "key mel_linear.bias is missing"),
        (without("phoneme_side.layer_stack.0.slf_attn.fc.weight"), "slf_attn.fc.weight is missing"),
        (without("mel_side.position.weight"), "mel_side.position.weight is missing"),
        (resized("mel_side.position.weight", 90, 24), "does not have 201 rows"),
        (resized("mel_side.position.weight", 201, 24), "is not FastSpeech's table of sines"),
        (resized("mel_side.layer_stack.0.slf_attn.linear.weight", 100, 24), "must have 192 rows per head"),
        (
            resized("mel_side.layer_stack.0.pos_ffn.w_2.weight", 24, 40, 3),
            "has shape 24×40×3, but the network has 24×40×5",
        ),
        (resized("word_emb.weight", 40, 24), "embeddings for 40 symbols"),
        (resized("word_emb.weight", 149), "word_emb.weight has a wrong shape"),
        (lambda entries: entries.update({"mel_linear.bias": torch.arange(80)}), "a plain tensor of floats"),
        (lambda entries: entries.update({"mel_linear.bias": "text"}), "a plain tensor of floats"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, change, fault):
    entries = fastspeech_entries()
    change(entries)
    with pytest.raises(UserError) as caught:
        import_fastspeech(write_fastspeech(tmp_path / "x.pt", entries))
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ([1, 2], "contains a list"),
        ({"a": 1}, "word_emb.weight is missing"),
        ({"model": {}}, "word_emb.weight is missing"),
        ({1: 2}, "word_emb.weight is missing"),
        ({"model": {"module.word_emb.weight": 3}}, "has a wrong shape"),
    ],
)
def test_something_else_is_refused(tmp_path, content, fault):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(UserError, match=fault):
        import_fastspeech(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [({"padding": "none"}, "padding must be exact or published"), ({"d_model": 3}, "'d_model' is unknown")],
)
def test_arguments(files, arguments, fault):
    with pytest.raises(UserError, match=fault):
        import_fastspeech(files / "checkpoint.pt", arguments)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("d_model", 0, "d_model must be like"),
        ("padding", "off", "padding must be"),
        ("fft_conv1d_kernel", 4, "must be odd"),
        ("other", 1, "does not know"),
    ],
)
def test_a_damaged_config_in_a_bundle_is_refused(files, tmp_path, name, value, fault):
    path = write_bundle(import_fastspeech(files / "checkpoint.pt"), tmp_path / "bundle").path / "bundle.json"
    text = path.read_text()
    field = f'"{name}": {SMALL.__dict__[name]!r}'.replace("'", '"') if name != "other" else '"d_model": 24'
    assert field in text
    replaced = f'"{name}": {value!r}'.replace("'", '"') + (', "d_model": 24' if name == "other" else "")
    path.write_text(text.replace(field, replaced))
    with pytest.raises(UserError, match=fault):
        Bundle(path.parent)


def test_a_vocoder_for_other_mels_is_refused(tmp_path, files):
    entries = fastspeech_entries()
    entries["mel_linear.weight"], entries["mel_linear.bias"] = torch.zeros(40, 24), torch.zeros(40)
    path = write_fastspeech(tmp_path / "x.pt", entries)
    with pytest.raises(UserError, match=r"takes 80 mel bands, but .* predicts 40"):
        import_fastspeech(path, vocoder=write_hifigan(tmp_path / "generator.pth"))
