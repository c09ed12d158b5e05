"""`ane convert --to gguf`: one file that holds a whole model, read back by gguf's own reader."""

import json
import resource
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from ane.bundles import Model, open_model
from ane.bundles.bundle import Bundle
from ane.bundles.weights import layout
from ane.cli import main
from ane.models.tortoise.networks import NETWORKS
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from ane.voices import Voice, load_voice, save_voice
from converters.gguf import NAME_BYTES, gguf_tensors, matrix_layers, write_gguf
from tests.random_model import RandomModel

PRECISIONS = ("f32", "f16", "q8_0", "q4_0")
THRESHOLDS = {Type.F16: 70.0, Type.Q8_0: 40.0, Type.Q4_0: 17.0}      # dB of the worst tensor against its source


@pytest.fixture(scope="module")
def files(random_bundle, tmp_path_factory) -> dict[str, gguf.GGUFReader]:
    """The same bundle in every precision."""
    folder = tmp_path_factory.mktemp("gguf")
    for precision in PRECISIONS:
        write_gguf(Bundle(random_bundle), folder / f"{precision}.gguf", precision)
    return {precision: gguf.GGUFReader(folder / f"{precision}.gguf") for precision in PRECISIONS}


@pytest.fixture(scope="module")
def wanted(random_bundle) -> dict[str, tuple[str, np.ndarray]]:
    return sources(Bundle(random_bundle))


def sources(model: Model) -> dict[str, tuple[str, np.ndarray]]:
    """Name in the file → network, and the expected values in float32."""
    found = {}
    for network in model.networks:
        tensors = model.tensors(network)
        for entry in gguf_tensors(network, model.config(network), "f32"):
            values = tensors[entry.key].float().numpy()
            found[entry.name] = network, (values.T if entry.transposed else values).reshape(entry.shape)
    return found


def values(tensor: gguf.ReaderTensor) -> np.ndarray:
    return gguf.dequantize(tensor.data, tensor.tensor_type)


def metadata(file: gguf.GGUFReader) -> dict:
    return {key: field.contents() for key, field in file.fields.items()}


# Tensors

@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_tensor_reads_back_as_what_it_was_made_from(files, wanted, precision):
    extra = {"mel_norms", "voice.noise.autoregressive", "voice.noise.diffusion"}
    assert {tensor.name for tensor in files[precision].tensors} == set(wanted) | extra
    for tensor in files[precision].tensors:
        if tensor.name in extra:
            continue
        _, source = wanted[tensor.name]
        assert tuple(tensor.shape[::-1]) == source.shape, tensor.name
        own = gguf.quantize(np.ascontiguousarray(source), tensor.tensor_type)
        np.testing.assert_array_equal(tensor.data, own, err_msg=tensor.name)
        np.testing.assert_array_equal(values(tensor), gguf.dequantize(own, tensor.tensor_type).reshape(source.shape))
        assert tensor.tensor_type == Type.F32 or snr_db(source, values(tensor)) >= THRESHOLDS[tensor.tensor_type]


def test_f32_and_f16_lose_nothing_of_an_fp16_bundle(files, wanted):
    for precision in ("f32", "f16"):
        for tensor in files[precision].tensors:
            if tensor.name in wanted:
                np.testing.assert_array_equal(values(tensor), wanted[tensor.name][1], err_msg=tensor.name)


