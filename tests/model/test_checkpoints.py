"""A directory of official checkpoints: what loads, what is tolerated, and what each kind of bad file is told."""

import json
import os
import pickle
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.checkpoints import REQUIRED, CheckpointDirectory, read_config
from ane.errors import UserError
from ane.model import open_model
from ane.networks import NETWORKS
from ane.pickles import load_pickle
from ane.upstream_keys import fused, grouped, pattern
from ane.weights import skeleton


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that stay what they are when the file they are mapped from is written anew."""
    return {key: tensor.clone() for key, tensor in tensors.items()}


def fault(directory: Path, config: dict | None = None) -> str:
    """The one line that a bad directory is refused with."""
    with pytest.raises(UserError) as caught:
        CheckpointDirectory(directory, config).check()
    message = str(caught.value)
    assert "\n" not in message
    return message


# what loads

def test_every_network_loads_strictly_into_its_module(directory):
    model = CheckpointDirectory(directory)
    assert model.networks == set(NETWORKS)
    for name in model.networks:
        module = skeleton(name, model.config(name))
        module.load_state_dict(model.tensors(name), strict=True, assign=True)
        assert not any(value.is_meta for value in module.state_dict().values())


def test_tensors_are_the_files_own_bit_for_bit(directory):
    loaded = torch.load(directory / "clvp2.pth", weights_only=True)
    tensors = CheckpointDirectory(directory).tensors("clvp")
    assert tensors.keys() == loaded.keys()
    assert all(torch.equal(tensors[key], loaded[key]) for key in loaded)


def test_a_prefix_tells_two_networks_of_one_file_apart(directory):
    loaded = torch.load(directory / "diffusion_decoder.pth", weights_only=True)
    tensors = CheckpointDirectory(directory).tensors("contextual_embedder")
    assert {f"contextual_embedder.{key}" for key in tensors} == {k for k in loaded if k.startswith("contextual_emb")}
    assert torch.equal(tensors["0.weight"], loaded["contextual_embedder.0.weight"])


def test_weight_norm_is_folded_in(directory):
    entries = torch.load(directory / "vocoder.pth", weights_only=True)["model_g"]
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(*entries["conv_pre.weight_v"].shape[1::-1], 7))
    layer.load_state_dict({"bias": entries["conv_pre.bias"],
                           "parametrizations.weight.original0": entries["conv_pre.weight_g"],
                           "parametrizations.weight.original1": entries["conv_pre.weight_v"]})
    folded = CheckpointDirectory(directory).tensors("univnet")["conv_pre.weight"]
    torch.testing.assert_close(folded, layer.weight.detach(), rtol=1e-6, atol=1e-7)


@settings(max_examples=50, deadline=None)
@given(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)), st.integers(0, 2**31))
def test_folded_weight_norm_has_the_gains_as_norms(shape, seed):
    random = torch.Generator().manual_seed(seed)
    gain = torch.rand(shape[0], 1, 1, generator=random) * 10 - 5
    weight = fused(gain, torch.randn(shape, generator=random) + 0.1)
    torch.testing.assert_close(weight.flatten(1).norm(dim=1), gain.flatten().abs(), rtol=1e-5, atol=1e-6)


def test_weight_norm_spelt_as_a_parametrization_gives_the_same_weights(directory, edit):
    before = copies(CheckpointDirectory(directory).tensors("hifigan"))

    def respell(entries: dict) -> None:
        for key in [key for key in entries if key.endswith(("weight_g", "weight_v"))]:
            new = key.replace("weight_g", "parametrizations.weight.original0")
            entries[new.replace("weight_v", "parametrizations.weight.original1")] = entries.pop(key)

    edit(directory / "hifidecoder.pth", respell)
    after = CheckpointDirectory(directory).tensors("hifigan")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_weights_already_free_of_weight_norm_load_too(directory):
    before = copies(CheckpointDirectory(directory).tensors("hifigan"))
    torch.save(before, directory / "hifidecoder.pth")
    after = CheckpointDirectory(directory).tensors("hifigan")
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_old_checkpoints_that_are_no_zip_files_load(directory, edit):
    before = copies(CheckpointDirectory(directory).tensors("rlg_auto"))
    edit(directory / "rlg_auto.pth", lambda entries: None, _use_new_zipfile_serialization=False)
    assert not (directory / "rlg_auto.pth").read_bytes().startswith(b"PK")
    after = CheckpointDirectory(directory).tensors("rlg_auto")
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_half_and_double_precision_checkpoints_load(directory, edit):
    edit(directory / "clvp2.pth", lambda e: e.update({key: value.double() for key, value in e.items()}))
    edit(directory / "cvvp.pth", lambda e: e.update({key: value.bfloat16() for key, value in e.items()}))
    model = CheckpointDirectory(directory)
    assert {tensor.dtype for tensor in model.tensors("clvp").values()} == {torch.float32}
    assert {tensor.dtype for tensor in model.tensors("cvvp").values()} == {torch.bfloat16}


def test_precision_is_the_decoders(directory, edit):
    assert CheckpointDirectory(directory).precision == "fp32"
    edit(directory / "autoregressive.pth", lambda e: e.update({key: value.half() for key, value in e.items()}))
    assert CheckpointDirectory(directory).precision == "fp16"


def test_widths_are_those_of_a_voices_two_latents(directory):
    loaded = torch.load(directory / "diffusion_decoder.pth", weights_only=True)
    decoder = torch.load(directory / "autoregressive.pth", weights_only=True)["final_norm.weight"]
    voice_channels = 2 * len(loaded["code_norm.weight"])
    assert CheckpointDirectory(directory).widths == (len(decoder), voice_channels)


def test_open_model_takes_a_directory_and_a_config_elsewhere(directory, golden_config):
    configs = CheckpointDirectory(directory).config("autoregressive")
    (directory / "config.json").unlink()
    assert open_model(checkpoints=directory, config=golden_config).config("autoregressive") == configs
    with pytest.raises(UserError, match="not both"):
        open_model(bundle="demo", checkpoints=directory)


def test_identity_follows_files_and_configs(directory, edit_json):
    before = CheckpointDirectory(directory).identity
    assert CheckpointDirectory(directory).identity == before
    os.utime(directory / "cvvp.pth", ns=(1, 1))
    touched = CheckpointDirectory(directory).identity
    edit_json(directory / "config.json", lambda c: c["autoregressive.pth"]["constructor"].update(heads=1))
    assert len({before, touched, CheckpointDirectory(directory).identity}) == 3


# what lies beside the checkpoints

def test_tokenizer_and_mel_norms_come_from_the_package_or_from_beside(directory):
    (directory / "mel_norms.pth").unlink()
    packaged = CheckpointDirectory(directory)
    assert packaged.mel_norms.shape == (80,)
    assert packaged.mel_norms.dtype == np.float32
    assert len(json.loads(packaged.tokenizer)["model"]["vocab"]) == 255
    torch.save(torch.full((80,), -2.0), directory / "mel_norms.pth")
    stated = json.loads(packaged.tokenizer) | {"note": "own"}
    (directory / "tokenizer.json").write_text(json.dumps(stated))
    own = CheckpointDirectory(directory)
    assert (own.mel_norms == -2).all()
    assert json.loads(own.tokenizer)["note"] == "own"


@pytest.mark.parametrize("norms", [
    torch.ones(81), {"mel_norms": torch.ones(80)}, torch.zeros(80), torch.full((80,), torch.nan),
    torch.ones(80).long()])
def test_mel_norms_that_cannot_divide_a_spectrogram_are_refused(directory, norms):
    torch.save(norms, directory / "mel_norms.pth")
    with pytest.raises(UserError, match=r"mel_norms\.pth"):
        _ = CheckpointDirectory(directory).mel_norms


@pytest.mark.parametrize("text", ["", "[]", '{"model": 3}', "not json"])
def test_a_tokenizer_that_is_none_is_refused(directory, text):
    (directory / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        _ = CheckpointDirectory(directory).tokenizer


# what is tolerated

def test_entries_that_inference_does_not_need_are_tolerated_and_named(directory, edit):
    edit(directory / "vocoder.pth", lambda loaded: loaded.update(epoch=7, model_d={"x": torch.zeros(1)}))
    model = CheckpointDirectory(directory)
    surplus = model.check()
    layers = model.config("autoregressive").layers
    assert set(grouped(surplus["autoregressive.pth"]).split(", ")) == {
        f"{layers} × gpt.h.N.attn.bias", f"{layers} × gpt.h.N.attn.masked_bias", "text_head.weight", "text_head.bias"}
    assert {"epoch", "model_d"} <= set(surplus["vocoder.pth"])
    assert surplus.keys() == {"autoregressive.pth", "diffusion_decoder.pth", "vocoder.pth"}


@given(st.lists(st.from_regex(r"[a-z]{1,3}(\.([a-z]{1,3}|[0-9]{1,2})){0,3}", fullmatch=True), unique=True))
def test_grouping_counts_every_key_once(keys):
    counts = Counter(pattern(key) for key in keys)
    words = [part.split(" × ") for part in grouped(keys).split(", ")] if keys else []
    assert {word[-1]: int(word[0]) if len(word) == 2 else 1 for word in words} == counts


@pytest.mark.parametrize("file", sorted({n.file for n in NETWORKS.values()} - set(REQUIRED)))
def test_an_optional_file_may_be_absent_until_it_is_asked_for(directory, file):
    (directory / file).unlink()
    model = CheckpointDirectory(directory)
    model.check()
    network = next(name for name in NETWORKS if NETWORKS[name].file == file)
    assert network not in model.networks
    for ask in (model.config, model.tensors):
        with pytest.raises(UserError, match=file):
            ask(network)


# bad directories

@pytest.mark.parametrize("file", REQUIRED)
def test_a_required_file_that_is_absent_is_named(directory, file):
    (directory / file).unlink()
    assert f"holds no {file}" in fault(directory)


def test_an_empty_directory_is_told_what_belongs_there(tmp_path):
    message = fault(tmp_path)
    assert all(file in message for file in REQUIRED)


def test_what_is_no_directory_of_checkpoints_is_said(directory, tmp_path):
    assert "does not exist" in fault(tmp_path / "nowhere")
    assert "is a file" in fault(directory / "clvp2.pth")
    (tmp_path / "bundle.json").write_text("{}")
    assert "--bundle" in fault(tmp_path)


# bad files

class Code:
    """A pickle that would create a file if it were ever executed."""

    def __init__(self, victim: Path):
        self.victim = victim

    def __reduce__(self):
        return os.mkdir, (str(self.victim),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_checkpoint_is_refused_and_not_run(directory, tmp_path, zipped):
    victim = tmp_path / "created"
    torch.save({"x": Code(victim)}, directory / "clvp2.pth", _use_new_zipfile_serialization=zipped)
    message = fault(directory)
    assert "clvp2.pth refused: contains code (" in message
    assert not victim.exists()
    torch.load(directory / "clvp2.pth", weights_only=False)
    assert victim.exists(), "the file would have done it"


def test_a_bare_pickle_of_code_is_refused_and_not_run(directory, tmp_path):
    victim = tmp_path / "created"
    (directory / "cvvp.pth").write_bytes(pickle.dumps(Code(victim)))
    assert "cvvp.pth" in fault(directory)
    assert not victim.exists()


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_truncated_checkpoint_is_said_to_be_truncated(directory, zipped, kept, edit):
    path = directory / "clvp2.pth"
    edit(path, lambda entries: None, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    path.write_bytes(whole[:int(len(whole) * kept)])
    message = fault(directory)
    assert "clvp2.pth" in message
    assert "truncated" in message


@pytest.mark.parametrize(("content", "says"), [
    (b"", "is empty"),
    (b"<!DOCTYPE html><html>Please log in</html>", "web page"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
    (b"just some text", "not a PyTorch checkpoint"),
    (b"PK\x03\x04" + bytes(200), "truncated or damaged"),
])
def test_what_is_no_checkpoint_is_recognised(directory, content, says):
    (directory / "vocoder.pth").write_bytes(content)
    message = fault(directory)
    assert "vocoder.pth" in message
    assert says in message


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=300), st.sampled_from([b"", b"\x80\x02", b"PK\x03\x04", b"\x80\x04\x95"]))
def test_no_bytes_whatever_escape_as_anything_but_one_line(tmp_path_factory, content, start):
    path = tmp_path_factory.mktemp("bytes") / "x.pth"
    path.write_bytes(start + content)
    with pytest.raises(UserError, match=r"x\.pth"):
        load_pickle(path)


def test_what_holds_no_state_dict_is_refused(directory):
    torch.save([torch.zeros(3)], directory / "cvvp.pth")
    assert "cvvp.pth holds a list" in fault(directory)
    torch.save({"epoch": 3, "state_dict": {"temperature": torch.zeros(())}}, directory / "cvvp.pth")
    assert "no tensors but epoch, state_dict" in fault(directory)


@pytest.mark.parametrize(("written", "content"), [
    ("cvvp.pth", "clvp2.pth"), ("clvp2.pth", "vocoder.pth"), ("vocoder.pth", "hifidecoder.pth"),
    ("autoregressive.pth", "diffusion_decoder.pth"), ("rlg_auto.pth", "rlg_diffuser.pth"),
    ("classifier.pth", "rlg_auto.pth"),
])
def test_a_misnamed_checkpoint_is_recognised(directory, golden_checkpoints, written, content):
    shutil.copyfile(golden_checkpoints / content, directory / written)
    message = fault(directory)
    assert str(directory / written) in message
    assert content in message
    assert "misnamed" in message


def test_a_missing_key_is_named(directory, edit):
    edit(directory / "autoregressive.pth", lambda entries: entries.pop("final_norm.bias"))
    message = fault(directory)
    assert "autoregressive.pth: key final_norm.bias is missing" in message


def test_half_a_weight_norm_is_a_missing_key(directory, edit):
    edit(directory / "hifidecoder.pth", lambda entries: entries.pop("conv_pre.weight_g"))
    assert "hifidecoder.pth: key conv_pre.weight is missing" in fault(directory)


@pytest.mark.parametrize(("file", "key"), [
    ("clvp2.pth", "text_emb.weight"), ("clvp2.pth", "temperature"), ("autoregressive.pth", "mel_head.bias"),
    ("hifidecoder.pth", "conv_pre.weight_g"), ("hifidecoder.pth", "conv_pre.weight_v"),
])
def test_a_misshapen_key_is_named_with_both_shapes(directory, file, key, edit):
    shape = torch.load(directory / file, weights_only=True)[key].shape
    edit(directory / file, lambda entries: entries.update({key: torch.zeros(*shape, 7)}))
    message = fault(directory)
    assert f"{file}: {key} has shape {'×'.join(map(str, (*shape, 7)))}" in message
    assert f"the network has {'×'.join(map(str, shape)) or 'a single number'}: " in message
    assert "config.json" in message


@pytest.mark.parametrize("value", [torch.zeros(256, 32, dtype=torch.int8), [1, 2], torch.zeros(256, 32).to_sparse()])
def test_an_entry_that_is_no_plain_float_tensor_is_refused(directory, value, edit):
    edit(directory / "clvp2.pth", lambda entries: entries.update({"text_emb.weight": value}))
    assert "clvp2.pth: text_emb.weight" in fault(directory)


def test_a_checkpoint_of_another_size_is_told_of_the_config(directory):
    (directory / "config.json").unlink()
    message = fault(directory)
    assert "autoregressive.pth" in message
    assert "config.json" in message


@pytest.mark.parametrize(("more", "says"), [(-1, "beyond the network"), (1, "fewer layers")])
def test_more_or_fewer_layers_than_the_config_says_are_refused(directory, more, says, edit_json):
    layers = CheckpointDirectory(directory).config("autoregressive").layers + more
    edit_json(directory / "config.json", lambda c: c["autoregressive.pth"]["constructor"].update(layers=layers))
    message = fault(directory)
    assert "autoregressive.pth" in message
    assert says in message


# configs

def test_every_constructor_argument_of_the_official_files_is_known(directory, golden_config):
    configs = {name: CheckpointDirectory(directory).config(name) for name in NETWORKS}
    assert configs["autoregressive"].model_dim == configs["conditioning_encoder"].model_dim
    assert configs["diffusion"].model_channels == configs["contextual_embedder"].model_channels
    bare = {file: entry.get("constructor", {}) for file, entry in read_config(golden_config).items()
            if file.endswith(".pth")}
    assert all(CheckpointDirectory(directory, bare).config(name) == configs[name] for name in NETWORKS)


def test_without_a_config_the_sizes_are_the_official_ones(directory):
    model = CheckpointDirectory(directory, {})
    assert all(model.config(name) == network.official() for name, network in NETWORKS.items())
    assert model.widths == (1024, 2048)


@pytest.mark.parametrize(("config", "says"), [
    ({"autoregressive.pth": {"layer": 3}}, "unknown constructor argument 'layer'; do you mean layers"),
    ({"autoregressive.pth": {"layers": "3"}}, "layers must be like 30, not '3'"),
    ({"autoregressive.pth": {"layers": True}}, "layers must be like"),
    ({"autoregressive.pth": {"layers": 0}}, "layers must be like"),
    ({"autoregressive.pth": {"heads": 5, "model_dim": 32}}, "model_dim 32 cannot be split among 5 heads"),
    ({"autoregressive.pth": {"types": 2}}, "types=2 makes another network"),
    ({"autoregressive.pth": 3}, "must map"),
    ({"autoregresive.pth": {}}, "do you mean autoregressive.pth"),
    ({"hifidecoder.pth": {"upsample_factors": 8}}, "upsample_factors must be like"),
    ({"hifidecoder.pth": {"resblock_type": "2"}}, "makes another network"),
    ({"hifidecoder.pth": {"upsample_factors": [8, 8, 2]}}, "hifidecoder.pth"),
])
def test_a_config_that_is_not_upstreams_is_refused(directory, config, says):
    stated = read_config(directory / "config.json")
    bare = {file: entry.get("constructor", {}) for file, entry in stated.items() if not file.startswith("_")}
    changed = {file: {**bare.get(file, {}), **entry} if isinstance(entry, dict) else entry
               for file, entry in config.items()}
    assert says in fault(directory, {**bare, **changed})


def test_a_fault_in_a_config_file_is_said_to_be_there(directory, tmp_path):
    (tmp_path / "sizes.json").write_text('{"clvp2.pth": {"depth": 2}}')
    with pytest.raises(UserError, match=r"sizes\.json: clvp2\.pth: unknown constructor argument 'depth'"):
        open_model(checkpoints=directory, config=tmp_path / "sizes.json")


@pytest.mark.parametrize(("text", "says"), [("{", "is not JSON"), ("[]", "must be an object")])
def test_a_config_file_that_is_no_json_object_is_refused(directory, text, says):
    (directory / "config.json").write_text(text)
    assert f"config.json {says}" in fault(directory)


def test_random_weights_are_marked_by_the_config(directory, edit_json):
    assert CheckpointDirectory(directory).trained
    edit_json(directory / "config.json", lambda config: config.update(trained=False))
    assert not CheckpointDirectory(directory).trained


@pytest.mark.parametrize("name", NETWORKS)
def test_a_skeleton_of_full_size_takes_no_memory(name):
    state = skeleton(name, NETWORKS[name].official()).state_dict().values()
    assert sum(value.nbytes for value in state if not value.is_meta) < 1_000_000
    assert sum(value.nbytes for value in state) > 20_000_000
