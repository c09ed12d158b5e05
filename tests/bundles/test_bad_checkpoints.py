"""Test that one line rejects every bad folder, file or config of a checkpoint, and that no code in it runs."""

import json
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ane.bundles import open_model
from ane.bundles.opening import family_of_checkpoints, read_constructor_arguments
from ane.bundles.state_dicts import plain_names
from ane.bundles.torch_checkpoint import load_pickle, nearest_surplus
from ane.bundles.weights import layout
from ane.models.fastspeech import networks as fastspeech
from ane.models.tortoise.checkpoint_files import REQUIRED, find_files
from ane.models.tortoise.checkpoints import import_tortoise, packaged_file, sizes_of
from ane.models.tortoise.networks import NETWORKS
from ane.models.whisper.networks import WHISPER_NETWORKS
from tests.edits import edit_checkpoint, edit_json
from tests.refusals import assert_refused, refusal_of
from tests.tables import rows

Damage = Callable[[Path], object]


def refusal(directory: Path, config: dict | None = None) -> str:
    """The one-line message that a bad directory is refused with."""
    return refusal_of(import_tortoise, directory, config)


# Bad directories


def test_missing_required_files_are_named(directory, tmp_path):
    assert all(file in refusal(tmp_path) for file in REQUIRED)
    for file in REQUIRED:
        (directory / file).rename(tmp_path / "elsewhere")
        assert f"has no {file}" in refusal(directory)
        (tmp_path / "elsewhere").rename(directory / file)


def test_a_path_that_is_no_directory_of_checkpoints_is_refused(directory, tmp_path):
    assert "does not exist" in refusal(tmp_path / "nowhere")
    assert "it is clvp2.pth" in refusal(directory / "clvp2.pth")
    (tmp_path / "bundle.json").write_text("{}")
    assert f"use bundle={tmp_path}" in refusal(tmp_path)


def test_several_decoders_of_which_none_is_official_are_listed(directory):
    (directory / "models").mkdir()
    (directory / "autoregressive.pth").rename(directory / "models" / "8301_gpt.pth")
    config = json.loads((directory / "config.json").read_text())
    import_tortoise(directory, config)
    shutil.copy(directory / "models" / "8301_gpt.pth", directory / "models" / "9000_gpt.pth")
    assert "models/8301_gpt.pth, models/9000_gpt.pth: give one of them" in refusal(directory, config)


def test_a_file_that_lacks_one_key_of_a_network_names_it(directory):
    edit_checkpoint(directory / "autoregressive.pth", lambda entries: entries.pop("mel_head.weight"))
    (directory / "autoregressive.pth").rename(directory / "8301_gpt.pth")
    assert_refused(
        r"most keys of Tortoise's autoregressive\.pth, but it lacks mel_head\.weight",
        lambda: family_of_checkpoints(directory / "8301_gpt.pth"),
    )


@pytest.mark.parametrize(
    ("file", "key", "other"),
    [
        ("autoregressive.pth", "gpt.h.0.mlp.c_fc.weight", "gpt.h.0.mlp.c_fx.weight"),
        ("autoregressive.pth", "conditioning_encoder.init.bias", "conditioning_encoder.inits.bias"),
        ("diffusion_decoder.pth", "layers.1.attn.qkv.weight", "layers.1.attn.qkvs.weight"),
        ("hifidecoder.pth", "conv_pre.weight", "conv_prae.weight"),
    ],
)
def test_a_missing_key_is_named_with_the_keys_that_may_be_it(directory, file, key, other):
    parts = [key, f"{key}_g", f"{key}_v"]
    edit_checkpoint(
        directory / file,
        lambda entries: entries.update(
            {part.replace(key, other): entries.pop(part) for part in parts if part in entries}
        ),
    )
    message = refusal(directory)
    assert f"{file}: key {key} is missing: the file has {other}" in message
    assert "which no network needs" in message


def test_at_most_three_similar_keys_are_named():
    named = nearest_surplus("conv.weight", [f"conv{letter}.weight" for letter in "abcd"], ["conv.weight"])
    assert named.count(" and ") == 2


