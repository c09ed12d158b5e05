"""`ane convert --to ggml`: the files that tortoise.cpp reads, parsed here as its loaders parse them.

The loaders accept only tensors that they know by name and shape. Those are listed below, independently of the writer.
"""

import json
import math
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from converters.ggml import tortoise_cpp

from ane.bundles import Model
from ane.bundles.weights import layout
from ane.cli import main
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig
from ane.models.tortoise.networks.univnet import UnivNetConfig
from ane.system.errors import UserError
from ane.voices import Voice, save_voice
from converters.tortoise_cpp import write_ggml
from tests.random_model import RandomModel

OFFICIAL = {name: NETWORKS[name].official() for name in ("autoregressive", "diffusion", "univnet")}


def decoder_shapes(layers: int = 30, width: int = 1024, texts: int = 256, codes: int = 8194) -> dict[str, tuple]:
    """The tensors that the loader of ggml-model.bin knows; axes innermost first."""
    block = {"ln_1.weight": (width,), "ln_1.bias": (width,), "attn.c_attn.weight": (3 * width, width),
             "attn.c_attn.bias": (3 * width,), "attn.c_proj.weight": (width, width), "attn.c_proj.bias": (width,),
             "ln_2.weight": (width,), "ln_2.bias": (width,), "mlp.c_fc.weight": (4 * width, width),
             "mlp.c_fc.bias": (4 * width,), "mlp.c_proj.weight": (width, 4 * width), "mlp.c_proj.bias": (width,)}
    transformer = "inference_model.transformer."
    return {f"{transformer}h.{layer}.{key}": shape for layer in range(layers) for key, shape in block.items()} | {
        f"{transformer}ln_f.weight": (width,), f"{transformer}ln_f.bias": (width,),
        "inference_model.lm_head.0.weight": (width,), "inference_model.lm_head.0.bias": (width,),
        "inference_model.lm_head.1.weight": (width, codes), "inference_model.lm_head.1.bias": (codes,),
        "text_embedding.weight": (width, texts), "text_pos_embedding.emb.weight": (width, 404),
        "mel_embedding.weight": (width, codes), "mel_pos_embedding.emb.weight": (width, 608)}


def diffusion_shapes(layers: int = 10, width: int = 1024, heads: int = 16, latent: int = 1024) -> dict[str, tuple]:
    """The tensors that the loader of ggml-diffusion-model.bin knows."""
    def residual(path: str) -> dict[str, tuple]:
        return {f"{path}.in_layers.0.weight": (width,), f"{path}.in_layers.0.bias": (width,),
                f"{path}.in_layers.2.weight": (width, width), f"{path}.in_layers.2.bias": (width,),
                f"{path}.emb_layers.1.weight": (width, 2 * width), f"{path}.emb_layers.1.bias": (2 * width,),
                f"{path}.out_layers.0.weight": (width,), f"{path}.out_layers.0.bias": (width,),
                f"{path}.out_layers.3.weight": (3, width, width), f"{path}.out_layers.3.bias": (width,)}

    def attention(path: str) -> dict[str, tuple]:
        return {f"{path}.norm.weight": (width,), f"{path}.norm.bias": (width,),
                f"{path}.qkv.weight": (width, 3 * width),
                f"{path}.qkv.bias": (3 * width,), f"{path}.proj_out.weight": (width, width),
                f"{path}.proj_out.bias": (width,),
                f"{path}.relative_pos_embeddings.relative_attention_bias.weight": (heads, 32)}

    shapes = {"diffusion_conditioning_latent": (2 * width, 1), "unconditioned_embedding": (width,),
              "latent_conditioner.0.weight": (3, latent, width), "latent_conditioner.0.bias": (width,),
              "code_norm.weight": (width,), "code_norm.bias": (width,),
              "time_embed.0.weight": (width, width), "time_embed.0.bias": (width,),
              "time_embed.2.weight": (width, width), "time_embed.2.bias": (width,),
              "inp_block.weight": (3, 100, width), "inp_block.bias": (width,),
              "integrating_conv.weight": (2 * width, width), "integrating_conv.bias": (width,),
              "out.0.weight": (width,), "out.0.bias": (width,), "out.2.weight": (3, width, 200), "out.2.bias": (200,)}
    for block in range(1, 5):
        shapes |= attention(f"latent_conditioner.{block}")
    for place in [*(f"conditioning_timestep_integrator.{layer}" for layer in range(3)),
                  *(f"layers.{layer}" for layer in range(layers))]:
        shapes |= residual(f"{place}.resblk") | attention(f"{place}.attn")
    for layer in range(layers, layers + 3):
        shapes |= residual(f"layers.{layer}")
    return shapes


