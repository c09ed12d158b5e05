"""Test that a one-line error reports all damage to a bundle, when the bundle is opened or when the file is used."""

import hashlib
import json
import os
import shutil
import time
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from ane.bundles import hashes
from ane.bundles.bundle import Bundle
from ane.bundles.manifest import read_manifest, write_manifest
from ane.bundles.tokenizer_json import read_tokenizer
from ane.system.errors import UserError
from ane.text.tokenizer import Tokenizer
from tests.edits import edit_json, flip
from tests.random_model import CONFIGS
from tests.refusals import assert_refused, refusal_of
from tests.tables import rows


def refusal(path: Path, network: str = "clvp") -> str:
    """The one-line message that a damaged bundle is refused with, when it is opened or ``network`` is read."""
    return refusal_of(lambda: Bundle(path).tensors(network))


def record_again(path: Path, file: str) -> None:
    """Update the SHA-256 and size of ``file`` in bundle.json."""
    data = (path / file).read_bytes()
    stated = json.loads((path / "bundle.json").read_text())
    entry = stated["networks"].get(Path(file).stem) or stated[Path(file).stem]
    entry.update(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    (path / "bundle.json").write_text(json.dumps(stated))


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("weights/clvp.safetensors", lambda bundle: bundle.tensors("clvp")),
        ("tokenizer.json", lambda bundle: bundle.tokenizer),
        ("mel_norms.safetensors", lambda bundle: bundle.mel_norms),
    ],
)
def test_a_changed_byte_is_found_when_the_file_is_read_or_verified(path, file, read):
    flip(path / file, -9)
    bundle = Bundle(path)
    assert bundle.tensors("rlg_auto"), "an intact file still loads"
    for use in (bundle.verify, lambda: read(bundle)):
        assert_refused(f"{Path(file).name} has SHA-256", use)


@pytest.mark.parametrize(
    ("name", "norms", "fault"),
    [
        *(
            ("mel_norms", norms, ": mel_norms must be 80 values of float32, not")
            for norms in (np.ones(81, np.float32), np.ones((80, 1), np.float32), np.ones(80, np.float64))
        ),
        ("norms", np.ones(80, np.float32), " has no mel_norms"),
    ],
)
def test_mel_norms_of_another_shape_type_or_name_are_refused(path, name, norms, fault):
    save_arrays({name: norms}, path / "mel_norms.safetensors")
    record_again(path, "mel_norms.safetensors")
    with pytest.raises(UserError, match=rf"mel_norms\.safetensors{fault}"):
        _ = Bundle(path).mel_norms


def test_a_changed_byte_is_found_after_an_earlier_load_even_with_the_old_time(path):
    file = path / "weights" / "clvp.safetensors"
    assert Bundle(path).tensors("clvp")
    times = file.stat()
    flip(file, -1)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "clvp.safetensors has SHA-256" in refusal(path)


def test_a_file_is_hashed_once_and_again_only_by_verify(path, monkeypatch):
    Bundle(path).verify()
    hashed, sha256_of = [], hashes.sha256_of
    monkeypatch.setattr(hashes, "sha256_of", lambda file: hashed.append(file) or sha256_of(file))
    assert Bundle(path).tensors("clvp")
    assert Bundle(path).tokenizer
    assert not hashed
    Bundle(path).verify()
    assert sorted(hashed) == sorted(path / wanted.file for wanted in Bundle(path).files)


WEIGHTS = "weights/clvp.safetensors"


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (WEIGHTS, lambda file: file.write_bytes(file.read_bytes()[:1000]), "clvp.safetensors has 1000 bytes"),
        (WEIGHTS, Path.unlink, "clvp.safetensors is missing"),
        ("bundle.json", lambda file: file.write_text('{"format": 1, '), "bundle.json is not JSON"),
        ("bundle.json", lambda file: file.write_bytes(b"\xff\xfe"), "bundle.json is not JSON"),
        ("bundle.json", lambda file: file.write_text("[]"), "it is a list instead of an object"),
        ("bundle.json", Path.unlink, "it has no bundle.json"),
        ("bundle.json", lambda file: edit_json(file, lambda stated: stated["networks"].pop("clvp")), "clvp2.pth"),
    ],
)
def test_what_is_missing_truncated_or_no_json_is_found_on_opening(path, file, damage, message):
    damage(path / file)
    assert message in refusal(path)


