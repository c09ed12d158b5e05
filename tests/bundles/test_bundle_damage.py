"""Spoilt bundles: all damage is found, when the bundle is opened or the file is used, and said in one line."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ane.bundles import hashes
from ane.bundles.bundle import Bundle
from ane.bundles.manifest import read_manifest, write_manifest
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError


def fault(path: Path, network: str = "cvvp") -> str:
    """The one line that a spoilt bundle is refused with, when it is opened or ``network`` is read."""
    with pytest.raises(UserError) as caught:
        Bundle(path).tensors(network)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def restate(path: Path, file: str) -> None:
    """Make bundle.json agree with what ``file`` is now."""
    data = (path / file).read_bytes()
    stated = json.loads((path / "bundle.json").read_text())
    stated["networks"][Path(file).stem].update(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    (path / "bundle.json").write_text(json.dumps(stated))


def test_an_intact_bundle_verifies(path):
    Bundle(path).verify()


@pytest.mark.parametrize("file", ["weights/cvvp.safetensors", "tokenizer.json", "mel_norms.safetensors"])
def test_a_changed_byte_is_found_in_any_file(path, file):
    data = bytearray((path / file).read_bytes())
    data[-9] ^= 1
    (path / file).write_bytes(data)
    bundle = Bundle(path)
    assert bundle.tensors("classifier"), "what is whole still loads"
    with pytest.raises(UserError, match=f"{Path(file).name} has SHA-256"):
        bundle.verify()


def test_a_changed_byte_is_found_at_load_even_after_a_good_load_and_with_the_old_time(path):
    file = path / "weights" / "cvvp.safetensors"
    assert Bundle(path).tensors("cvvp")
    times = file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "cvvp.safetensors has SHA-256" in fault(path)


def test_a_file_found_right_is_not_hashed_again_until_asked(path, monkeypatch):
    Bundle(path).tensors("cvvp")
    hashed = []
    monkeypatch.setattr(hashes, "sha256_of", lambda file: hashed.append(file) or "0" * 64)
    Bundle(path).tensors("cvvp")
    assert not hashed
    with pytest.raises(UserError, match="has SHA-256 000000000000"):
        Bundle(path).verify()


def test_a_bundle_loads_without_a_writable_cache(path, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "file"))
    assert Bundle(path).tensors("cvvp")


def test_missing_and_truncated_files_are_found_when_the_bundle_is_opened(path):
    file = path / "weights" / "clvp.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:1000])
    assert "clvp.safetensors has 1000 bytes" in fault(path)
    file.unlink()
    assert "clvp.safetensors is missing" in fault(path)


@pytest.mark.parametrize("keep", [0, 4, 1000, -1])
def test_safetensors_that_were_truncated_before_they_were_recorded_are_refused(path, keep):
    file = path / "weights" / "cvvp.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    restate(path, "weights/cvvp.safetensors")
    assert "cvvp.safetensors cannot be read as safetensors" in fault(path)


@pytest.mark.parametrize(("change", "says"), [
    (lambda tensors: tensors.pop("temperature"), "temperature is missing"),
    (lambda tensors: tensors.update(more=torch.zeros(1)), "more is not of this network"),
    (lambda tensors: tensors.update(temperature=torch.zeros(2)), "temperature has shape 2, the network of bundle.json "
                                                                 "has a single number"),
    (lambda tensors: tensors.update(temperature=torch.tensor(1)), "temperature is I64"),
])
def test_weights_that_do_not_fit_the_stated_network_are_refused(path, change, says):
    tensors = {key: tensor.clone() for key, tensor in load_file(path / "weights" / "cvvp.safetensors").items()}
    change(tensors)
    save_file(tensors, path / "weights" / "cvvp.safetensors")
    restate(path, "weights/cvvp.safetensors")
    assert says in fault(path)


def test_a_config_that_does_not_fit_the_weights_is_refused(path, edit_json):
    edit_json(path / "bundle.json", lambda stated: stated["networks"]["cvvp"]["config"].update(speech_enc_depth=99))
    assert "cvvp.safetensors does not fit the cvvp network" in fault(path)


@pytest.mark.parametrize(("change", "says"), [
    (lambda s: s.update(format=2), "has format 2, this version reads format 1: update"),
    (lambda s: s.pop("format"), "format is missing"),
    (lambda s: s.update(format="1"), "format must be of type int"),
    (lambda s: s.update(precision="fp8"), "precision 'fp8' is none of"),
    (lambda s: s.pop("networks"), "networks is missing"),
    (lambda s: s.update(trained=1), "trained must be of type bool"),
    (lambda s: s["networks"]["cvvp"].pop("sha256"), "networks: cvvp: sha256 is missing"),
    (lambda s: s["networks"]["cvvp"].update(sha256="abc"), "sha256 'abc' is no SHA-256"),
    (lambda s: s["networks"]["cvvp"].update(bytes=True), "bytes must be of type int"),
    (lambda s: s["networks"]["cvvp"].update(file="../../secret"), "lies outside the bundle"),
    (lambda s: s["networks"]["cvvp"].update(file="/etc/passwd"), "lies outside the bundle"),
    (lambda s: s["networks"]["cvvp"]["config"].update(later=1), "config has later, which this version does not know"),
])
def test_a_bundle_json_that_cannot_be_followed_is_refused(path, change, says, edit_json):
    edit_json(path / "bundle.json", change)
    message = fault(path)
    assert "bundle.json" in message
    assert says in message


@pytest.mark.parametrize(("network", "change", "says"), [
    ("autoregressive", {"layers": {}}, "layers must be like 30, not {}"),
    ("autoregressive", {"layers": 0}, "layers must be like 30, not 0"),
    ("autoregressive", {"max_text_tokens": "134"}, "max_text_tokens must be like 402, not '134'"),
    ("autoregressive", {"tail_tokens": 5}, "tail_tokens must be like [45, 45, 248], not 5"),
    ("autoregressive", {"tail_tokens": [45, 9999]}, "tail_tokens [45, 9999] is beyond the decoder's table: 0 to"),
    ("autoregressive", {"start_mel_token": 9999}, "start_mel_token 9999 is beyond the decoder's table: 0 to"),
    ("autoregressive", {"stop_mel_token": -1}, "stop_mel_token -1 is beyond"),
    ("autoregressive", {"calm_token": 9999}, "calm_token 9999 is beyond"),
    ("autoregressive", {"start_text_token": 9999}, "start_text_token 9999 is beyond"),
    ("autoregressive", {"calm_run": 0}, "calm_run must be like 8, not 0"),
    ("autoregressive", {"heads": 5}, "cannot be split among 5 heads"),
    ("conditioning_encoder", {"heads": 5}, "cannot be split among 5 heads"),
    ("contextual_embedder", {"num_heads": 7}, "cannot be split among 7 num_heads"),
    ("diffusion", {"prediction": "V"}, "prediction 'V' is none of epsilon, v, x0"),
    ("univnet", {"lReLU_slope": float("nan")}, "lReLU_slope must be like 0.2"),
])
def test_a_config_of_which_no_network_can_be_made_is_refused(path, network, change, says, edit_json):
    edit_json(path / "bundle.json", lambda stated: stated["networks"][network]["config"].update(change))
    message = fault(path)
    assert f"bundle.json: networks: {network}: config: " in message
    assert says in message


def test_code_zero_may_be_the_code_of_silence(path, edit_json):
    config = {"calm_token": 0, "tail_tokens": [0]}
    edit_json(path / "bundle.json", lambda stated: stated["networks"]["autoregressive"]["config"].update(config))
    assert Bundle(path).config("autoregressive").calm_token == 0


def test_what_is_no_bundle_is_said(path, checkpoints):
    (path / "bundle.json").write_text('{"format": 1, ')
    assert "bundle.json is damaged (not JSON" in fault(path)
    (path / "bundle.json").write_text("[]")
    assert "holds a list" in fault(path)
    (path / "bundle.json").write_bytes(b"\xff\xfe")
    assert "bundle.json is damaged" in fault(path)
    (path / "bundle.json").unlink()
    assert "has no bundle.json" in fault(path)
    assert "--checkpoints" in fault(checkpoints.path)
    assert "no such directory" in fault(path / "nowhere")


def test_sections_and_networks_of_later_versions_are_kept_and_ignored(path, edit_json):
    edit_json(path / "bundle.json", lambda stated: stated.update(packages={"gpt2": {"bytes": 3}}))
    edit_json(path / "bundle.json", lambda stated: stated["networks"].update(upsampler={"anything": 1}))
    assert Bundle(path).networks == set(NETWORKS)
    write_manifest(path, read_manifest(path))
    assert json.loads((path / "bundle.json").read_text())["packages"] == {"gpt2": {"bytes": 3}}
    Bundle(path).verify()


def test_a_voice_that_bundle_json_does_not_name_is_not_used_unchecked(random_bundle, tmp_path):
    bundle = Path(shutil.copytree(random_bundle, tmp_path / "bundle"))
    (bundle / "voices" / ".DS_Store").touch()
    assert Bundle(bundle).voices == bundle / "voices"
    shutil.copyfile(bundle / "voices" / "noise.safetensors", bundle / "voices" / "stranger.safetensors")
    with pytest.raises(UserError, match=r"stranger\.safetensors is not in bundle\.json"):
        _ = Bundle(bundle).voices


def test_a_tokenizer_that_is_not_text_is_refused(path, edit_json):
    data = b"\xff" + (path / "tokenizer.json").read_bytes()
    (path / "tokenizer.json").write_bytes(data)
    record = {"file": "tokenizer.json", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    edit_json(path / "bundle.json", lambda stated: stated.update(tokenizer=record))
    with pytest.raises(UserError, match=r"tokenizer\.json is not text in UTF-8 \(byte 0\)"):
        _ = Bundle(path).tokenizer


def test_a_network_that_a_bundle_lacks_is_named_with_its_file(path, edit_json):
    edit_json(path / "bundle.json", lambda stated: stated["networks"].pop("cvvp"))
    assert "cvvp.pth" in fault(path)
