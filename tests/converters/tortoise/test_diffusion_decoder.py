"""Compare packages of the diffusion decoder with the reference, and test what CLVP and clip encoders reject."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ane.backends.fixed_shapes import pad_last_axis, sequence_masks
from ane.backends.mil import Arithmetic, Interpreter, Package
from ane.backends.mil.package import ProgramOp
from ane.backends.packaged.functions import PackageFunction
from ane.backends.torch.backend import TorchDenoiser
from ane.bundles import open_model
from ane.models.tortoise.diffusion import Diffusion, frame_count, sample
from ane.models.tortoise.family import STAGES
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig, DiffusionTts, timestep_embedding
from ane.models.tortoise.packaged import PackagedDenoiser, clvp_vectors, upsample_nearest
from ane.models.tortoise.schedule import SAMPLERS
from ane.system.decibels import snr_db
from converters import blocks
from converters.coreml.graph import Style
from converters.proof.cost import nbytes
from converters.tortoise import conditioning
from converters.tortoise import diffusion_decoder as diffusion
from converters.tortoise.attention_block import QUERY_BLOCK
from tests.backends.packaged.packages import (
    FP16,
    FP32,
    NARROW,
    ROUNDED,
    InterpretingRuntime,
    functions,
    reference_network,
    saved,
)
from tests.random_model import draw
from tests.refusals import assert_refused

ODD = DiffusionConfig(model_channels=48, num_layers=1, in_latent_channels=20, num_heads=3)
TIMESTEP = 700


def random_network(config: DiffusionConfig) -> DiffusionTts:
    network, generator = DiffusionTts(config), torch.Generator().manual_seed(0)
    network.load_state_dict({key: draw(key, value, generator) for key, value in network.named_parameters()})
    return network.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def odd() -> DiffusionTts:
    return random_network(ODD)


@pytest.fixture(scope="module")
def build(tmp_path_factory) -> Callable[..., Path]:
    """``build(graph, style)``: the path of its package."""
    return lambda graph, style=FP32: saved([graph], style, tmp_path_factory.mktemp("package"))[graph.name]


@pytest.fixture(scope="module")
def small(odd, tmp_path_factory) -> list[PackageFunction]:
    """The functions for chunks of up to 16 latents and 64 frames."""
    graphs = [diffusion.condition(odd, 16), diffusion.denoise(odd, 1, 64), diffusion.denoise(odd, 2, 64)]
    return functions(graphs, saved(graphs, FP32, tmp_path_factory.mktemp("small")))


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def run(path: Path, arithmetic: Arithmetic = FP16, **inputs: np.ndarray) -> np.ndarray:
    (output,) = Interpreter(Package(path), None, arithmetic).predict(inputs).values()
    return output


def denoised(
    network: DiffusionTts, length: int, bucket: int, batch: int = 2
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Padded inputs of a denoise graph, and the reference's output without padding."""
    width = network.config.model_channels
    x, code = numbers(1, 100, length), numbers(batch, width, length, seed=1)
    timestep = torch.tensor([TIMESTEP])
    rows = torch.from_numpy(x).expand(batch, -1, -1)
    expected = network(rows, timestep.expand(batch), torch.from_numpy(code)).numpy()
    return {
        "x": pad_last_axis(x[:, :, None], bucket),
        "code": pad_last_axis(code[:, :, None], bucket),
        "time": timestep_embedding(timestep, width).numpy()[:, :, None, None],
        **sequence_masks(length, bucket),
    }, expected


def test_padding_does_not_change_the_network_whatever_it_contains(odd, build):
    """In blocks of 96 queries each."""
    pair = build(diffusion.denoise(odd, 2, 384))
    for length in (2, 300):
        inputs, expected = denoised(odd, length, 384)
        for name in ("x", "code"):
            inputs[name][..., length:] = 5
        assert snr_db(expected, run(pair, **inputs)[:, :, 0, :length]) > 100


def test_attention_in_groups_of_heads_is_that_of_all_heads(odd, build, monkeypatch):
    monkeypatch.setattr(blocks, "ON_CHIP", 2 * QUERY_BLOCK * 384 * 4)
    path = build(diffusion.denoise(odd, 2, 384))
    inputs, expected = denoised(odd, 300, 384)
    assert snr_db(expected, run(path, **inputs)[:, :, 0, :300]) > 100
    assert {op.outputs[op.name].shape[1] for op in scores(path)} == {1}


def scores(path: Path) -> list[ProgramOp]:
    return [op for op in Package(path).function("main").ops if op.type == "softmax"]


def test_scores_of_six_seconds_stay_on_the_chip_and_those_of_twelve_do_not_take_more_products(build):
    network = random_network(DiffusionConfig(model_channels=64, num_layers=1, in_latent_channels=20, num_heads=16))
    short, long = (scores(build(diffusion.denoise(network, 2, frames), Style("fp16"))) for frames in (576, 1152))
    assert max(nbytes(type) for op in short for type in op.outputs.values()) <= blocks.ON_CHIP
    assert len(short) == len(long) == 4 * 12  # 4 products in each of 12 layers