def vocoder_shapes(width: int = 32) -> dict[str, tuple]:
    """The tensors that the loader of ggml-vocoder-model.bin knows."""
    shapes = {"conv_pre.weight": (7, 64, width), "conv_pre.bias": (width,),
              "conv_post.1.weight": (7, width), "conv_post.1.bias": (1,)}
    for block, taps in enumerate((16, 16, 8)):
        at = f"res_stack.{block}"
        predictor = f"{at}.kernel_predictor"
        shapes |= {f"{predictor}.input_conv.0.weight": (5, 100, 64), f"{predictor}.input_conv.0.bias": (64,),
                   f"{predictor}.kernel_conv.weight": (3, 64, 24 * width * width),
                   f"{predictor}.kernel_conv.bias": (24 * width * width,),
                   f"{predictor}.bias_conv.weight": (3, 64, 8 * width), f"{predictor}.bias_conv.bias": (8 * width,),
                   f"{at}.convt_pre.1.weight": (taps, width, width), f"{at}.convt_pre.1.bias": (width,)}
        for conv in range(3):
            for place in (1, 3):
                shapes |= {f"{predictor}.residual_convs.{conv}.{place}.weight": (3, 64, 64),
                           f"{predictor}.residual_convs.{conv}.{place}.bias": (64,)}
        for conv in range(4):
            shapes |= {f"{at}.conv_blocks.{conv}.1.weight": (3, width, width),
                       f"{at}.conv_blocks.{conv}.1.bias": (width,)}
    return shapes


SMALL = {"ggml-model.bin": decoder_shapes(layers=2, width=16, codes=34),
         "ggml-diffusion-model.bin": diffusion_shapes(layers=2, width=32, heads=2, latent=16),
         "ggml-vocoder-model.bin": vocoder_shapes(4)}
SIZES = {"autoregressive": UnifiedVoiceConfig(layers=2, model_dim=16, heads=2, number_mel_codes=34, start_mel_token=32,
                                              stop_mel_token=33),
         "diffusion": DiffusionConfig(model_channels=32, num_layers=2, in_latent_channels=16, num_heads=2),
         "univnet": UnivNetConfig(channel_size=4)}


def load(path: Path, known: dict[str, tuple]) -> dict[str, np.ndarray]:
    """Read a file as tortoise.cpp does: to its end, accepting only known tensors of the known shape."""
    data, at, found = path.read_bytes(), 4, {}
    assert struct.unpack_from("<I", data) == (0x67676D6C,)
    while at < len(data):
        count, length, kind = struct.unpack_from("<3i", data, at)
        axes = struct.unpack_from(f"<{count}i", data, at + 12)
        at += 12 + 4 * count
        name = data[at:at + length].decode()
        at += length
        assert kind == 0, name
        assert axes == known[name], name
        assert name not in found
        found[name] = np.frombuffer(data, "<f4", math.prod(axes), at).reshape(axes[::-1])
        at += found[name].nbytes
    assert at == len(data)
    return found


class SmallModel(RandomModel):
    """The three networks at sizes of their own."""

    def __init__(self, **sizes):
        super().__init__()
        self.sizes = {**SIZES, **sizes}

    def config(self, network: str):
        return self.sizes.get(network) or super().config(network)

    def tensors(self, network: str) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(len(network))
        return {key: torch.randn(shape, generator=generator)
                for key, shape in layout(NETWORKS[network], self.config(network)).shapes.items()}


@pytest.fixture
def small(monkeypatch) -> Model:
    """A small model, with the check for tortoise.cpp's size switched off."""
    monkeypatch.setattr(tortoise_cpp, "check_size", lambda model, network: model.require(network))
    return SmallModel()


