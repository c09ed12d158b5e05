"""Test `ane convert --to gguf` and `--to ggml`: readers of other programs read the files, and the decoder computes."""

import itertools
import math
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ane.bundles import Bundle, open_model
from ane.bundles.precisions import GGUF
from ane.bundles.weights import expanded, layout, skeleton
from ane.bundles.writing import write_bundle
from ane.cli import main
from ane.models.tortoise.networks import NETWORKS
from ane.voices import Voice, load_voice
from converters.ggml.gguf_file import NAME_BYTES, gguf_tensors, write_gguf
from converters.ggml.tortoise_cpp import FILES, ggml_tensors, write_ggml
from tests.random_model import random_contents, random_model
from tests.refusals import assert_refused
from tests.tables import rows

Type = gguf.GGMLQuantizationType
# llama.cpp's name for a part of GPT-2 → our name, and whether llama.cpp transposes the weight
PARTS = {
    "token_embd": ("mel_embedding", False),
    "position_embd": ("mel_pos_embedding.emb", False),
    "output_norm": ("gpt.ln_f", False),
    "output": ("mel_head", False),
}
LAYER_PARTS = {
    "attn_norm": ("ln_1", False),
    "attn_qkv": ("attn.c_attn", True),
    "attn_output": ("attn.c_proj", True),
    "ffn_norm": ("ln_2", False),
    "ffn_up": ("mlp.c_fc", True),
    "ffn_down": ("mlp.c_proj", True),
}
SHORTER = (
    ("relative_pos_embeddings.relative_attention_bias", "relative_bias"),
    ("conditioning_timestep_integrator", "timestep_integrator"),
    ("transformer.transformer.attn_layers", "transformer"),
)
# Largest error of a value. For fp16, it is a share of the value. For Q8_0, it is a share of the largest of the value's
# 32 neighbours: half a step of 1/127, and the rounding of the scale to fp16.
FP16_ERROR, Q8_0_ERROR = 2.0**-11, 0.57 / 127


@pytest.fixture(scope="module")
def random_fp32(tmp_path_factory) -> Bundle:
    return write_bundle(random_contents(), tmp_path_factory.mktemp("random") / "bundle", licence="Apache-2.0")


def sources(model: Bundle) -> dict[str, np.ndarray]:
    """The name of every tensor of a network in the file → the network's values."""
    found = {}
    for network in model.networks:
        names = {}
        if network == "autoregressive":
            parts = PARTS | {
                f"blk.{layer}.{theirs}": (f"gpt.h.{layer}.{ours}", transposed)
                for theirs, (ours, transposed) in LAYER_PARTS.items()
                for layer in range(model.config(network).layers)
            }
            names = {
                f"{ours}.{kind}": (f"{theirs}.{kind}", transposed and kind == "weight")
                for theirs, (ours, transposed) in parts.items()
                for kind in ("weight", "bias")
            }
        for key, tensor in model.tensors(network).items():
            name, transposed = names.get(key, (f"{network}.{key}", False))
            for long, short in SHORTER:
                name = name.replace(long, short)
            found[name] = (tensor.T if transposed else tensor).float().numpy()
    return found


def values(tensor: gguf.ReaderTensor) -> np.ndarray:
    return gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])


@pytest.mark.parametrize("precision", GGUF)
@pytest.mark.parametrize("name", ["demo", "random"])
def test_every_tensor_reads_back_within_its_rounding(tmp_path, request, name, precision):
    model = open_model("demo") if name == "demo" else request.getfixturevalue("random_fp32")
    write_gguf(model, tmp_path / "out.gguf", precision)
    wanted = sources(model)
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    found = {tensor.name: tensor for tensor in reader.tensors}
    voices = {
        f"voice.{path.stem}.{part}"
        for path in (model.voices.glob("*.safetensors") if model.voices else ())
        for part in ("autoregressive", "diffusion")
    }
    assert found.keys() == wanted.keys() | voices | {"mel_norms"}
    for key, source in wanted.items():
        got, kind = values(found[key]), found[key].tensor_type
        assert got.size == source.size
        error, source = np.abs(got.ravel() - source.ravel()), np.abs(source.ravel())
        if kind == Type.F32:
            assert not error.any(), key
        elif kind == Type.F16:
            assert (error <= FP16_ERROR * source + 2.0**-25).all(), key
        else:
            assert (error.reshape(-1, 32).max(1) <= Q8_0_ERROR * source.reshape(-1, 32).max(1)).all(), key
    types = {tensor.tensor_type for tensor in found.values()}
    assert (
        types == {"fp32": {Type.F32}, "fp16": {Type.F32, Type.F16}, "q8_0": {Type.F32, Type.F16, Type.Q8_0}}[precision]
    )
    assert found["blk.0.attn_qkv.weight"].tensor_type == {"fp32": Type.F32, "fp16": Type.F16}.get(precision, Type.Q8_0)


