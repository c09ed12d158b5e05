"""Both vocoders' graphs against the references, each package interpreted: stretches join exactly."""

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

from ane.backends.mil import Arithmetic, Package
from ane.bundles.family import Config
from ane.models.tortoise.networks.hifigan import Hifigan, HifiganConfig
from ane.models.tortoise.networks.univnet import SILENT_FRAMES, UnivNet, UnivNetConfig
from ane.models.tortoise.packaged.vocoders import UnivnetVocoder
from ane.models.vocoders.segments import HifiganVocoder, PackagedVocoder
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from converters.coreml.graph import CoreMLGraph, Style
from converters.neural_engine import MAX_AXIS
from converters.tortoise.univnet import univnet
from converters.vocoders.hifigan import hifigan
from tests.backends.packaged.packages import FP16, FP32, ROUNDED, functions, saved
from tests.random_model import draw

HALF = Style("fp16")
FRAMES = 5, 22
UNIVNETS = {
    "upstream": UnivNetConfig(channel_size=4),
    "odd": UnivNetConfig(channel_size=6, noise_dim=8, dilations=(2, 5, 11), strides=(4, 3, 2), kpnet_conv_size=1,
                         kpnet_hidden_channels=8, hop_length=24, n_mel_channels=12, lReLU_slope=0.3),
    "wide": UnivNetConfig(channel_size=4, noise_dim=8, dilations=(1, 9, 81), strides=(4,), kpnet_conv_size=5,
                          kpnet_hidden_channels=8, hop_length=4, n_mel_channels=12),
}
HIFIGANS = {
    "upstream": HifiganConfig(in_channels=24, upsample_initial_channel=32, cond_channels=16),
    "odd": HifiganConfig(in_channels=8, upsample_initial_channel=16, cond_channels=8, upsample_factors=(3, 4),
                         upsample_kernel_sizes=(7, 4), resblock_kernel_sizes=(3, 5),
                         resblock_dilation_sizes=((1, 2), (7, 4))),
}


def drawn(cls: type, config: Config) -> nn.Module:
    """Random weights; UnivNet's predicted kernels are kept small, so that its gates do not saturate."""
    module, generator = cls(config), torch.Generator().manual_seed(5)
    for key, parameter in module.named_parameters():
        parameter.data = draw(key, parameter, generator) * (0.05 if "kernel_conv.weight" in key else 1)
    return module.eval().requires_grad_(False)


@dataclass(frozen=True)
class VocoderCase:
    """A network with its packages, and random input for it."""

    network: nn.Module
    graphs: list[CoreMLGraph]
    paths: Callable[[Style], dict[str, Path]]
    kind: type[PackagedVocoder]

    def vocoder(self, style: Style = FP32, arithmetic: Arithmetic = FP16) -> PackagedVocoder:
        return self.kind(functions(self.graphs, self.paths(style), arithmetic))

    def inputs(self, length: int, batch: int = 1) -> tuple[np.ndarray, ...]:
        rng, config = np.random.default_rng(length), self.network.config
        shapes = ([(batch, config.n_mel_channels, length), (batch, config.noise_dim, length + SILENT_FRAMES)]
                  if self.kind is UnivnetVocoder else
                  [(batch, config.in_channels, length), (batch, config.cond_channels)])
        return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)

    def expected(self, *inputs: np.ndarray) -> np.ndarray:
        return self.network(*map(torch.from_numpy, inputs)).numpy()


def case(cls: type, config: Config, build: Callable[..., CoreMLGraph], kind: type[PackagedVocoder],
         sizes: tuple[int, ...],
         folder: Callable[[], Path]) -> VocoderCase:
    network = drawn(cls, config)
    graphs = [build(network, frames) for frames in sizes]
    return VocoderCase(network, graphs, cache(lambda style: saved(graphs, style, folder())), kind)


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, VocoderCase]:
    """Packages are built on first use; upstream's sizes are slow, and have one bucket."""
    folder = partial(tmp_path_factory.mktemp, "vocoder")
    networks = [("univnet", UnivNet, univnet, UnivnetVocoder, UNIVNETS),
                ("hifigan", Hifigan, hifigan, HifiganVocoder, HIFIGANS)]
    return {f"{network} {name}": case(cls, config, build, kind, FRAMES[name == "upstream":], folder)
            for network, cls, build, kind, configs in networks for name, config in configs.items()}


