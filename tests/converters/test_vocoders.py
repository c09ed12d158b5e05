"""Compare the interpreted packages of vocoders with the references. Stretches of sound must join exactly."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ane.backends.mil import Arithmetic
from ane.bundles.family import Config
from ane.models.tortoise.networks.hifigan import Hifigan, HifiganConfig
from ane.models.tortoise.networks.univnet import SILENT_FRAMES, UnivNet, UnivNetConfig
from ane.models.tortoise.packaged import univnet_sounds
from ane.models.vocoders.bigvgan import BigVGAN, BigVGANConfig
from ane.models.vocoders.hifigan import MelHifigan, MelHifiganConfig
from ane.models.vocoders.segments import hifigan_sounds
from ane.system.decibels import snr_db
from converters.coreml.graph import CoreMLGraph, Style
from converters.tortoise.univnet import univnet
from converters.vocoders import bigvgan, hifigan
from tests.backends.packaged.packages import FP16, FP32, ROUNDED, functions, saved
from tests.random_model import draw
from tests.refusals import assert_refused

HALF = Style("fp16")
FRAMES = 5, 22
MEL = {
    "num_mels": 12,
    "upsample_rates": (4, 2),
    "upsample_kernel_sizes": (8, 4),
    "upsample_initial_channel": 16,
    "resblock_kernel_sizes": (3, 5),
}
CONFIGS: dict[str, Config] = {
    "univnet upstream": UnivNetConfig(channel_size=4),
    "univnet odd": UnivNetConfig(
        channel_size=6,
        noise_dim=8,
        dilations=(2, 5, 11),
        strides=(4, 3, 2),
        kpnet_conv_size=1,
        kpnet_hidden_channels=8,
        hop_length=24,
        n_mel_channels=12,
        lReLU_slope=0.3,
    ),
    "univnet wide": UnivNetConfig(
        channel_size=4,
        noise_dim=8,
        dilations=(1, 9, 81),
        strides=(4,),
        kpnet_conv_size=5,
        kpnet_hidden_channels=8,
        hop_length=4,
        n_mel_channels=12,
    ),
    "hifigan upstream": HifiganConfig(in_channels=24, upsample_initial_channel=32, cond_channels=16),
    "hifigan odd": HifiganConfig(
        in_channels=8,
        upsample_initial_channel=16,
        cond_channels=8,
        upsample_factors=(3, 4),
        upsample_kernel_sizes=(7, 4),
        resblock_kernel_sizes=(3, 5),
        resblock_dilation_sizes=((1, 2), (7, 4)),
    ),
    "mel hifigan, blocks 1": MelHifiganConfig(**MEL, resblock_dilation_sizes=((1, 3), (1, 2))),
    "mel hifigan, blocks 2": MelHifiganConfig(**MEL, resblock="2", resblock_dilation_sizes=((1, 2), (2, 6))),
    "bigvgan": BigVGANConfig(
        upsample_initial_channel=64, resblock_kernel_sizes=(3, 5), resblock_dilation_sizes=((1, 3), (1, 2))
    ),
    "bigvgan, clipped": BigVGANConfig(
        upsample_initial_channel=16,
        upsample_rates=(16, 16),
        upsample_kernel_sizes=(32, 32),
        activation="snake",
        resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1, 7),),
        use_tanh_at_final=False,
        use_bias_at_final=False,
    ),
}
NETWORKS = {UnivNetConfig: UnivNet, HifiganConfig: Hifigan, MelHifiganConfig: MelHifigan, BigVGANConfig: BigVGAN}
BUILD = {UnivNet: univnet, BigVGAN: bigvgan}
SMALLER = {"kernel_conv.weight": 0.05}  # factor of weights, so that gates do not saturate
QUIETER = {BigVGAN: 0.5}  # factor for the input of its sine waves, which are chaotic if the input is large


@dataclass(frozen=True)
class VocoderCase:
    """A network with its packages, and random input for it."""

    network: nn.Module
    graphs: list[CoreMLGraph]
    paths: Callable[[Style], dict[str, Path]]

    def vocoder(self, style: Style = FP32, arithmetic: Arithmetic = FP16) -> Callable[..., np.ndarray]:
        found = functions(self.graphs, self.paths(style), arithmetic)
        return partial(univnet_sounds if isinstance(self.network, UnivNet) else hifigan_sounds, found)

    def inputs(self, length: int, batch: int = 1) -> tuple[np.ndarray, ...]:
        rng, config = np.random.default_rng(length), self.network.config
        shapes = {
            UnivNetConfig: lambda: ((config.n_mel_channels, length), (config.noise_dim, length + SILENT_FRAMES)),
            HifiganConfig: lambda: ((config.in_channels, length), (config.cond_channels,)),
            MelHifiganConfig: lambda: ((config.num_mels, length),),
            BigVGANConfig: lambda: ((config.num_mels, length),),
        }[type(config)]()
        return tuple(rng.standard_normal((batch, *shape), dtype=np.float32) for shape in shapes)

    def expected(self, *inputs: np.ndarray) -> np.ndarray:
        return self.network(*map(torch.from_numpy, inputs)).numpy()


def case(name: str, folder: Callable[[], Path]) -> VocoderCase:
    """Packages are built on first use; upstream's sizes are slow, and have one bucket."""
    network, generator = NETWORKS[type(CONFIGS[name])](CONFIGS[name]), torch.Generator().manual_seed(5)
    for key, parameter in network.named_parameters():
        scale = next((scale for part, scale in SMALLER.items() if part in key), QUIETER.get(type(network), 1))
        parameter.data = draw(key, parameter, generator) * scale
    network.eval().requires_grad_(False)
    build = BUILD.get(type(network), hifigan)
    graphs = [build(network, frames) for frames in FRAMES["upstream" in name :]]
    return VocoderCase(network, graphs, cache(lambda style: saved(graphs, style, folder())))


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, VocoderCase]:
    return {name: case(name, partial(tmp_path_factory.mktemp, "vocoder")) for name in CONFIGS}