def test_a_gpt_2_of_llama_cpp_computes_the_decoder(tmp_path):
    """From the names, shapes and metadata alone: what it returns, behind ``final_norm``, is what the network does."""
    model = open_model("demo")
    write_gguf(model, tmp_path / "out.gguf", "fp32")
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    stated = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {tensor.name: torch.from_numpy(values(tensor).copy()) for tensor in reader.tensors}
    assert (stated["general.architecture"], stated["tokenizer.ggml.model"]) == ("gpt2", "none")
    width, heads, epsilon = (
        stated[f"gpt2.{key}"] for key in ("embedding_length", "attention.head_count", "attention.layer_norm_epsilon")
    )
    assert tensors["token_embd.weight"].shape == (stated["gpt2.vocab_size"], width)
    assert tensors["position_embd.weight"].shape == (stated["gpt2.context_length"], width)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (width,), tensors[f"{name}.weight"], tensors[f"{name}.bias"], epsilon)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    codes = torch.tensor([1024, 3, 14, 15, 92, 65])
    embedded = x = tensors["token_embd.weight"][codes] + tensors["position_embd.weight"][: len(codes)]
    for layer in range(stated["gpt2.block_count"]):
        at = f"blk.{layer}"
        joined = linear(norm(x, f"{at}.attn_norm"), f"{at}.attn_qkv")
        q, k, v = joined.view(len(codes), 3, heads, -1).permute(1, 2, 0, 3)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).reshape(len(codes), width)
        x = x + linear(attended, f"{at}.attn_output")
        hidden = F.gelu(linear(norm(x, f"{at}.ffn_norm"), f"{at}.ffn_up"), approximate="tanh")
        x = x + linear(hidden, f"{at}.ffn_down")
    logits = linear(norm(norm(x, "output_norm"), "autoregressive.final_norm"), "output")

    network = skeleton(NETWORKS["autoregressive"], model.config("autoregressive"))
    network.load_state_dict(
        {key: tensor.float() for key, tensor in expanded(model.tensors("autoregressive")).items()}, assign=True
    )
    with torch.inference_mode():
        torch.testing.assert_close(logits, network.logits(network(embedded[None]))[0], rtol=1e-4, atol=1e-4)


def test_metadata_and_voices_are_those_of_the_model(tmp_path):
    model = open_model("demo")
    write_gguf(model, tmp_path / "out.gguf", "q8_0")
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    stated = {key: field.contents() for key, field in reader.fields.items()}
    assert stated["general.license"] == model.manifest.licence
    assert stated["tokenizer.huggingface.json"] == model.tokenizer
    assert stated["tortoise.diffusion.prediction"] == "x0"
    assert stated["tortoise.hifigan.upsample_factors"] == [8, 8, 2, 2]
    assert stated["tortoise.univnet.weights_sha256"] == model.manifest.networks["univnet"].weights.sha256
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    voice = load_voice(model.voices / "heart.safetensors")
    np.testing.assert_array_equal(tensors["voice.heart.autoregressive"], voice.ar[0])
    np.testing.assert_array_equal(tensors["voice.heart.diffusion"], voice.diffusion[0])
    np.testing.assert_array_equal(tensors["mel_norms"], model.mel_norms)


def test_names_are_unique_and_short_enough_for_ggml_at_the_official_sizes():
    names = [
        tensor.name
        for network in NETWORKS.values()
        for tensor in gguf_tensors(network.name, network.official(), "q8_0")
    ]
    assert len(names) == len(set(names))
    assert max(map(len, names)) <= NAME_BYTES


@pytest.mark.parametrize(
    ("value", "precision", "reason"),
    [
        (np.nan, "fp32", "NaN"),
        (np.inf, "q8_0", "NaN or infinite"),
        (1e6, "fp16", "beyond the range of fp16"),
        (1e6, "q8_0", "beyond the range of fp16"),
    ],
)
def test_an_invalid_value_is_named_and_nothing_is_written(tmp_path, monkeypatch, random_fp32, value, precision, reason):
    tensors = random_fp32.tensors("autoregressive")
    tensors["gpt.h.1.attn.c_attn.weight"][3, 5] = value
    monkeypatch.setattr(random_fp32, "tensors", lambda network: tensors)
    assert_refused(
        rf"blk\.1\.attn_qkv\.weight has .*{reason}",
        lambda: write_gguf(random_fp32, tmp_path / "out.gguf", precision, ["autoregressive"]),
    )
    assert not list(tmp_path.iterdir())


