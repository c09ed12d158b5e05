"""Graphs of the encoders and of the random latents against the references, each package interpreted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ane.backends.mil import Arithmetic, Package
from ane.backends.packaged.functions import PackageFunction
from ane.models.tortoise import packaged
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from converters.coreml.graph import CoreMLGraph, Style
from converters.tortoise import conditioning
from tests.backends.packaged.packages import (
    FP16,
    FP32,
    NARROW,
    ROUNDED,
    assert_fits_the_engine,
    functions,
    reference_network,
    saved,
)


@dataclass(frozen=True)
class ConditioningCase:
    """A stage, the name of its network, its input's shape, and its graph."""

    stage: str
    network: str
    shape: tuple[int, ...]
    graph: Callable[[nn.Module], CoreMLGraph]

    @property
    def input(self) -> str:
        return "mel" if len(self.shape) == 3 else "noise"

    def value(self) -> np.ndarray:
        return np.random.default_rng(0).standard_normal(self.shape, dtype=np.float32)

    def expected(self, network: nn.Module) -> np.ndarray:
        return network(torch.from_numpy(self.value())).numpy()

    def served(self, network: nn.Module, style: Style, folder: Path,
               arithmetic: Arithmetic = FP16) -> list[PackageFunction]:
        graphs = [self.graph(network)]
        return functions(graphs, saved(graphs, style, folder), arithmetic)

    def latents(self, served: list[PackageFunction]) -> np.ndarray:
        encode = packaged.clip_latents if self.input == "mel" else packaged.random_latents
        return encode(served, **{self.input: self.value()})


CASES = {
    "clip of upstream's": ConditioningCase("ar_conditioning", "conditioning_encoder", (2, 80, 517),
                                           conditioning.ar_conditioning),
    "short clip": ConditioningCase("ar_conditioning", "conditioning_encoder", (1, 80, 33),
                       lambda network: conditioning.ar_conditioning(network, 33)),
    "clip of upstream's, 24 kHz": ConditioningCase("diffusion_conditioning", "contextual_embedder", (2, 100, 401),
                                       conditioning.diffusion_conditioning),
    "long clip, 24 kHz": ConditioningCase("diffusion_conditioning", "contextual_embedder", (1, 100, 838),
                              lambda network: conditioning.diffusion_conditioning(network, 838)),
    "random": ConditioningCase("ar_random", "rlg_auto", (3, 64), conditioning.ar_random),
    "random, diffusion": ConditioningCase("diffusion_random", "rlg_diffuser", (1, 64), conditioning.diffusion_random),
}
OUTLIERS = {"short clip": "init", "long clip, 24 kHz": "1"}       # and the convolution that writes the residual stream


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_latents_equal_the_references(case, tmp_path):
    network = reference_network(case.network)
    assert snr_db(case.expected(network), case.latents(case.served(network, FP32, tmp_path))) > 100


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_half_precision_is_near(case, tmp_path):
    network = reference_network(case.network)
    served = case.served(network, Style("fp16"), tmp_path)
    assert snr_db(case.expected(network), case.latents(served)) > 60
    for arithmetic in (ROUNDED, NARROW):
        rounded = functions([case.graph(network)], {served[0].name: served[0].package}, arithmetic)
        assert snr_db(case.expected(network), case.latents(rounded)) > 55


@pytest.mark.parametrize("arithmetic", [ROUNDED, NARROW])
@pytest.mark.parametrize(("name", "layer"), OUTLIERS.items())
def test_outlier_channels_do_not_overflow(name, layer, arithmetic, tmp_path):
    case = CASES[name]
    network = reference_network(case.network)
    bias = network.get_submodule(layer).bias
    bias[3], bias[-20] = 3000, -2500
    expected, latents = case.expected(network), case.latents(case.served(network, Style("fp16"), tmp_path, arithmetic))
    quiet = np.ones(len(bias), bool)
    quiet[[3, -20]] = False
    assert snr_db(expected, latents) > 50
    assert snr_db(expected[:, quiet], latents[:, quiet]) > 50


def test_nothing_in_the_graphs_leaves_the_engine(tmp_path):
    for case in CASES.values():
        served = case.served(reference_network(case.network), Style("fp16"), tmp_path)
        assert_fits_the_engine(served[0].package)


def test_the_last_block_computes_only_the_first_column(tmp_path):
    case = CASES["short clip"]
    function = Package(case.served(reference_network(case.network), FP32, tmp_path)[0].package).function(None)
    scores = [type.shape for op in function.ops if op.type == "softmax" for type in op.outputs.values()]
    assert [shape[2] for shape in scores] == [33] * 5 + [1]


@pytest.mark.parametrize("length", [516, 518])
def test_a_clip_of_another_length_is_reported(length):
    package = Path("conditioning_encoder.mlpackage")
    served = [PackageFunction(None, package, "ar_conditioning_517", {"frames": 517}, "ALL")]
    with pytest.raises(UserError, match=f"{length} mel frames: conditioning_encoder takes exactly 517 frames"):
        packaged.clip_latents(served, np.zeros((1, 80, length), np.float32))