@pytest.fixture
def voice() -> Voice:
    rng = np.random.default_rng(0)
    return Voice(*(rng.standard_normal((1, width), dtype=np.float32) for width in (16, 64)), name="noise")


def test_official_sizes_have_exactly_the_tensors_that_tortoise_cpp_knows():
    known = {"autoregressive": decoder_shapes(), "diffusion": diffusion_shapes(), "univnet": vocoder_shapes()}
    for network, shapes in known.items():
        ours = {tortoise_cpp.name_of(network, key): tortoise_cpp.squeezed(shape)[::-1]
                for key, shape in layout(NETWORKS[network], OFFICIAL[network]).shapes.items()}
        if network == "diffusion":
            ours[tortoise_cpp.LATENT] = (2048, 1)
        assert ours == shapes


def test_the_loader_reads_every_tensor_with_the_models_values(small, voice, tmp_path):
    write_ggml(small, voice, tmp_path / "models")
    found = {name: load(tmp_path / "models" / name, known) for name, known in SMALL.items()}
    for name, tensors in found.items():
        assert set(tensors) == set(SMALL[name])
    decoder, diffusion, vocoder = (small.tensors(name) for name in SIZES)
    for file, theirs, ours in (
            ("ggml-model.bin", "inference_model.transformer.h.1.mlp.c_fc.weight", decoder["gpt.h.1.mlp.c_fc.weight"]),
            ("ggml-model.bin", "inference_model.transformer.ln_f.bias", decoder["gpt.ln_f.bias"]),
            ("ggml-model.bin", "inference_model.lm_head.0.weight", decoder["final_norm.weight"]),
            ("ggml-model.bin", "inference_model.lm_head.1.weight", decoder["mel_head.weight"]),
            ("ggml-model.bin", "mel_pos_embedding.emb.weight", decoder["mel_pos_embedding.emb.weight"]),
            ("ggml-diffusion-model.bin", "unconditioned_embedding", diffusion["unconditioned_embedding"][0, :, 0]),
            ("ggml-diffusion-model.bin", "layers.1.attn.qkv.weight", diffusion["layers.1.attn.qkv.weight"][:, :, 0]),
            ("ggml-diffusion-model.bin", "layers.4.out_layers.3.weight", diffusion["layers.4.out_layers.3.weight"]),
            ("ggml-vocoder-model.bin", "conv_post.1.weight", vocoder["conv_post.1.weight"][0]),
            ("ggml-vocoder-model.bin", "res_stack.2.convt_pre.1.weight", vocoder["res_stack.2.convt_pre.1.weight"])):
        np.testing.assert_array_equal(found[file][theirs], ours.numpy(), err_msg=theirs)
    assert sum(tensor.size for tensor in found["ggml-model.bin"].values()) == sum(
        tensor.numel() for tensor in decoder.values())


def test_the_voice_is_in_the_diffusion_file_and_in_its_own(small, voice, tmp_path):
    write_ggml(small, voice, tmp_path)
    latent = load(tmp_path / "ggml-diffusion-model.bin", SMALL["ggml-diffusion-model.bin"])[tortoise_cpp.LATENT]
    np.testing.assert_array_equal(latent, voice.diffusion)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "voice.bin", "<f4"), voice.ar[0])


def test_the_tokenizer_is_byte_identical_to_upstreams(small, voice, tmp_path):
    write_ggml(small, voice, tmp_path)
    assert (tmp_path / "tokenizer.json").read_text(encoding="utf-8") == small.tokenizer
    assert "\n" not in small.tokenizer