every_network = pytest.mark.parametrize("name", CONFIGS)


@pytest.mark.parametrize("arithmetic", [FP16, ROUNDED])
def test_sound_of_the_second_kind_of_blocks_is_near_in_half_precision(cases, arithmetic):
    """The other vocoders are rows of test_conformance.py."""
    case = cases["mel hifigan, blocks 2"]
    inputs = case.inputs(29, batch=2)
    assert snr_db(case.expected(*inputs), case.vocoder(HALF, arithmetic)(*inputs)) >= 50


@every_network
@settings(max_examples=4, deadline=None)
@given(length=st.integers(1, 100))
def test_stretches_of_any_length_join_to_the_whole(cases, name, length):
    inputs = cases[name].inputs(length)
    expected, got = cases[name].expected(*inputs), cases[name].vocoder()(*inputs)
    assert snr_db(expected, got) >= 100
    np.testing.assert_allclose(got, expected, atol=2e-5 * np.abs(expected).max())


@every_network
def test_margins_cover_the_receptive_field_and_little_more(cases, name):
    """How the reference's sound of frames 0 … 60 changes, in float64, when its input changes from a frame on."""
    network, margin = deepcopy(cases[name].network).double(), cases[name].graphs[0].bucket["margin"]
    length = 60 + margin + 10
    x, *other = (torch.from_numpy(array).double() for array in cases[name].inputs(length))

    def sound(first: int) -> torch.Tensor:
        moved = (torch.arange(length) >= first).double()
        if name.startswith("univnet"):
            return network.sound(x + moved, other[0][..., :length] + moved)
        return network(x + moved, *other)

    whole = sound(length)

    def change(frames: int) -> float:
        edge = 60 * whole.shape[-1] // length
        return (sound(60 + frames) - whole)[..., :edge].abs().max().item()

    assert change(margin) == 0
    # the far taps of these two underflow in float64
    assert change(margin - 3) > 0 or name in ("univnet wide", "bigvgan")


@pytest.mark.parametrize(
    ("network", "build", "name"),
    [
        (lambda: UnivNet(UnivNetConfig()), univnet, "univnet_62_17"),
        (lambda: Hifigan(HifiganConfig()), hifigan, "hifigan_62_14"),
        (lambda: MelHifigan(MelHifiganConfig()), hifigan, "hifigan_62_14"),
        (lambda: BigVGAN(BigVGANConfig()), bigvgan, "bigvgan_62_44"),
        (
            lambda: MelHifigan(
                MelHifiganConfig(
                    resblock="2",
                    upsample_rates=(8, 8, 4),
                    upsample_kernel_sizes=(16, 16, 8),
                    upsample_initial_channel=256,
                    resblock_kernel_sizes=(3, 5, 7),
                    resblock_dilation_sizes=((1, 2), (2, 6), (3, 12)),
                )
            ),
            hifigan,
            "hifigan_62_12",
        ),
    ],
)
def test_official_sizes_use_the_widest_axis_well(network, build, name):
    """62 frames of the 64 that the last axis holds are new in each chunk."""
    assert build(network(), 62).name == name
    assert_refused(f"buckets={build.__name__}=63: it takes 1 to 62 frames", lambda: build(network(), 63))


def test_kernels_that_do_not_fit_their_strides_are_refused():
    network = Hifigan(
        HifiganConfig(in_channels=8, upsample_initial_channel=16, cond_channels=8, upsample_kernel_sizes=(15, 16, 4, 4))
    )
    assert_refused("size 15, stride 8", lambda: hifigan(network, 4).build(FP32))