@pytest.mark.parametrize("name", ["autoregressive.pth", "8301_gpt.pth"])
def test_a_file_that_lacks_a_key_of_one_layer_is_not_called_misnamed(name, directory, original):
    edit_checkpoint(directory / "autoregressive.pth", lambda entries: entries.pop("gpt.h.0.mlp.c_fc.weight"))
    (directory / "autoregressive.pth").rename(directory / name)
    message = refusal_of(import_tortoise, directory / name, base=open_model(original))
    assert "key gpt.h.0.mlp.c_fc.weight is missing: other keys of gpt.h.0. are there" in message


@pytest.mark.parametrize("networks", [NETWORKS, fastspeech.NETWORKS, WHISPER_NETWORKS])
def test_the_keys_of_a_network_have_no_common_prefix(networks):
    """Importers remove a prefix that all keys of a file have."""
    for file in {network.file for network in networks.values()}:
        held = [network for network in networks.values() if network.file == file]
        main = [network for network in held if not network.prefix] or held
        keys = [network.prefix + key for network in main for key in layout(network, network.official()).shapes]
        assert list(plain_names(dict.fromkeys(keys))) == keys


def test_latents_of_a_voice_are_no_network(tmp_path):
    torch.save((torch.zeros(1, 8), torch.zeros(1, 16)), tmp_path / "ann.pth")
    assert_refused(
        "a tuple of tensors, which may be the latents of a voice", lambda: family_of_checkpoints(tmp_path / "ann.pth")
    )


def test_a_tokenizer_with_an_id_that_the_decoder_does_not_know_is_refused(directory):
    shutil.copy(packaged_file("tokenizer.json"), directory)
    edit_json(directory / "tokenizer.json", lambda tokenizer: tokenizer["model"]["vocab"].update(zzz=5000))
    own = directory / "tokenizer.json"
    assert f"{own} gives 'zzz' the id 5000, but the ids of the decoder's vocabulary end" in refusal(directory)
    (directory / "tokenizer.json").unlink()
    fewer = {"autoregressive.pth": {"number_text_tokens": 200, "start_text_token": 199}}
    assert "has no tokenizer.json, and the one used in its place gives" in refusal(directory, fewer)


# Bad files


def saved(file: str, content: object, **saving: bool) -> Damage:
    return lambda directory: torch.save(content, directory / file, **saving)


def edited(file: str, change: Callable[[dict], object]) -> Damage:
    """The dictionary in a checkpoint, changed."""
    return lambda directory: edit_checkpoint(directory / file, change)


def written(file: str, content: bytes) -> Damage:
    return lambda directory: (directory / file).write_bytes(content)


def truncated(share: float, zipped: bool) -> Damage:
    def damage(directory: Path) -> None:
        path = directory / "clvp2.pth"
        torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=zipped)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    return damage