def test_only_matrices_of_the_networks_that_are_compressed_are_in_blocks(files, wanted, random_bundle):
    model = Bundle(random_bundle)
    in_blocks = {tensor.name for tensor in files["q8_0"].tensors if tensor.tensor_type == Type.Q8_0}
    assert "autoregressive.gpt.h.0.attn.c_attn.weight" in in_blocks
    assert "diffusion.layers.0.attn.qkv.weight" in in_blocks
    assert in_blocks == {tensor.name for tensor in files["q4_0"].tensors if tensor.tensor_type == Type.Q4_0}
    assert {name.partition(".")[0] for name in in_blocks} == {"autoregressive", "diffusion", "clvp"}
    multiplied = set()
    for network in model.networks:
        keys = matrix_layers(network, model.config(network))
        multiplied |= {entry.name for entry in gguf_tensors(network, model.config(network), "f32") if entry.key in keys}
    assert in_blocks <= multiplied
    for tensor in files["q8_0"].tensors:
        single = tensor.n_elements == max(tensor.shape)
        kept = single or tensor.name.startswith("univnet.")
        assert (tensor.tensor_type == Type.F32) == kept, tensor.name
        if tensor.name in multiplied - in_blocks and not kept:      # a row that is not a multiple of 32, …
            network, source = wanted[tensor.name]                   # … or an uncompressed network
            assert network not in ("autoregressive", "diffusion", "clvp") or source.shape[-1] % 32, tensor.name