def test_overwrite_replaces_files_and_keeps_others(small, voice, tmp_path):
    (tmp_path / "mouse.bin").write_bytes(b"precious")
    (tmp_path / "tokenizer.json").write_bytes(b"theirs")
    with pytest.raises(UserError, match=r"tokenizer\.json exists; add overwrite=True"):
        write_ggml(small, voice, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mouse.bin", "tokenizer.json"]
    write_ggml(small, voice, tmp_path, overwrite=True)
    assert (tmp_path / "mouse.bin").read_bytes() == b"precious"
    assert json.loads((tmp_path / "tokenizer.json").read_text())


def test_a_directory_with_a_files_name_leaves_the_others_unchanged(small, voice, tmp_path):
    write_ggml(small, voice, tmp_path)
    (tmp_path / "voice.bin").unlink()
    (tmp_path / "voice.bin").mkdir()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=r"cannot write .*voice\.bin: a directory of that name exists; move it"):
        write_ggml(small, voice, tmp_path, overwrite=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_an_invalid_value_in_the_last_network_leaves_no_file(small, voice, tmp_path, monkeypatch):
    tensors = small.tensors
    monkeypatch.setattr(small, "tensors", lambda network: tensors(network) | (
        {"conv_pre.bias": torch.full((4,), torch.nan)} if network == "univnet" else {}))
    with pytest.raises(UserError, match=r"univnet: conv_pre\.bias has NaN"):
        write_ggml(small, voice, tmp_path / "models")
    assert not list((tmp_path / "models").iterdir())


def test_a_voice_of_another_model_is_refused(small, tmp_path):
    with pytest.raises(UserError, match="made with another model"):
        write_ggml(small, Voice(np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32), "other"), tmp_path)


@pytest.mark.parametrize(("network", "sizes", "reason"), [
    ("autoregressive", {}, "layers 2, not 30"),
    ("univnet", {name: OFFICIAL[name] for name in ("autoregressive", "diffusion")}, "channel_size 4, not 32")])
def test_a_model_of_another_size_is_refused(voice, tmp_path, network, sizes, reason):
    message = rf"only networks of the official size: the {network} network .* {reason}; the format gguf"
    with pytest.raises(UserError, match=message):
        write_ggml(SmallModel(**sizes), voice, tmp_path / "models")
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("flags", [("--precision", "f32"), ("--networks", "autoregressive"), ("--lanes", "2")])
def test_a_flag_without_effect_is_refused(capsys, tmp_path, random_bundle, flags):
    assert main(["convert", str(random_bundle), "--to", "ggml", "-o", str(tmp_path / "models"), *flags]) == 1
    assert f"{flags[0]} has no effect with --to ggml" in capsys.readouterr().err


COMMAND = """
import resource, sys
from pathlib import Path
from ane.commands import convert
from converters.ggml import tortoise_cpp
from tests.converters.ggml.test_tortoise_cpp import SmallModel
limit, voices = int(sys.argv[1]), sys.argv[2]
tortoise_cpp.check_size = lambda model, network: None
model = SmallModel()
model.voices = Path(voices)
convert.open_source = lambda source: model
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from ane.cli import main
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture
def command(tmp_path, voice):
    """Runs the command in a process of its own, which may write files of ``limit`` bytes."""
    (tmp_path / "voices").mkdir()
    save_voice(tmp_path / "voices" / "noise.safetensors", voice)

    def run(*arguments: str, limit: int = 0) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-c", COMMAND, str(limit), str(tmp_path / "voices"), "convert", "small",
                               "--to", "ggml", "-o", str(tmp_path / "models"), *arguments], capture_output=True,
                              text=True, env=os.environ | {"ANE_HOME": str(tmp_path / "home")},
                              cwd=Path(__file__).parents[3])
    return run


def test_the_command_writes_the_models_own_voice_or_another(command, tmp_path, voice):
    result = command()
    assert result.returncode == 0, result.stderr
    assert "--voice ../models/voice.bin" in " ".join(result.stdout.split())
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        "ggml-diffusion-model.bin", "ggml-model.bin", "ggml-vocoder-model.bin", "tokenizer.json", "voice.bin"]
    np.testing.assert_array_equal(np.fromfile(tmp_path / "models" / "voice.bin", "<f4"), voice.ar[0])
    shutil.rmtree(tmp_path / "models")
    result = command("--voice", "nobody")
    assert result.returncode == 1
    assert "no voice 'nobody'" in result.stderr
    assert not (tmp_path / "models").exists()


def test_a_disk_that_fills_up_leaves_nothing(command, tmp_path):
    result = command(limit=50_000)
    assert result.returncode == 1
    assert "cannot write" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((tmp_path / "models").iterdir())