NAMES = [f"univnet {name}" for name in UNIVNETS] + [f"hifigan {name}" for name in HIFIGANS]
every_network = pytest.mark.parametrize("name", NAMES)
both_of_upstream = pytest.mark.parametrize("name", [name for name in NAMES if "upstream" in name])


@both_of_upstream
@pytest.mark.parametrize(("style", "arithmetic", "least"), [(FP32, FP16, 100), (HALF, FP16, 60), (HALF, ROUNDED, 55)])
def test_sound_equals_the_references(cases, name, style, arithmetic, least):
    inputs = cases[name].inputs(29)
    assert snr_db(cases[name].expected(*inputs), cases[name].vocoder(style, arithmetic)(*inputs)) >= least


@every_network
@settings(max_examples=8, deadline=None)
@given(length=st.integers(1, 200))
def test_stretches_of_any_length_join_to_the_whole(cases, name, length):
    inputs = cases[name].inputs(length)
    expected, got = cases[name].expected(*inputs), cases[name].vocoder()(*inputs)
    assert snr_db(expected, got) >= 100
    np.testing.assert_allclose(got, expected, atol=2e-5 * np.abs(expected).max())


@both_of_upstream
def test_rows_of_a_batch_are_independent(cases, name):
    inputs = cases[name].inputs(7, batch=2)
    assert snr_db(cases[name].expected(*inputs), cases[name].vocoder()(*inputs)) >= 100


@every_network
def test_margins_cover_the_receptive_field_and_little_more(cases, name):
    """How the reference's sound of frames 0 … 60 changes, in float64, when its input changes from a frame on."""
    network, margin = deepcopy(cases[name].network).double(), cases[name].graphs[0].bucket["margin"]
    length = 60 + margin + 10
    x, other = (torch.from_numpy(array).double() for array in cases[name].inputs(length))

    def sound(first: int) -> torch.Tensor:
        moved = (torch.arange(length) >= first).double()
        if name.startswith("univnet"):
            return network.sound(x + moved, other[..., :length] + moved)
        return network(x + moved, other)

    whole = sound(length)

    def change(frames: int) -> float:
        return (sound(60 + frames) - whole)[..., :60 * whole.shape[-1] // length].abs().max().item()

    assert change(margin) == 0
    assert change(margin - 3) > 0 or name == "univnet wide"     # whose far taps underflow float64


@both_of_upstream
def test_no_value_exceeds_rank_4_or_the_widest_axis(cases, name):
    for path in cases[name].paths(HALF).values():
        function = Package(path).function("main")
        assert {type.dtype for type in (*function.inputs.values(), *function.outputs.values())} == {"fp16"}
        shapes = [type.shape for op in function.ops for type in op.outputs.values()]
        assert max(map(len, shapes)) <= 4
        assert max(map(max, shapes)) <= MAX_AXIS
        assert not {op.type for op in function.ops} & {"gather", "scatter", "cast", "select", "tile"}


def test_upstreams_sizes_use_the_widest_axis_well():
    """62 frames of the 64 that the last axis holds are new in each chunk."""
    for network, build in ((UnivNet(UnivNetConfig()), univnet), (Hifigan(HifiganConfig()), hifigan)):
        assert build(network, 62).name == f"{build.__name__}_62_{17 if build is univnet else 14}"
        with pytest.raises(UserError, match=f"buckets={build.__name__}=63: it takes 1 to 62 frames"):
            build(network, 63)


def test_kernels_that_do_not_fit_their_strides_are_refused():
    network = Hifigan(HifiganConfig(in_channels=8, upsample_initial_channel=16, cond_channels=8,
                                 upsample_kernel_sizes=(15, 16, 4, 4)))
    with pytest.raises(UserError, match="size 15, stride 8"):
        hifigan(network, 4).build(FP32)