def test_a_row_that_is_not_a_multiple_of_32_stays_f16(tmp_path):
    """The embedded diffusion network is 80 channels wide."""
    write_gguf(open_model("demo"), tmp_path / "out.gguf", "q4_0", ["diffusion"])
    types = {tensor.name: tensor.tensor_type for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert types["diffusion.layers.0.attn.qkv.weight"] == Type.F16
    assert types["diffusion.integrating_conv.weight"] == Type.Q4_0     # 160 wide


def test_a_matrix_multiplies_as_the_network_does(files, random_bundle):
    """Rows are outputs, also where the network stores the transpose."""
    model = Bundle(random_bundle)
    tensors = {tensor.name: tensor for tensor in files["f32"].tensors}
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    weight = model.tensors("autoregressive")["gpt.h.1.mlp.c_fc.weight"].float()
    np.testing.assert_allclose(values(tensors["autoregressive.gpt.h.1.mlp.c_fc.weight"]) @ x,
                               (torch.from_numpy(x) @ weight).numpy(), rtol=1e-4, atol=1e-5)


def test_names_are_unique_and_short_enough_for_ggml_at_the_official_sizes():
    names = [entry.name for network in NETWORKS.values()
             for entry in gguf_tensors(network.name, network.official(), "q4_0")]
    assert len(names) == len(set(names)) == sum(len(layout(network, network.official()).shapes)
                                                for network in NETWORKS.values())
    assert max(len(name) for name in names) <= NAME_BYTES


def test_the_voice_and_the_mel_norms_are_stored_unrounded(files, random_bundle):
    voice = load_voice(random_bundle / "voices" / "noise.safetensors")
    tensors = {tensor.name: tensor.data for tensor in files["q4_0"].tensors}
    np.testing.assert_array_equal(tensors["voice.noise.autoregressive"], voice.ar[0])
    np.testing.assert_array_equal(tensors["voice.noise.diffusion"], voice.diffusion[0])
    np.testing.assert_array_equal(tensors["mel_norms"], Bundle(random_bundle).mel_norms)


# Metadata

def test_metadata_describe_the_model(files, random_bundle):
    stated = metadata(files["q8_0"])
    manifest = Bundle(random_bundle).manifest
    assert stated["general.architecture"] == "tortoise"
    assert stated["general.license"] == manifest.licence == "Apache-2.0"
    assert stated["general.name"] == manifest.name
    assert stated["general.description"] == manifest.description
    assert {precision: metadata(file)["general.file_type"] for precision, file in files.items()} == {
        "f32": 0, "f16": 1, "q8_0": 7, "q4_0": 2}
    assert stated["tortoise.trained"] is False
    assert (stated["tortoise.default_voice"], stated["tortoise.voices"]) == ("noise", ["noise"])
    assert set(stated["tortoise.networks"]) == set(manifest.networks)
    for name, network in manifest.networks.items():
        assert stated[f"tortoise.{name}.weights_sha256"] == network.weights.sha256


def test_every_hyper_parameter_of_what_a_network_computes_reads_back(files):
    stated = metadata(files["f16"])
    assert (stated["tortoise.block_count"], stated["tortoise.embedding_length"],
            stated["tortoise.attention.head_count"]) == (3, 64, 4)
    for network in RandomModel.networks:
        config = RandomModel().config(network)
        read = {key: stated[f"tortoise.{network}.{key}"] for key in vars(config)
                if key not in config.without_effect}
        for key, value in vars(config).items():
            if isinstance(value, tuple) and value and isinstance(value[0], tuple):
                read[key] = json.loads(read[key])
            if isinstance(value, float) and key in read:
                read[key] = pytest.approx(read[key], rel=1e-6)
        assert type(config).from_upstream(read) == config


def test_the_tokenizer_reads_back(files, random_bundle):
    stated, tokenizer = metadata(files["f16"]), Bundle(random_bundle).tokenizer
    assert stated["tokenizer.huggingface.json"] == tokenizer
    bpe = json.loads(tokenizer)["model"]
    assert {token: id for id, token in enumerate(stated["tokenizer.ggml.tokens"])} == bpe["vocab"]
    assert stated["tokenizer.ggml.merges"] == bpe["merges"]
    assert stated["tokenizer.ggml.unknown_token_id"] == bpe["vocab"]["[UNK]"]
    assert stated["tokenizer.ggml.token_type"][:4] == [3, 2, 3, 1]      # [STOP], [UNK], [SPACE], !
    # upstream's start id is not a token
    assert "tokenizer.ggml.bos_token_id" not in stated
    assert stated["tortoise.autoregressive.start_text_token"] == 255


# Official checkpoints

def test_checkpoints_are_written_as_the_bundle_that_they_import_to(tmp_path, golden_checkpoints, golden_config):
    model = open_model(checkpoints=golden_checkpoints, config=golden_config)
    write_gguf(model, tmp_path / "out.gguf", "f32")
    wanted, file = sources(model), gguf.GGUFReader(tmp_path / "out.gguf")
    assert set(wanted) <= {tensor.name for tensor in file.tensors}
    for tensor in file.tensors:
        if tensor.name in wanted:
            np.testing.assert_array_equal(values(tensor), wanted[tensor.name][1])


# The command

@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Runs a conversion that must fail; returns its one-line error."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))

    def run(source: Path | str, *arguments: str) -> str:
        assert main(["convert", str(source), *map(str, arguments)]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("ane: error: ")
        return " ".join(err.split())

    return run


def test_the_command_writes_a_file_and_reports_its_contents(tmp_path, capsys, random_bundle):
    out = tmp_path / "new" / "out.gguf"
    arguments = ["convert", str(random_bundle), "--to", "gguf", "-o", str(out), "--precision", "q8_0", "--networks",
                 "autoregressive,univnet"]
    assert main(arguments) == 0
    result = " ".join(capsys.readouterr().out.split())
    file = gguf.GGUFReader(out)
    assert f"{len(file.tensors)} tensors" in result
    assert {tensor.name.partition(".")[0] for tensor in file.tensors} == {"mel_norms", "voice", "autoregressive",
                                                                          "univnet"}
    assert [path.name for path in out.parent.iterdir()] == ["out.gguf"]


@pytest.mark.parametrize(("flag", "value"), [
    ("--lanes", "2"), ("--buckets", "step=64"), ("--cache", "io"), ("--wide", "norm")])
def test_a_flag_without_effect_on_a_gguf_file_is_refused(refused, tmp_path, random_bundle, flag, value):
    line = refused(random_bundle, "--to", "gguf", "-o", tmp_path / "out.gguf", flag, value)
    assert f"{flag} has no effect with --to gguf" in line


@pytest.mark.parametrize("precision", ["fp16", "q5_1", "", "f16,f32"])
def test_an_unknown_precision_is_refused(refused, tmp_path, random_bundle, precision):
    line = refused(random_bundle, "--to", "gguf", "-o", tmp_path / "out.gguf", "--precision", precision)
    assert "--precision" in line
    assert "q4_0" in line


def test_an_existing_file_or_another_suffix_is_refused(refused, tmp_path, random_bundle):
    (tmp_path / "out.gguf").write_bytes(b"precious")
    assert "--force" in refused(random_bundle, "--to", "gguf", "-o", tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == b"precious"
    assert ".gguf" in refused(random_bundle, "--to", "gguf", "-o", tmp_path / "out")
    assert main(["convert", str(random_bundle), "--to", "gguf", "-o", str(tmp_path / "out.gguf"), "--force"]) == 0
    assert (tmp_path / "out.gguf").read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize(("networks", "reason"), [
    ("cvvp", "cvvp.pth"), ("gpt", "no such network"), ("", "must name a network")])
def test_an_unknown_or_missing_network_is_refused(refused, tmp_path, random_bundle, networks, reason):
    assert reason in refused(random_bundle, "--to", "gguf", "-o", tmp_path / "out.gguf", "--networks", networks)


def test_without_the_gguf_package_the_error_tells_what_to_install(refused, tmp_path, random_bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'tortoise-ane[gguf]'" in refused(random_bundle, "--to", "gguf", "-o", tmp_path / "out.gguf")


def test_a_full_disk_leaves_the_old_file_and_no_leftovers(refused, tmp_path, random_bundle):
    (tmp_path / "out.gguf").write_bytes(b"precious")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        assert "cannot write" in refused(random_bundle, "--to", "gguf", "-o", tmp_path / "out.gguf", "--force")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "out.gguf").read_bytes() == b"precious"
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["out.gguf"]


# Invalid models

class ModelWithOneValue(RandomModel):
    """A model with one value changed, and voices if a folder is given."""

    def __init__(self, value: float = 0.0, voices: Path | None = None):
        super().__init__(voices)
        self.value = value

    def tensors(self, network: str) -> dict[str, torch.Tensor]:
        tensors = super().tensors(network)
        if network == "autoregressive":
            tensors["gpt.h.1.attn.c_attn.weight"][3, 5] = self.value
        return tensors


@pytest.fixture
def model_with(monkeypatch):
    """Makes models without files, whose provenance is faked."""
    monkeypatch.setattr("converters.gguf.weights_sha256", lambda model, network: "0" * 64)
    monkeypatch.setattr("converters.gguf.provenance_of",
                        lambda model: {"licence": "", "description": "", "source": {}})
    return ModelWithOneValue


@pytest.mark.parametrize(("value", "precision", "reason"), [
    (np.nan, "f32", "NaN"), (np.inf, "q8_0", "NaN or infinite"), (1e6, "f16", "beyond the range of fp16"),
    (1e6, "q4_0", "beyond the range of fp16")])
def test_an_invalid_value_is_named(model_with, tmp_path, value, precision, reason):
    with pytest.raises(UserError, match=rf"gpt\.h\.1\.attn\.c_attn\.weight.*{reason}"):
        write_gguf(model_with(value), tmp_path / "out.gguf", precision)
    assert not list(tmp_path.iterdir())


def test_a_voice_of_another_model_or_with_too_long_a_name_is_named(model_with, tmp_path):
    rng = np.random.default_rng(0)
    for name, widths, reason in (("other", (8, 8), "made with another model"), ("a" * 60, (64, 64), "too long")):
        folder = tmp_path / name
        folder.mkdir()
        save_voice(folder / f"{name}.safetensors",
                   Voice(*(rng.standard_normal((1, width), dtype=np.float32) for width in widths), name=name))
        with pytest.raises(UserError, match=reason):
            write_gguf(model_with(voices=folder), tmp_path / "out.gguf", "f32")
