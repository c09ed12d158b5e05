"""Test that a bundle is read as it was written, that writing one replaces no file of the user, and earlier bundles."""

import json
import os
import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load_file, save_file

import ane
from ane.backends.packaged.pools import pack_columns
from ane.bundles import Bundle, bundle_names, demo_bundle, find_bundle, open_model
from ane.bundles.hashes import FileRecord, identity_of, size_and_time
from ane.bundles.opening import new_bundle
from ane.bundles.package_records import FunctionRecord, PackageRecord, read_section, sections_of
from ane.bundles.weights import PRECISIONS, convert_precision, expanded, layout
from ane.bundles.writing import write_bundle
from ane.models.fastspeech.checkpoints import import_fastspeech
from ane.models.tortoise.checkpoints import import_tortoise
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import TortoiseSettings
from ane.system.errors import UserError
from tests.edits import edit_checkpoint, edit_json
from tests.fastspeech_files import write_fastspeech
from tests.models.kitten.kitten_model import kitten_speaker
from tests.random_model import CONFIGS
from tests.refusals import assert_refused

EARLIER = Path(__file__).parent / "earlier"  # bundles that earlier versions wrote
OFFICIAL = set(CONFIGS)


# Reading and writing


def test_a_bundle_has_the_content_of_its_checkpoints(checkpoints, original):
    bundle = Bundle(original)
    assert bundle.networks == checkpoints.configs.keys() == OFFICIAL
    assert (bundle.precision, bundle.tokenizer) == ("fp32", checkpoints.tokenizer)
    assert np.array_equal(bundle.mel_norms, checkpoints.mel_norms)
    for name in sorted(OFFICIAL):
        assert bundle.config(name) == checkpoints.configs[name]
        before, after = checkpoints.tensors(name), bundle.tensors(name)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_rounds_parameters_and_not_buffers(checkpoints, tmp_path, precision):
    bundle = write_bundle(checkpoints, tmp_path / "half", precision=precision)
    assert bundle.precision == precision
    for name in sorted(OFFICIAL):
        buffers = layout(NETWORKS[name], bundle.config(name)).buffers
        exact, rounded = checkpoints.tensors(name), bundle.tensors(name)
        assert all(
            torch.equal(rounded[key], value if key in buffers else value.to(PRECISIONS[precision]))
            for key, value in exact.items()
        )
    assert layout(NETWORKS["clvp"], bundle.config("clvp")).buffers, "the rotary frequencies"


def test_a_bundle_can_be_written_again_in_another_precision(checkpoints, original, tmp_path):
    direct = write_bundle(checkpoints, tmp_path / "direct", precision="fp16")
    rewritten = write_bundle(Bundle(original).contents(), tmp_path / "rewritten", precision="fp16")
    assert rewritten.identity == direct.identity
    assert direct.identity != Bundle(original).identity


