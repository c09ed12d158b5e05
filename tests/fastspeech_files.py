"""Make checkpoints of tiny size with random weights, in the layouts of NVIDIA's and jik876's programs."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ane.bundles import Bundle
from ane.bundles.weights import skeleton
from ane.bundles.writing import write_bundle
from ane.models.fastspeech.checkpoints import import_fastspeech
from ane.models.fastspeech.networks import NETWORKS, FastSpeechConfig, position_table
from ane.models.vocoders.hifigan import MelHifiganConfig
from tests.random_model import draw

SMALL = FastSpeechConfig(
    max_seq_len=200,
    d_model=24,
    phoneme_side_n_layer=2,
    phoneme_side_head=2,
    phoneme_side_conv1d_filter_size=32,
    mel_side_n_layer=1,
    mel_side_head=1,
    mel_side_conv1d_filter_size=40,
    fft_conv1d_kernel=5,
    duration_predictor_filter_size=16,
)
V1 = MelHifiganConfig(upsample_initial_channel=32)
V3 = MelHifiganConfig(
    resblock="2",
    upsample_rates=(8, 8, 4),
    upsample_kernel_sizes=(16, 16, 8),
    upsample_initial_channel=32,
    resblock_kernel_sizes=(3, 5, 7),
    resblock_dilation_sizes=((1, 2), (2, 6), (3, 12)),
)
FRAMES_PER_SYMBOL = 4.0


def random_state(network: str, config: Any) -> dict[str, Tensor]:
    """The same random numbers in every run."""
    generator = torch.Generator().manual_seed(7)
    module = skeleton(NETWORKS[network], config)
    return {key: draw(key, parameter, generator) for key, parameter in module.named_parameters()}


def fastspeech_entries(config: FastSpeechConfig = SMALL) -> dict[str, Tensor]:
    """The official state dict, with both position tables; about ``FRAMES_PER_SYMBOL`` frames for each symbol."""
    state = random_state("fastspeech", config)
    state["length_regulator.duration_predictor.linear_layer.weight"] *= 0.1
    state["length_regulator.duration_predictor.linear_layer.bias"].fill_(float(torch.tensor(FRAMES_PER_SYMBOL).log1p()))
    table = torch.cat([torch.zeros(1, config.d_model), position_table(config.max_seq_len, config.d_model)])
    return state | {f"{side}.position.weight": table.clone() for side in ("phoneme_side", "mel_side")}


def write_fastspeech(path: Path, entries: dict[str, Any] | None = None) -> Path:
    """A checkpoint as NVIDIA's trainer writes it."""
    entries = fastspeech_entries() if entries is None else entries
    torch.save(
        {
            "step": 5,
            "model": {f"module.{key}": value for key, value in entries.items()},
            "optim": {"state": {}, "param_groups": [{"lr": 0.1}]},
        },
        path,
    )
    return path


def hifigan_entries(config: MelHifiganConfig = V1) -> dict[str, Tensor]:
    """The state dict of a generator in training: weight norm not folded."""
    return with_weight_norm(random_state("vocoder", config))


def with_weight_norm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state with weights as gain and direction."""
    entries = {}
    for key, value in state.items():
        if key.endswith(".weight"):
            entries[f"{key}_g"] = value.flatten(1).norm(dim=1).view(-1, 1, 1)
            entries[f"{key}_v"] = 3 * value
        else:
            entries[key] = value
    return entries


def write_hifigan(path: Path, config: MelHifiganConfig = V1) -> Path:
    """A generator as jik876's trainer writes it."""
    torch.save({"generator": hifigan_entries(config)}, path)
    return path


def fastspeech_bundle(folder: Path) -> Bundle:
    """A bundle of both, in ``folder``/small. Kernels are wider than the official ones; both sides have other heads."""
    vocoder = write_hifigan(folder / "generator.pth")
    contents = import_fastspeech(write_fastspeech(folder / "checkpoint.pt"), vocoder=vocoder)
    return write_bundle(contents, folder / "small")


if __name__ == "__main__":  # write random weights of the official size
    write_fastspeech(Path(sys.argv[1]), fastspeech_entries(FastSpeechConfig()))