TEXT_EMBEDDING = "text_emb.weight"
DAMAGES: list[tuple[Damage, tuple[str, ...]]] = [
    *(
        (truncated(share, zipped), ("clvp2.pth", "truncated"))
        for share in (0.1, 0.5, 0.999)
        for zipped in (True, False)
    ),
    (written("vocoder.pth", b""), ("vocoder.pth", "is empty")),
    (written("vocoder.pth", b"<!DOCTYPE html><html>Please log in</html>"), ("vocoder.pth", "web page")),
    (
        written("vocoder.pth", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
        ("vocoder.pth", "git lfs pull"),
    ),
    (written("vocoder.pth", b"just some text"), ("vocoder.pth", "not a PyTorch checkpoint")),
    (written("vocoder.pth", b"PK\x03\x04" + bytes(200)), ("vocoder.pth", "truncated or damaged")),
    (saved("clvp2.pth", [torch.zeros(3)]), ("clvp2.pth contains a list",)),
    (
        saved("clvp2.pth", {"epoch": 3, "state_dict": {"temperature": torch.zeros(())}}),
        ("this is not upstream's clvp2.pth",),
    ),
    (
        saved("clvp2.pth", {"epoch": 3, "steps": {"temperature": torch.zeros(())}}),
        ("the file has no tensors, only epoch, steps",),
    ),
    *(
        (
            lambda directory, file=file, other=other: shutil.copy(directory / other, directory / file),
            (file, other, "misnamed"),
        )
        for file, other in (
            ("clvp2.pth", "vocoder.pth"),
            ("vocoder.pth", "hifidecoder.pth"),
            ("autoregressive.pth", "diffusion_decoder.pth"),
            ("rlg_auto.pth", "rlg_diffuser.pth"),
        )
    ),
    (
        edited("autoregressive.pth", lambda entries: entries.pop("final_norm.bias")),
        ("autoregressive.pth: key final_norm.bias is missing",),
    ),
    (
        edited("hifidecoder.pth", lambda entries: entries.pop("conv_pre.weight_g")),
        ("hifidecoder.pth: key conv_pre.weight is missing",),
    ),
    *(
        (
            edited("clvp2.pth", lambda entries, value=value: entries.update({TEXT_EMBEDDING: value})),
            (f"clvp2.pth: {TEXT_EMBEDDING}",),
        )
        for value in (torch.zeros(256, 32, dtype=torch.int8), [1, 2], torch.zeros(256, 32).to_sparse())
    ),
    (
        edited("clvp2.pth", lambda entries: entries.update({TEXT_EMBEDDING: torch.zeros(1).expand(2**20)})),
        (f"clvp2.pth: {TEXT_EMBEDDING} claims the shape", "more than is stored"),
    ),
    (written("config.json", b"{"), ("config.json is not JSON",)),
    (written("config.json", b"[]"), ("config.json must be an object",)),
]


@pytest.mark.parametrize(("damage", "messages"), DAMAGES, ids=[messages[-1] for _, messages in DAMAGES])
def test_damaged_files_are_refused_by_name(directory, damage, messages):
    damage(directory)
    refused = refusal(directory)
    assert all(message in refused for message in messages), refused


class DirectoryMaker:
    """A pickle of this makes a directory when it is executed."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("save", "fault"),
    [
        (torch.save, "refused, because it contains code ("),
        (partial(torch.save, _use_new_zipfile_serialization=False), "refused, because it contains code ("),
        (lambda content, path: path.write_bytes(pickle.dumps(content)), "is not a PyTorch checkpoint"),
    ],
)
def test_code_in_a_checkpoint_is_refused_and_not_run(directory, tmp_path, save, fault):
    created = tmp_path / "created"
    save({"x": DirectoryMaker(created)}, directory / "clvp2.pth")
    assert f"clvp2.pth {fault}" in refusal(directory)
    assert not created.exists()
    pickle.loads(pickle.dumps(DirectoryMaker(created)))
    assert created.exists(), "the code works"


@given(st.binary(min_size=1, max_size=300), st.sampled_from([b"", b"\x80\x02", b"PK\x03\x04", b"\x80\x04\x95"]))
def test_random_bytes_are_refused_with_the_file_named(tmp_path_factory, content, start):
    path = tmp_path_factory.mktemp("bytes") / "x.pth"
    path.write_bytes(start + content)
    assert_refused(r"x\.pth", load_pickle, path)


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("clvp2.pth", "text_emb.weight"),
        ("clvp2.pth", "temperature"),
        ("autoregressive.pth", "mel_head.bias"),
        ("hifidecoder.pth", "conv_pre.weight_g"),
        ("hifidecoder.pth", "conv_pre.weight_v"),
    ],
)
def test_a_key_of_another_shape_is_named_with_both_shapes(directory, file, key):
    shape = torch.load(directory / file, weights_only=True)[key].shape
    edit_checkpoint(directory / file, lambda entries: entries.update({key: torch.zeros(*shape, 7)}))
    message = refusal(directory)
    assert f"{file}: {key} has shape {'×'.join(map(str, (*shape, 7)))}" in message
    assert f"the network has {'×'.join(map(str, shape)) or 'a single number'}: " in message
    assert "config.json" in message


@pytest.mark.parametrize(("more", "message"), [(-1, "has more layers than the network"), (1, "fewer layers")])
def test_more_or_fewer_layers_than_in_the_config_are_refused(directory, more, message):
    layers = import_tortoise(directory).configs["autoregressive"].layers + more
    edit_json(directory / "config.json", lambda c: c["autoregressive.pth"]["constructor"].update(layers=layers))
    refused = refusal(directory)
    assert "autoregressive.pth" in refused
    assert message in refused
    (directory / "config.json").unlink()
    assert "config.json" in refusal(directory), "what states the sizes"


# Configs


def test_every_constructor_argument_of_the_official_files_is_known(directory, golden_config):
    configs = import_tortoise(directory).configs
    assert configs["autoregressive"].model_dim == configs["conditioning_encoder"].model_dim
    assert configs["diffusion"].model_channels == configs["contextual_embedder"].model_channels
    bare = {
        file: entry.get("constructor", {})
        for file, entry in read_constructor_arguments(golden_config).items()
        if file.endswith(".pth")
    }
    assert all(import_tortoise(directory, bare).configs[name] == configs[name] for name in configs)


def test_without_a_config_the_sizes_are_official(directory):
    sizes = sizes_of(find_files(directory), {}, NETWORKS, {"autoregressive.pth": {"number_text_tokens": 255}}, "", None)
    assert all(sizes[name] == network.official() for name, network in NETWORKS.items())
    assert [network.voice_width(sizes[name]) for name, network in NETWORKS.items() if network.voice_width] == [
        1024,
        2048,
    ]


@pytest.mark.parametrize(("config", "message"), rows(__file__, "refusals.tsv", "constructor arguments"))
def test_constructor_arguments_other_than_upstreams_are_refused(directory, config, message):
    stated = read_constructor_arguments(directory / "config.json")
    bare = {file: entry.get("constructor", {}) for file, entry in stated.items() if not file.startswith("_")}
    changed = {
        file: {**bare.get(file, {}), **entry} if isinstance(entry, dict) else entry
        for file, entry in json.loads(config).items()
    }
    line = assert_refused(re.escape(message), import_tortoise, directory, {**bare, **changed}, "sizes.json")
    assert line.startswith("sizes.json: ") or "has shape" in line


def rewritten(source: Path, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """Write a ZIP archive again."""
    with zipfile.ZipFile(source) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(source, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, change(name, data))


ZEROS = b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + (1 << 32).to_bytes(5, "little") + b"\x85R."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: torch.save([torch.zeros(1).expand(2**38)], path), r"it\[0\] claims the shape 274877906944"),
        (
            lambda path: torch.save({"a": torch.zeros(1).expand(2**38)}, path, _use_new_zipfile_serialization=False),
            "a claims the shape 274877906944",
        ),
        (
            lambda path: torch.save([(one := torch.zeros(1 << 21)), *(one[i:] for i in range(9))], path),
            "claims the shape",
        ),
        (
            lambda path: (
                torch.save([torch.zeros(1 << 20)], path),
                rewritten(path, lambda _, data: data, zipfile.ZIP_DEFLATED),
            ),
            "is compressed",
        ),
        (
            lambda path: (
                torch.save([torch.zeros(1)], path),
                rewritten(path, lambda name, data: ZEROS if name.endswith(".pkl") else data),
            ),
            r"contains code \(builtins\.bytearray\)",
        ),
        (lambda path: path.write_bytes(ZEROS), r"contains code \(builtins\.bytearray\)"),
    ],
)
def test_a_small_file_that_claims_much_memory_is_refused(tmp_path, change, message):
    """An expanded tensor stores one number and claims any shape, an archive states any size."""
    path = tmp_path / "model.pth"
    change(path)
    assert_refused(message, load_pickle, path)


def test_tied_weights_and_containers_that_contain_themselves_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("ane.bundles.torch_checkpoint.SMALL", 0)
    weight, loop = torch.zeros(1000), []
    loop.append(loop)
    torch.save({"a": weight, "b": weight, "loop": loop}, tmp_path / "model.pth")
    assert len(load_pickle(tmp_path / "model.pth")) == 3