def test_the_command_writes_the_networks_that_are_named_and_reports_their_tensors(tmp_path, succeed, complain):
    command = ("convert", "demo", "--to", "gguf", "-o", tmp_path / "out.gguf", "--networks", "univnet,clvp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "gguf", None)
        assert "pip install 'tortoise-ane[gguf]'" in complain(*command)
    printed = succeed(*command)
    tensors = gguf.GGUFReader(tmp_path / "out.gguf").tensors
    assert {tensor.name.partition(".")[0] for tensor in tensors} == {"mel_norms", "voice", "univnet", "clvp"}
    assert f"{len(tensors)} tensors" in printed


DEMO_LAYERS = {"0:30": "0:7", "0:10": "0:4", "10:13": "4:7"}


def registered(file: str, layers: dict[str, str]) -> dict[str, tuple[int, ...]]:
    """Name → axes at the official sizes; ``layers`` replaces ranges of indices."""
    known = {}
    for ranges, name, axes in rows(__file__, "loaders.tsv", file):
        indices = [range(*map(int, layers.get(one, one).split(":"))) for one in ranges.split()]
        known |= {name.format(*index): tuple(map(int, axes.split())) for index in itertools.product(*indices)}
    return known


def load(path: Path, known: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Every tensor of a file, read by the loaders' steps; their checks, apart from sizes, are assertions."""
    data, at, found = path.read_bytes(), 4, {}
    assert struct.unpack_from("<I", data) == (0x67676D6C,)
    while at < len(data):
        count, length, kind = struct.unpack_from("<3i", data, at)
        axes = struct.unpack_from(f"<{count}i", data, at + 12)
        at += 12 + 4 * count
        name = data[at : at + length].decode()
        at += length
        assert name in known
        assert kind == 0
        assert len(axes) <= 4
        found[name] = np.frombuffer(data, "<f4", math.prod(axes), at).reshape(axes[::-1])
        at += found[name].nbytes
    assert at == len(data)
    assert len(found) == len(known)
    return found


class OfficialSizes:
    """Zeros at the official sizes, which take no memory."""

    name = "official"

    def config(self, network: str):
        return NETWORKS[network].official()

    def tensors(self, network: str) -> dict[str, torch.Tensor]:
        shapes = layout(NETWORKS[network], self.config(network)).shapes
        return {key: torch.zeros(1).expand(shape) for key, shape in shapes.items()}


def test_at_the_official_sizes_the_loaders_find_each_of_their_755_tensors_with_its_axes():
    voice, count = Voice(np.zeros((1, 1024), np.float32), np.zeros((1, 2048), np.float32), "none"), 0
    for network, file in FILES.items():
        known = registered(file, {})
        assert {name: values.shape[::-1] for name, values in ggml_tensors(OfficialSizes(), network, voice)} == known
        count += len(known)
    assert count == 755


def test_the_command_writes_the_embedded_model_exactly(tmp_path, capsys):
    folder = tmp_path / "models"
    assert main(["convert", "demo", "--to", "ggml", "-o", str(folder), "--voice", "michael"]) == 0
    out, err = capsys.readouterr()
    assert "--voice ../models/voice.bin" in out
    assert "the autoregressive network of demo has layers 7, not 30" in err
    assert {path.name for path in folder.iterdir()} == {*FILES.values(), "tokenizer.json", "voice.bin"}
    model = open_model("demo")
    voice = load_voice(model.voices / "michael.safetensors")
    for network, file in FILES.items():
        found = load(folder / file, registered(file, DEMO_LAYERS))
        sources = {
            key.replace("gpt.", "inference_model.transformer.")
            .replace("final_norm.", "inference_model.lm_head.0.")
            .replace("mel_head.", "inference_model.lm_head.1."): tensor
            for key, tensor in model.tensors(network).items()
        }
        if network == "diffusion":
            np.testing.assert_array_equal(found.pop("diffusion_conditioning_latent"), voice.diffusion)
        assert found.keys() == sources.keys()
        for name, source in sources.items():
            np.testing.assert_array_equal(found[name].ravel(), source.float().numpy().ravel(), err_msg=name)
    np.testing.assert_array_equal(np.fromfile(folder / "voice.bin", "<f4"), voice.ar[0])
    assert "\n" not in (folder / "tokenizer.json").read_text(encoding="utf-8")


def test_a_fault_in_the_last_network_leaves_no_file_and_others_alone(tmp_path, monkeypatch):
    model = Bundle(random_model().path)
    tensors = model.tensors
    monkeypatch.setattr(
        model,
        "tensors",
        lambda network: (
            tensors(network) | ({"conv_pre.bias": torch.full((4,), torch.nan)} if network == "univnet" else {})
        ),
    )
    voice = Voice(*(np.zeros((1, width), np.float32) for width in model.widths), "none")
    (tmp_path / "mol.bin").write_bytes(b"precious")
    assert_refused(r"univnet: conv_pre\.bias has NaN", write_ggml, model, voice, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mol.bin"]