@pytest.mark.parametrize("keep", [0, 4, 1000, -1])
def test_safetensors_truncated_before_they_were_recorded_are_refused(path, keep):
    file = path / "weights" / "clvp.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    record_again(path, "weights/clvp.safetensors")
    assert "clvp.safetensors cannot be read as safetensors" in refusal(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("temperature"), "temperature is missing"),
        (lambda tensors: tensors.update(more=torch.zeros(1)), "more does not belong to this network"),
        (
            lambda tensors: tensors.update(temperature=torch.zeros(2)),
            "temperature has shape 2, but the network of bundle.json has a single number",
        ),
        (lambda tensors: tensors.update(temperature=torch.tensor(1)), "temperature is I64"),
    ],
)
def test_weights_that_do_not_fit_the_network_are_refused(path, change, message):
    tensors = {key: tensor.clone() for key, tensor in load_file(path / "weights" / "clvp.safetensors").items()}
    change(tensors)
    save_file(tensors, path / "weights" / "clvp.safetensors")
    record_again(path, "weights/clvp.safetensors")
    assert message in refusal(path)
    assert_refused(message, lambda: Bundle(path).verify())


@pytest.mark.parametrize(("entry", "value", "message"), rows(__file__, "refusals.tsv", "bundle.json"))
def test_a_bundle_json_of_invalid_values_is_refused_soon(path, entry, value, message):
    *above, last = entry.split(".")

    def change(stated: dict) -> None:
        place = reduce(dict.__getitem__, above, stated)
        place.pop(last, None)
        place |= {last: json.loads(value)} if value else {}

    edit_json(path / "bundle.json", change)
    began, network = time.monotonic(), above[1] if len(above) > 1 else "clvp"
    refused = refusal(path, network)
    assert "bundle.json" in refused or "do not describe a network" in refused
    assert message in refused
    assert f"bundle.json: networks: {network}: config: " in refused or not message.startswith("config: ")
    assert time.monotonic() - began < 30


def test_the_silent_code_can_be_zero(path):
    config = {"calm_token": 0, "tail_tokens": [0]}
    edit_json(path / "bundle.json", lambda stated: stated["networks"]["autoregressive"]["config"].update(config))
    assert Bundle(path).config("autoregressive").calm_token == 0


def test_a_path_that_is_no_bundle_is_refused(path, checkpoints):
    assert refusal(checkpoints.path).endswith(f": make a bundle with `ane import {checkpoints.path} -o NAME`")
    assert f"no such file or folder in {path}: check its name" in refusal(path / "nowhere")


def test_sections_and_networks_of_later_versions_are_ignored_and_kept(path):
    edit_json(path / "bundle.json", lambda stated: stated.update(packages={"gpt2": {"bytes": 3}}))
    edit_json(path / "bundle.json", lambda stated: stated["networks"].update(upsampler={"anything": 1}))
    assert Bundle(path).networks == set(CONFIGS)
    write_manifest(path, read_manifest(path))
    assert json.loads((path / "bundle.json").read_text())["packages"] == {"gpt2": {"bytes": 3}}
    Bundle(path).verify()


def test_a_voice_that_bundle_json_does_not_list_is_refused(random_bundle, tmp_path):
    bundle = Path(shutil.copytree(random_bundle, tmp_path / "bundle"))
    (bundle / "voices" / ".DS_Store").touch()
    assert Bundle(bundle).voices == bundle / "voices"
    shutil.copyfile(bundle / "voices" / "noise.safetensors", bundle / "voices" / "stranger.safetensors")
    with pytest.raises(UserError, match=r"stranger\.safetensors is not in bundle\.json"):
        _ = Bundle(bundle).voices


def test_a_tokenizer_that_is_not_utf_8_is_refused(path):
    data = b"\xff" + (path / "tokenizer.json").read_bytes()
    (path / "tokenizer.json").write_bytes(data)
    record = {"file": "tokenizer.json", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    edit_json(path / "bundle.json", lambda stated: stated.update(tokenizer=record))
    with pytest.raises(UserError, match=r"tokenizer\.json is not text in UTF-8 \(byte 0\)"):
        _ = Bundle(path).tokenizer


@pytest.mark.parametrize(
    "change",
    [
        {
            "padding": {
                "strategy": {"Fixed": 1 << 32},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "x",
            }
        },
        {"truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}],
            }
        },
    ],
)
def test_a_hostile_tokenizer_neither_aborts_nor_fills_the_memory(path, tmp_path, change):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads((path / "tokenizer.json").read_text()) | change))
    if "normalizer" in change:
        assert_refused("Precompiled", read_tokenizer, file)
    else:
        assert 1 < len(Tokenizer(read_tokenizer(file)).encode("hello")) <= 5


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"},
        {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "[UNK]"},
    ],
)
def test_a_tokenizer_without_the_token_that_it_uses_for_unknown_words_is_refused(model):
    assert_refused(
        r"no token '\[UNK\]'",
        lambda: Tokenizer(json.dumps({"version": "1.0", "added_tokens": [], "model": model})).speakable_ids("hello"),
    )
