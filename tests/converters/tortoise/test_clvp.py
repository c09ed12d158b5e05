"""The graphs of CLVP and of the encoders compared with PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from ane.backends.mil import Arithmetic, Package
from ane.backends.packaged.functions import PackageFunction
from ane.models.tortoise.family import STAGES
from ane.models.tortoise.networks.clvp import CLVP, CLVPConfig
from ane.models.tortoise.packaged import clvp_vectors
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from converters.coreml.graph import CoreMLGraph, Style
from converters.tortoise import conditioning
from converters.tortoise.clvp import clvp_speech, clvp_text, stream_scale
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
from tests.random_model import draw

CONFIG = CLVPConfig(
    dim_text=96,
    dim_speech=64,
    dim_latent=48,
    text_enc_depth=2,
    text_heads=2,
    speech_enc_depth=3,
    speech_heads=1,
    num_text_tokens=50,
    num_speech_tokens=90,
)
BUCKETS = 16, 40
LENGTHS = 1, 2, 15, 16, 17, 40
HALF = Style("fp16")


def network() -> CLVP:
    module, generator = CLVP(CONFIG), torch.Generator().manual_seed(3)
    for key, parameter in module.named_parameters():
        parameter.data = draw(key, parameter, generator)
    return module.eval().requires_grad_(False)


def graphs(module: CLVP, lengths: tuple[int, ...] = BUCKETS) -> tuple[list[CoreMLGraph], list[CoreMLGraph]]:
    return tuple([build(module, size, stream_scale(module)) for size in lengths] for build in (clvp_text, clvp_speech))


class StoredFunctions(list):
    """The functions of a package, all of one kind."""

    def functions(self, kind: str) -> "StoredFunctions":
        return self


Side = Callable[[np.ndarray], np.ndarray]


class ClvpSides(NamedTuple):
    text: Side
    speech: Side


def ranking(
    module: CLVP, paths: dict[str, Path], arithmetic: Arithmetic, lengths: tuple[int, ...] = BUCKETS
) -> ClvpSides:
    text, speech = (functions(side, paths, arithmetic) for side in graphs(module, lengths))
    return ClvpSides(
        partial(clvp_vectors, text, module.text_emb.weight.numpy(), module.temperature.exp().item(), "the text"),
        partial(clvp_vectors, speech, module.speech_emb.weight.numpy(), 1.0, "the speech"),
    )


def ids(length: int, rows: int = 1) -> np.ndarray:
    return np.random.default_rng(length).integers(0, CONFIG.num_text_tokens, (rows, length))


def worst(module: CLVP, ranked: ClvpSides, lengths: tuple[int, ...] = LENGTHS) -> float:
    """dB of the worse side, over the vectors of all lengths."""

    def difference(reference: Callable[[torch.Tensor], torch.Tensor], side: Side) -> float:
        expected = [reference(torch.from_numpy(ids(length))).numpy() for length in lengths]
        return snr_db(np.concatenate(expected), np.concatenate([side(ids(length)) for length in lengths]))

    return min(difference(module.text, ranked.text), difference(module.speech, ranked.speech))


@pytest.fixture(scope="module")
def module() -> CLVP:
    return network()


@pytest.fixture(scope="module")
def paths(module, tmp_path_factory) -> dict[Style, dict[str, Path]]:
    text, speech = graphs(module)
    return {style: saved(text + speech, style, tmp_path_factory.mktemp("clvp")) for style in (FP32, HALF)}


@pytest.mark.parametrize(
    ("style", "arithmetic", "least"), [(FP32, FP16, 115), (HALF, FP16, 60), (HALF, ROUNDED, 55), (HALF, NARROW, 55)]
)
def test_vectors_of_many_lengths_equal_the_references(module, paths, style, arithmetic, least):
    assert worst(module, ranking(module, paths[style], arithmetic)) >= least


def test_outlier_channels_do_not_overflow(tmp_path):
    """As in trained networks: thousands in single channels, which the gains of the norms reduce."""
    module = network()
    for table, side, channels in (
        (module.text_emb, module.text_transformer, (3, 60)),
        (module.speech_emb, module.speech_transformer, (5, 30)),
    ):
        encoder = side.transformer
        gains = [norm.g for (norm,), _ in encoder.attn_layers.layers] + [encoder.norm.weight]
        for gain in gains:
            gain *= 100
        for channel, size in zip(channels, (6000, -2500), strict=True):
            table.weight[:, channel] += size
            for gain in gains:
                gain[channel] *= 1e-5
    text, speech = graphs(module, (40,))
    paths = saved(text + speech, HALF, tmp_path)
    for arithmetic in (ROUNDED, NARROW):
        ranked = ranking(module, paths, arithmetic, (40,))
        assert np.isfinite(ranked.text(ids(40))).all()
        assert worst(module, ranked, (3, 16, 40)) >= 50


def test_small_and_zero_embeddings_do_not_underflow(tmp_path):
    """Squares of 1/64 of these underflow in fp16."""
    module = network()
    module.text_emb.weight *= 0.01
    module.speech_emb.weight *= 0.01
    module.text_emb.weight[ids(16)[0, 4]] = 0
    text, speech = graphs(module, (20,))
    paths = saved(text + speech, HALF, tmp_path)
    assert worst(module, ranking(module, paths, NARROW, (20,)), (3, 16, 20)) >= 50


def test_graphs_contain_only_operations_of_the_engine(paths):
    for path in paths[HALF].values():
        assert_fits_the_engine(path, rank=None)


def test_too_long_or_unknown_ids_are_reported(module, paths):
    ranked = ranking(module, paths[FP32], FP16)
    with pytest.raises(UserError, match="the text needs 41 positions"):
        ranked.text(ids(41))
    with pytest.raises(UserError, match="the speech has the id 90, and CLVP has embeddings for 90 ids"):
        ranked.speech(np.array([[3, 90]]))
    with pytest.raises(UserError, match="the id -1"):
        ranked.speech(np.array([[3, -1]]))


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

    def served(self, network: nn.Module, style: Style, folder: Path) -> list[PackageFunction]:
        graphs = [self.graph(network)]
        return functions(graphs, saved(graphs, style, folder))

    def latents(self, served: list[PackageFunction]) -> np.ndarray:
        return encoding(served, {self.input: self.value()})


def encoding(served: list[PackageFunction], inputs: dict[str, np.ndarray]) -> np.ndarray:
    stage = STAGES["ar_conditioning" if "mel" in inputs else "ar_random"]
    return stage.packaged(StoredFunctions(served), "", inputs)


CASES = {
    "clip of upstream's": ConditioningCase(
        "ar_conditioning", "conditioning_encoder", (2, 80, 517), conditioning.ar_conditioning
    ),
    "short clip": ConditioningCase(
        "ar_conditioning",
        "conditioning_encoder",
        (1, 80, 33),
        lambda network: conditioning.ar_conditioning(network, 33),
    ),
    "clip of upstream's, 24 kHz": ConditioningCase(
        "diffusion_conditioning", "contextual_embedder", (2, 100, 401), conditioning.diffusion_conditioning
    ),
    "long clip, 24 kHz": ConditioningCase(
        "diffusion_conditioning",
        "contextual_embedder",
        (1, 100, 838),
        lambda network: conditioning.diffusion_conditioning(network, 838),
    ),
    "random": ConditioningCase("ar_random", "rlg_auto", (3, 64), conditioning.ar_random),
    "random, diffusion": ConditioningCase("diffusion_random", "rlg_diffuser", (1, 64), conditioning.diffusion_random),
}
OUTLIERS = {"short clip": "init", "long clip, 24 kHz": "1"}  # and the convolution that writes the residual stream


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_latents_equal_the_references_and_half_precision_is_near_within_the_engine(case, tmp_path):
    network = reference_network(case.network)
    expected = case.expected(network)
    assert snr_db(expected, case.latents(case.served(network, FP32, tmp_path))) > 100
    (tmp_path / "half").mkdir()
    served = case.served(network, HALF, tmp_path / "half")
    assert snr_db(expected, case.latents(served)) > 60
    for arithmetic in (ROUNDED, NARROW):
        rounded = functions([case.graph(network)], {served[0].name: served[0].package}, arithmetic)
        assert snr_db(expected, case.latents(rounded)) > 55
    assert_fits_the_engine(served[0].package)


@pytest.mark.parametrize(("name", "layer"), OUTLIERS.items())
def test_outlier_channels_of_the_encoders_do_not_overflow(name, layer, tmp_path):
    case = CASES[name]
    network = reference_network(case.network)
    bias = network.get_submodule(layer).bias
    bias[3], bias[-20] = 3000, -2500
    expected, served = case.expected(network), case.served(network, HALF, tmp_path)
    quiet = np.ones(len(bias), bool)
    quiet[[3, -20]] = False
    for arithmetic in (ROUNDED, NARROW):
        latents = case.latents(functions([case.graph(network)], {served[0].name: served[0].package}, arithmetic))
        assert snr_db(expected, latents) > 50
        assert snr_db(expected[:, quiet], latents[:, quiet]) > 50


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
        encoding(served, {"mel": np.zeros((1, 80, length), np.float32)})
