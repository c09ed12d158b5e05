"""HiFi-GAN for mels, compared with the formula of the paper written out plainly; and its checkpoints."""

import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ane.models.fastspeech.networks import NETWORKS
from ane.models.vocoders.checkpoints import HifiganCheckpoint
from ane.models.vocoders.hifigan import MelHifigan, MelHifiganConfig
from ane.system.errors import UserError
from tests.fastspeech_files import V1, V3, hifigan_entries, write_hifigan


def plain_hifigan(config: MelHifiganConfig, entries: dict[str, Tensor], mel: Tensor) -> Tensor:
    """jik876's generator with weight norm as it is trained: (B, M, L) → (B, 1, hop·L)."""
    def weights(key: str) -> tuple[Tensor, Tensor]:
        g, v = entries[f"{key}.weight_g"], entries[f"{key}.weight_v"]
        return torch._weight_norm(v, g, 0), entries[f"{key}.bias"]

    def conv(key: str, x: Tensor, dilation: int = 1) -> Tensor:
        weight, bias = weights(key)
        return F.conv1d(x, weight, bias, padding=(weight.shape[2] - 1) * dilation // 2, dilation=dilation)

    def block(key: str, x: Tensor, dilations: tuple[int, ...]) -> Tensor:
        for index, dilation in enumerate(dilations):
            if config.resblock == "1":
                y = conv(f"{key}.convs1.{index}", F.leaky_relu(x, 0.1), dilation)
                x = x + conv(f"{key}.convs2.{index}", F.leaky_relu(y, 0.1))
            else:
                x = x + conv(f"{key}.convs.{index}", F.leaky_relu(x, 0.1), dilation)
        return x

    x, number = conv("conv_pre", mel), 0
    for level, (rate, size) in enumerate(zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True)):
        x = F.conv_transpose1d(F.leaky_relu(x, 0.1), *weights(f"ups.{level}"), stride=rate, padding=(size - rate) // 2)
        total = torch.zeros(())
        for dilations in config.resblock_dilation_sizes:
            total = total + block(f"resblocks.{number}", x, dilations)
            number += 1
        x = total / len(config.resblock_dilation_sizes)
    return torch.tanh(conv("conv_post", F.leaky_relu(x)))


@pytest.mark.parametrize("config", [V1, V3], ids=["V1", "V3"])
def test_it_equals_the_formula(config, tmp_path):
    checkpoint = HifiganCheckpoint(write_hifigan(tmp_path / "g.pth", config), NETWORKS["vocoder"])
    assert checkpoint.config == config, "read from the tensors"
    network = MelHifigan(config).eval().requires_grad_(False)
    network.load_state_dict(checkpoint.tensors())
    mel = torch.randn(2, 80, 11, generator=torch.Generator().manual_seed(1))
    audio = network(mel)
    assert audio.shape == (2, 1, 11 * 256)
    torch.testing.assert_close(audio, plain_hifigan(config, hifigan_entries(config), mel), atol=1e-5, rtol=0)


@pytest.mark.parametrize("config", [V1, V3], ids=["V1", "V3"])
def test_a_window_with_its_margin_sounds_like_the_whole(config):
    torch.manual_seed(0)
    network = MelHifigan(config).eval().requires_grad_(False)
    mel = torch.randn(1, 80, 3 * config.margin + 8)
    window = network(mel[..., config.margin:])
    torch.testing.assert_close(window[..., config.margin * 256:], network(mel)[..., 2 * config.margin * 256:],
                               atol=1e-5, rtol=0)


def nested(key: str) -> str:
    """NVIDIA's name: resblocks.LEVEL.BLOCK in place of resblocks.NUMBER."""
    parts = key.split(".")
    return ".".join([parts[0], *map(str, divmod(int(parts[1]), 3)), *parts[2:]]) if parts[0] == "resblocks" else key


def test_nvidias_names_and_kernels(tmp_path):
    entries = {f"module.{nested(key)}": value[..., None] if value.ndim == 3 and key.endswith("_v") else value
               for key, value in hifigan_entries().items()}
    torch.save({"generator": entries, "epoch": 3, "optim_g": {}}, tmp_path / "nvidia.pth")
    write_hifigan(tmp_path / "plain.pth")
    found, plain = (HifiganCheckpoint(tmp_path / name, NETWORKS["vocoder"]) for name in ("nvidia.pth", "plain.pth"))
    assert found.config == V1
    assert found.unused == ["epoch", "optim_g"]
    for key, tensor in plain.tensors().items():
        assert torch.equal(found.tensors()[key], tensor)


def test_sizes_that_config_json_states(tmp_path):
    config = MelHifiganConfig(upsample_rates=(4, 8, 8), upsample_kernel_sizes=(8, 16, 16), upsample_initial_channel=16,
                              resblock_kernel_sizes=(5,), resblock_dilation_sizes=((1, 2),))
    path = write_hifigan(tmp_path / "g.pth", config)
    with pytest.raises(UserError, match="of no official version"):
        HifiganCheckpoint(path, NETWORKS["vocoder"])
    stated = dataclasses.asdict(config) | {"sampling_rate": 22050}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    assert HifiganCheckpoint(path, NETWORKS["vocoder"]).config == config


@pytest.mark.parametrize(("change", "fault"), [
    ({"sampling_rate": 44100}, "sampling_rate is 44100, and mels of FastSpeech need 22050"),
    ({"hop_size": 512}, "hop_size is 512"), ({"upsample_rates": [8, 8, 2, 4]}, "makes 512 samples a frame"),
    ({"upsample_rates": "8,8"}, "upsample_rates must be like"), ({"resblock": "3"}, "resblock must be one of 1, 2"),
    ({"upsample_rates": [8, 8]}, "do not fit together"), ({"resblock_kernel_sizes": [3]}, "differ in length"),
    ({"upsample_rates": [8, 8, 1, 4]}, "must be upsample_rates plus an even"),
    ({"upsample_initial_channel": 64}, "the network has"),
    ({"resblock_dilation_sizes": [[0], [1], [1]]}, "must be like")])
def test_a_config_that_does_not_fit_is_refused(tmp_path, change, fault):
    stated = dataclasses.asdict(V1) | change
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(UserError, match=fault):
        HifiganCheckpoint(write_hifigan(tmp_path / "g.pth"), NETWORKS["vocoder"])


@pytest.mark.parametrize(("content", "fault"), [
    ([1], "contains a list"), ({}, "it has no conv_pre.weight"), ({"generator": 3}, "it has no conv_pre.weight"),
    ({"mpd": {}, "msd": {}}, "it has no conv_pre.weight"),
    ({"conv_pre.weight": torch.zeros(4, 80, 7)}, "makes 1 samples a frame|do not fit together")])
def test_something_else_is_refused(tmp_path, content, fault):
    torch.save(content, tmp_path / "g.pth")
    with pytest.raises(UserError, match=fault):
        HifiganCheckpoint(tmp_path / "g.pth", NETWORKS["vocoder"])


def test_a_missing_tensor_is_named(tmp_path):
    entries = hifigan_entries()
    del entries["conv_post.bias"]
    torch.save({"generator": entries}, tmp_path / "g.pth")
    with pytest.raises(UserError, match=r"key conv_post\.bias is missing"):
        HifiganCheckpoint(tmp_path / "g.pth", NETWORKS["vocoder"])
