"""Test `ane convert --to ggml`: parse the files as the loaders of tortoise.cpp do.

A loader reads tensors until the file ends. It must have registered each tensor, with the same axes. ``loaders.tsv``
lists the registered tensors.
"""

import itertools
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from ane.bundles import Bundle, open_model
from ane.bundles.weights import layout
from ane.cli import main
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError
from ane.voices import Voice, load_voice
from converters.ggml.tortoise_cpp import FILES, ggml_tensors, write_ggml
from tests.random_model import random_model
from tests.tables import rows

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
    with pytest.raises(UserError, match=r"univnet: conv_pre\.bias has NaN"):
        write_ggml(model, voice, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mol.bin"]