def test_tensors_are_memory_mapped(path):
    tensors = Bundle(path).tensors("univnet")
    before = {key: tensor.clone() for key, tensor in tensors.items()}
    file = path / "weights" / "univnet.safetensors"
    with file.open("r+b") as opened:
        size = file.stat().st_size
        opened.seek(size // 2)
        opened.write(bytes(size - size // 2))
    assert any(not torch.equal(tensors[key], before[key]) for key in tensors), "the file changes the tensors"


def test_the_identity_depends_on_the_content_and_not_on_the_path(original, path):
    assert Bundle(path).identity == Bundle(original).identity
    edit_json(path / "bundle.json", lambda stated: stated["networks"]["clvp"]["config"].update(text_heads=1))
    assert Bundle(path).identity != Bundle(original).identity


def test_bundle_json_states_parameters_and_bytes_of_each_network(original):
    stated = json.loads((original / "bundle.json").read_text())
    for name, network in stated["networks"].items():
        tensors = load_file(original / network["file"])
        buffers = layout(NETWORKS[name], Bundle(original).config(name)).buffers
        assert network["parameters"] == sum(t.numel() for key, t in tensors.items() if key not in buffers)
        assert network["bytes"] == (original / network["file"]).stat().st_size


def test_voices_are_copied_and_checked(checkpoints, original, path, tmp_path):
    assert Bundle(original).voices is None
    voice = {"any": torch.ones(1, 32)}
    directory = Path(shutil.copytree(checkpoints.path, tmp_path / "pth"))
    (directory / "voices").mkdir()
    save_file(voice, directory / "voices" / "ann.safetensors")
    bundle = write_bundle(import_tortoise(directory), tmp_path / "spoken", default_voice="ann")
    assert bundle.default_voice == "ann"
    assert load_file(bundle.voices / "ann.safetensors").keys() == voice.keys()
    (bundle.path / "voices" / "ann.safetensors").write_bytes(
        (bundle.path / "voices" / "ann.safetensors").read_bytes()[:-1] + b"\x01"
    )
    with pytest.raises(UserError, match=r"ann\.safetensors has SHA-256"):
        _ = Bundle(bundle.path).voices


def test_a_network_is_released_before_the_next_is_read(checkpoints, tmp_path):
    held, most = [], 0

    def tensors(network):
        nonlocal most
        most = max(most, sum(reference() is not None for reference in held))
        found = checkpoints.tensors(network)
        held[:] = [weakref.ref(tensor) for tensor in found.values()]
        return found

    write_bundle(checkpoints, tmp_path / "out", precision="fp16", tensors=tensors)
    assert most == 0
    assert held


def test_the_settings_of_the_model_are_copied(checkpoints, original, tmp_path):
    assert Bundle(original).settings == {}
    assert Bundle(original).clones
    settings = {"split": [80, 125], "sampling": {"top_k": 20}}
    bundle = write_bundle(checkpoints, tmp_path / "small", settings=settings, clones=False)
    assert not bundle.clones
    assert TortoiseSettings.of(model=bundle.settings) == TortoiseSettings.of(
        split=(80, 125), sampling=Sampling(top_k=20)
    )
    rewritten = write_bundle(bundle.contents(), tmp_path / "rewritten")
    assert (rewritten.settings, rewritten.clones) == (bundle.settings, bundle.clones)


def test_files_have_the_permissions_of_any_new_file(original):
    mode = (original / "bundle.json").stat().st_mode
    assert {path.stat().st_mode for path in original.rglob("*") if path.is_file()} == {mode}


# Values outside the range of a precision


@given(arrays.arrays(np.float32, st.integers(0, 6), elements=st.floats(-65504, 65504, width=32)))
def test_values_are_rounded_to_fp16_and_integers_are_unchanged(values):
    tensors = {"x": torch.from_numpy(values), "count": torch.arange(3), "buffer": torch.from_numpy(values)}
    result = convert_precision(tensors, "fp16", frozenset({"buffer"}), "here")
    assert torch.equal(result["x"], torch.from_numpy(values.astype(np.float16)))
    assert result["count"].dtype == torch.int64
    assert torch.equal(result["buffer"], tensors["buffer"])
    assert convert_precision({"x": torch.tensor([70000.0])}, "bf16", frozenset(), "here")["x"].isfinite().all()


@pytest.mark.parametrize(
    ("value", "message"),
    [(70000.0, "beyond the range of fp16"), (float("nan"), "NaN or infinite"), (float("-inf"), "NaN or infinite")],
)
def test_a_value_outside_the_range_of_fp16_is_refused_with_its_name(tmp_path, value, message, copy_checkpoints):
    directory = copy_checkpoints(tmp_path / "pth")
    edit_checkpoint(directory / "clvp2.pth", lambda entries: entries["to_text_latent.weight"][0].__setitem__(3, value))
    assert_refused(
        f"clvp: to_text_latent.weight has.*{message}",
        lambda: write_bundle(import_tortoise(directory), tmp_path / "out", precision="fp16"),
    )
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*")), "no partial bundle is left"


def test_tensors_that_share_memory_are_written_separately(tmp_path):
    whole = torch.arange(6.0)
    result = convert_precision({"a": whole[:3], "b": whole[3:], "c": whole.view(2, 3).T}, "fp32", frozenset(), "here")
    save_file(result, tmp_path / "x.safetensors")
    assert torch.equal(load_file(tmp_path / "x.safetensors")["c"], whole.view(2, 3).T)


# Destinations


def test_the_error_for_missing_packages_says_how_to_make_them_where_they_can_be_made(original):
    assert str(Bundle(original).lacks_packages("coreml")).endswith(
        f": make them with `ane convert {original} --to coreml -o DIR` and open that bundle"
    )
    assert str(Bundle(EARLIER / "kitty").lacks_packages("onnx", "use backend=torch")) == (
        "Kitty is a KittenTTS model, for which `ane convert` makes no ONNX packages: use backend=torch"
    )


def test_the_record_of_an_onnx_package_states_no_scale_and_its_inputs_are_not_scaled():
    made = PackageRecord(
        "autoregressive",
        "fp32",
        "a",
        [FileRecord("a/graph.onnx", "0" * 64, 1)],
        {"prefill": FunctionRecord("prefill", {})},
        format="onnx",
    )
    stored = sections_of([made])
    assert "scale" not in stored["onnx"]["packages"][0]
    [read] = read_section(stored, "bundle.json", ["autoregressive"], "onnx")
    columns = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(pack_columns(columns, 2, read.scale, np.float32)[0, :, 0], columns.T)


def test_a_failed_write_leaves_the_earlier_bundle(path, tmp_path, copy_checkpoints):
    directory = copy_checkpoints(tmp_path / "pth")
    model = import_tortoise(directory)
    (directory / "rlg_diffuser.pth").write_bytes(b"")
    before = Bundle(path).identity
    assert_refused(r"rlg_diffuser\.pth is empty", write_bundle, model, path, overwrite=True)
    Bundle(path).verify()
    assert Bundle(path).identity == before


# Names


def test_bundles_are_found_by_name_or_path_and_the_default_without_either(path, home, monkeypatch):
    shutil.copytree(path, home / "bundles" / "mine")
    assert bundle_names() == ["demo", "heart", "mine"]
    assert open_model("mine").identity == open_model(path).identity == open_model(str(path)).identity
    monkeypatch.chdir(path.parent)
    assert open_model("./tiny").path == Path("tiny")
    assert find_bundle("tiny") == Path("tiny"), "a directory, when no stored bundle has the name"
    assert find_bundle(None) == find_bundle("heart")
    assert find_bundle("demo-fast") == find_bundle("heart"), "its former name"
    assert_refused("the name heart belongs to an embedded bundle", new_bundle, "heart")
    assert find_bundle("demo") == demo_bundle()
    assert demo_bundle().parts[-3:] == ("ane", "demo", "bundle")
    assert find_bundle("heart").parts[-3:] == ("ane", "demo", "heart")


def test_an_int8_tensor_is_multiplied_by_its_scale_and_a_scale_alone_is_a_tensor():
    tensors = {"a": torch.tensor([2, -3], dtype=torch.int8), "a.scale": torch.tensor([0.5]), "b.scale": torch.ones(1)}
    assert {key: tensor.tolist() for key, tensor in expanded(tensors).items()} == {"a": [1.0, -1.5], "b.scale": [1.0]}


def test_a_bundle_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: written.append((tmp_path / "out").exists()))
    write_bundle(import_fastspeech(write_fastspeech(tmp_path / "model.pt")), tmp_path / "out")
    assert False in written


VOICES = {"kitty": ["Bella", "expr-voice-2-f", "expr-voice-5-m"], "koko": ["af_bella", "af_heart"]}


@pytest.mark.parametrize("name", VOICES)
def test_an_earlier_bundle_opens_with_its_voices_and_the_key_of_its_stored_sounds(name):
    bundle = Bundle(EARLIER / name)
    bundle.verify()
    assert (bundle.name, bundle.voice_names) == (name.title(), VOICES[name])
    assert bundle.takes_voices
    assert not bundle.uses_seed
    # by this identity, books that an earlier version began find their sounds
    assert bundle.identity == identity_of(
        [(file, *size_and_time(bundle.path / file)) for file in ("config.json", "model.onnx", "voices.npz")]
    )


def test_earlier_bundles_speak():
    speech = ane.load(EARLIER / "koko").speak("Hello there.", "af_bella")
    assert [word.word for word in speech.words] == ["Hello", "there."]
    assert not any(word.estimated for word in speech.words)
    speaker = kitten_speaker(EARLIER / "kitty")
    fast, slow = (len(speaker.speak("Hello.", voice).audio) for voice in ("expr-voice-5-m", "Bella"))
    assert fast == slow > 0, "this graph has a fixed number of samples for each letter"


@pytest.mark.parametrize("name", VOICES)
def test_an_earlier_bundle_written_again_states_everything_and_sounds_the_same(name, tmp_path):
    earlier = Bundle(EARLIER / name)
    again = write_bundle(earlier.contents(), tmp_path / name)
    content = json.loads((tmp_path / name / "bundle.json").read_text())
    assert {"precision", "trained", "networks", "voices", "files"} <= content.keys()
    assert again.voice_names == earlier.voice_names
    assert all(
        np.array_equal(again.file(role).read_bytes(), earlier.file(role).read_bytes())
        for role in ("config", "graph", "voices")
    )


@pytest.mark.parametrize(
    ("role", "message"), [("graph", "files: graph is missing"), (None, "files: config is missing")]
)
def test_an_earlier_bundle_without_a_file_is_refused(role, message, tmp_path):
    earlier = Path(shutil.copytree(EARLIER / "koko", tmp_path / "koko"))
    edit_json(earlier / "bundle.json", lambda content: content["files"].pop(role) if role else content.pop("files"))
    assert_refused(message, Bundle, earlier)