def test_the_trained_network_is_near_in_half_precision(build):
    """With its own unconditioned row, on which group norms have hardly any variance."""
    network = reference_network("diffusion", open_model("demo"))
    path = build(diffusion.denoise(network, 2, 64), Style("fp16"))
    inputs, _ = denoised(network, 50, 64)
    code = np.concatenate((numbers(1, network.config.model_channels, 50), network.unconditioned(50).numpy()))
    x = torch.from_numpy(inputs["x"][:, :, 0, :50]).expand(2, -1, -1)
    expected = network(x, torch.tensor([TIMESTEP] * 2), torch.from_numpy(code)).numpy()
    inputs["code"] = pad_last_axis(code[:, :, None], 64)
    for arithmetic, floor in ((FP16, 85), (ROUNDED, 63), (NARROW, 63)):
        assert snr_db(expected, run(path, arithmetic, **inputs)[:, :, 0, :50]) > floor


def bind(
    network: DiffusionTts, served: list[PackageFunction], latents: int, length: int, value: float = 1.0
) -> tuple[PackagedDenoiser, TorchDenoiser]:
    config = network.config
    given, voice = value * numbers(1, latents, config.in_latent_channels), numbers(1, 2 * config.model_channels, seed=1)
    condition, denoise = (
        [function for function in served if function.kind == kind] for kind in ("condition", "denoise")
    )
    return (
        PackagedDenoiser(condition, denoise, network.unconditioned_embedding.numpy(), given, voice, length),
        TorchDenoiser(network, [torch.from_numpy(given)], torch.from_numpy(voice), [length]),
    )


@pytest.mark.parametrize("guidance", [None, 2.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samples_are_those_of_torch(odd, small, sampler, guidance):
    [made], [expected] = (
        sample(each, [60], Diffusion(5, sampler, guidance), [np.random.default_rng(2)], prediction="v")
        for each in bind(odd, small, 14, 60)
    )
    assert snr_db(expected, made) > 90


def test_nan_and_a_chunk_beyond_the_buckets_are_reported(odd, small):
    for latents, length in ((17, 40), (14, 65)):
        assert_refused("largest bucket", bind, odd, small, latents, length)
    denoiser, _ = bind(odd, small, 14, 60, value=np.nan)
    assert_refused("NaN", lambda: sample(denoiser, [60], Diffusion(8, "ddim", None), [np.random.default_rng(2)]))


def test_the_smallest_bucket_is_used_and_a_pair_only_with_guidance(odd):
    called = []

    class LoggingEngine(InterpretingRuntime):
        def load(self, package, function, units):
            return self.named(function)

        def named(self, name):
            class LoggingFunction:
                def predict(self, inputs, state=None):
                    called.append(name)
                    return {
                        "code": np.zeros((1, 48, 1, 64), np.float32),
                        "prediction": np.zeros((2, 200, 1, inputs["inside"].shape[-1]), np.float32),
                    }

            return LoggingFunction()

    graphs = [
        diffusion.condition(odd, 64),
        *(diffusion.denoise(odd, batch, length) for batch in (2, 1) for length in (128, 64)),
    ]
    served = [
        PackageFunction(LoggingEngine(), Path("p"), graph.name, graph.bucket, "ALL", graph.kind) for graph in graphs
    ]
    for length, guided in ((64, False), (64, True), (65, False)):
        denoiser, _ = bind(odd, served, 16, length)
        [output] = denoiser([np.zeros((1, 100, length), np.float32)], 5, guided)
        assert output.shape == (1 + guided, 200, length)
    assert [name for name in called if "denoise" in name] == ["denoise_1_64", "denoise_2_64", "denoise_1_128"]


def test_codes_are_repeated_as_by_torch():
    for latents in (*range(1, 40), 301, 499):
        columns = np.arange(latents, dtype=np.float32)[None, None]
        for length in {max(frame_count(latents), 1), 2 * latents + 1}:
            expected = F.interpolate(torch.from_numpy(columns), size=length, mode="nearest").numpy()
            np.testing.assert_array_equal(upsample_nearest(columns, length), expected)


class StoredFunctions(list):
    """The functions of a package, all of one kind."""

    def functions(self, kind: str) -> "StoredFunctions":
        return self


@pytest.mark.parametrize(
    ("ids", "fault"),
    [
        ([7] * 41, "the speech needs 41 positions"),
        ([3, 90], "the speech has the id 90, but CLVP has embeddings only for ids from 0 to 89"),
        ([3, -1], "the id -1"),
    ],
)
def test_too_long_or_unknown_ids_are_reported(ids, fault):
    served = [PackageFunction(None, Path("clvp.mlpackage"), "clvp_speech_40", {"positions": 40}, "ALL")]
    assert_refused(
        fault, lambda: clvp_vectors(served, np.zeros((90, 4), np.float32), 1.0, "the speech", np.array([ids]))
    )


def test_the_last_block_computes_only_the_first_column(tmp_path):
    graph = conditioning.ar_conditioning(reference_network("conditioning_encoder"), 33)
    [path] = saved([graph], FP32, tmp_path).values()
    scores = [
        type.shape for op in Package(path).function(None).ops if op.type == "softmax" for type in op.outputs.values()
    ]
    assert [shape[2] for shape in scores] == [33] * 5 + [1]


@pytest.mark.parametrize("length", [516, 518])
def test_a_clip_of_another_length_is_reported(length):
    package = Path("conditioning_encoder.mlpackage")
    served = [PackageFunction(None, package, "ar_conditioning_517", {"frames": 517}, "ALL")]
    assert_refused(
        f"{length} mel frames: conditioning_encoder takes exactly 517 frames",
        lambda: STAGES["ar_conditioning"].packaged(
            StoredFunctions(served), "", {"mel": np.zeros((1, 80, length), np.float32)}
        ),
    )
