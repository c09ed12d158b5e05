"""Every row of `FUNCTIONS` on every engine: what is built has the engine's form, and computes what the reference does.

A test builds the packages of a model's network, lints them, and calls each function by the probe of its row, with
random lengths up to its bucket, on the engine and on float32 torch.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.base import Backend
from ane.backends.mil import Arithmetic, MilRuntime, Package
from ane.backends.mil.package import ProgramFunction
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.packaged.functions import Runtime
from ane.bundles import Bundle, open_model
from ane.bundles.package_records import PackageFolder, PackageRecord
from ane.bundles.writing import write_bundle
from ane.models.fastspeech.checkpoints import import_fastspeech
from ane.models.tortoise.networks.clvp import CLVPConfig
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig
from ane.models.vocoders.bigvgan import BigVGANConfig
from converters.coreml.coreml_package import CoreMLOptions, write_package
from converters.function_table import all_functions
from converters.neural_engine import MAX_AXIS
from converters.proof.lint import REFUSED, lint
from converters.proof.parity import MATHS, ROUNDING, mean_snr_db, reference_backend, row_of, threshold_of
from tests import random_model
from tests.fastspeech_files import write_fastspeech, write_hifigan
from tests.imported import imported
from tests.models.whisper.random_whisper import RandomSizes, write_hugging_face


def core_ai() -> Runtime:
    pytest.importorskip("coreai", reason="needs Core AI: pip install '.[coreai]'")
    from ane.backends.coreai.runtime import CoreAIRuntime

    return CoreAIRuntime()


RUNTIMES: dict[str, Callable[[], Runtime]] = {
    MATHS: MilRuntime,
    ROUNDING: lambda: MilRuntime(Arithmetic(fp16=True)),
    "narrow": lambda: MilRuntime(Arithmetic(fp16=True, narrow_norms=True)),
    "Core AI": core_ai,
}
# dB by precision and engine, where the threshold of a row, which trained weights must reach, is higher
FLOORS = {"fp32": {MATHS: 90.0, "Core AI": 85.0}, "fp16": {MATHS: 50.0, ROUNDING: 45.0, "narrow": 45.0}}
# the unconditioned row of random weights hardly varies along frames, and norms amplify its rounding
UNCONDITIONED = 25.0
LEAVING = "gather", "scatter", "transpose", "cast", "tile", "select"
# whose kernels are made by a network; a state in fp16 beside columns in fp32
MAY_LEAVE = {"univnet": "transpose", "autoregressive": "cast", "decoder": "cast"}
VARIED = ("columns", "latents", "frames", "positions", "symbols")  # the length that a bucket limits
SHORTEST = {"denoise": 8, "clvp_text": 6, "clvp_speech": 6}  # of their probes, where shorter than a bucket may be
OPTIONS = CoreMLOptions(
    lanes=(2,),
    caches=("io", "state"),
    buckets={
        "prefill": (32,),
        "step": (96,),
        "condition": (32,),
        "denoise": (128,),
        "clvp_text": (40,),
        "clvp_speech": (40,),
        "univnet": (14,),
        "hifigan": (14,),
        "bigvgan": (14,),
        "source_filter": (64,),
        "mel_source_filter": (64,),
        "text": (24,),
        "mel": (64,),
        "vocoder": (14,),
        "prosody": (48,),
        "spectra": (48,),
    },
)
ODD = {
    "clvp": CLVPConfig(
        dim_text=96,
        dim_speech=64,
        dim_latent=48,
        text_enc_depth=2,
        text_heads=2,
        speech_enc_depth=3,
        speech_heads=1,
        num_text_tokens=50,
        num_speech_tokens=90,
    ),
    "diffusion": DiffusionConfig(model_channels=48, num_layers=1, in_latent_channels=64, num_heads=3),
    "bigvgan": BigVGANConfig(
        upsample_initial_channel=64, resblock_kernel_sizes=(3, 5), resblock_dilation_sizes=((1, 3), (1, 2))
    ),
}


Tensors = dict[str, torch.Tensor]
# of a network: key of its weights, channel, and what is added there
OUTLIERS: dict[str, list[tuple[str, int, float]]] = {
    "autoregressive": [("gpt.h.0.mlp.c_proj.bias", 7, 6000), ("gpt.h.0.mlp.c_proj.bias", 40, -3600)],
    "conditioning_encoder": [("init.bias", 3, 3000), ("init.bias", -20, -2500)],
    "contextual_embedder": [("1.bias", 3, 3000), ("1.bias", -20, -2500)],
    "clvp": [
        ("text_emb.weight", 3, 6000),
        ("text_emb.weight", 20, -2500),
        ("speech_emb.weight", 5, 6000),
        ("speech_emb.weight", 30, -2500),
    ],
    "diffusion": [
        ("latent_conditioner.0.bias", 5, 3000),
        ("latent_conditioner.0.bias", 20, -2500),
        ("integrating_conv.bias", 5, 3000),
        ("integrating_conv.bias", 20, -2500),
        ("conditioning_timestep_integrator.0.resblk.out_layers.3.bias", 7, 2000),
    ],
}


def odd_tortoise(folder: Path) -> Bundle:
    with pytest.MonkeyPatch.context() as patch:
        for network, config in ODD.items():
            patch.setitem(random_model.CONFIGS, network, config)
        return write_bundle(random_model.random_contents(), folder / "odd")


def fastspeech(folder: Path) -> Bundle:
    """Its kernels are wider than the official ones, and both sides have another number of heads."""
    vocoder = write_hifigan(folder / "generator.pth")
    return write_bundle(import_fastspeech(write_fastspeech(folder / "checkpoint.pt"), vocoder=vocoder), folder / "out")


MODELS: dict[str, Callable[[Path], Bundle]] = {
    "tortoise": lambda folder: write_bundle(random_model.random_contents(), folder / "random"),
    "odd tortoise": odd_tortoise,
    "demo": lambda folder: open_model("demo"),
    "whisper": lambda folder: imported(write_hugging_face(folder, RandomSizes(n_audio_ctx=20)), folder / "bundle"),
    "fastspeech": fastspeech,
    "hibari": lambda folder: open_model("heart"),
}
NETWORKS = {
    "tortoise": tuple(random_model.CONFIGS),
    "odd tortoise": tuple(ODD),
    "demo": ("source_filter", "mel_source_filter"),
    "whisper": ("encoder", "decoder"),
    "fastspeech": ("fastspeech", "vocoder"),
    "hibari": ("hibari",),
}
CASES = [(model, network) for model, networks in NETWORKS.items() for network in networks]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    """``model(name)``: one of `MODELS`."""
    return cache(lambda name: MODELS[name](tmp_path_factory.mktemp("model")))


def lengths_of(package: PackageRecord, name: str) -> Mapping[str, int]:
    """The lengths of a function's bucket; of a graph of ONNX, which has none, those that it is probed with."""
    return row_of(package, name).onnx_lengths if package.format == "onnx" else package.functions[name].bucket


def varied(package: PackageRecord, name: str) -> tuple[str, int, int] | None:
    """The length that inputs of this function may vary in, its smallest and its largest value; None for none."""
    row, bucket = row_of(package, name), lengths_of(package, name)
    [length] = [length for length in VARIED if length in bucket][:1] or [""]
    if row.bucket is None or row.bucket.unit == "slots" or not length:
        return None
    return length, SHORTEST.get(row.kind, row.bucket.smallest), bucket[length]


def decibels(
    package: PackageRecord,
    name: str,
    backends: Sequence[Backend],
    model: Bundle,
    loudest: float = np.inf,
    **lengths: int,
) -> float:
    """Return the SNR of what a function's probe returns on two backends, with inputs that nearly have these lengths.

    Values beyond ``loudest`` count as that, so that they do not hide the others.
    """
    bucket = {**lengths_of(package, name), **lengths}
    both = (row_of(package, name).probe(each, model, bucket, np.random.default_rng(0)) for each in backends)
    return mean_snr_db(*([np.clip(output, -loudest, loudest) for output in outputs] for outputs in both))


def test_every_row_is_in_the_table() -> None:
    assert {row.network for row in all_functions()} == {network for _, network in CASES}


@pytest.mark.parametrize("precision", FLOORS)
@pytest.mark.parametrize(("name", "network"), CASES)
def test_a_function_has_the_engines_form_and_the_references_outputs(model, tmp_path, name, network, precision):
    bundle = model(name)
    package = write_package(bundle, network, replace(OPTIONS, precision=precision), tmp_path)
    program = Package(tmp_path / package.path)
    assert not [broken for broken in lint(program) if broken.rule.severity == REFUSED]
    reference, folder = reference_backend(bundle, keep=True), PackageFolder(tmp_path, [package])
    for function in package.functions:
        assert_fits_the_engine(program.function(function), package.precision, MAY_LEAVE.get(network, ""))
    for engine, floor in FLOORS[precision].items():
        backends = reference, PackagedBackend(bundle, RUNTIMES[engine](), reference, unpublished=folder)
        for function in package.functions:
            unconditioned = function.startswith("denoise_2") and precision == "fp16"
            least = min(threshold_of(package, function, engine), UNCONDITIONED if unconditioned else floor)
            assert decibels(package, function, backends, bundle) >= least, (function, engine)
            if engine == MATHS and precision == "fp32" and (length := varied(package, function)):
                any_length_is_near(package, function, backends, bundle, length, least)


@pytest.mark.parametrize("precision", ["8bit", "4bit"])
def test_compressed_weights_mean_the_same_to_core_ai(model, tmp_path, precision):
    pytest.importorskip("coreai", reason="needs Core AI: pip install '.[coreai]'")
    bundle, options = model("tortoise"), replace(OPTIONS, precision=precision)
    package = write_package(bundle, "autoregressive", options, tmp_path, functions={"prefill_32", "step_2_96"})
    reference, folder = reference_backend(bundle, keep=True), PackageFolder(tmp_path, [package])
    ours, apples = (
        decibels(
            package,
            "step_2_96",
            (reference, PackagedBackend(bundle, RUNTIMES[engine](), reference, unpublished=folder)),
            bundle,
        )
        for engine in (MATHS, "Core AI")
    )
    assert abs(ours - apples) <= 0.5  # dB between two runtimes in float32


@pytest.mark.parametrize("network", list(random_model.CONFIGS))
def test_a_graph_of_onnx_has_the_references_outputs_at_any_length(onnx_packages, network):
    bundle, package = onnx_packages.model, onnx_packages.package(network)
    reference, folder = reference_backend(bundle, keep=True), PackageFolder(onnx_packages.folder, [package])
    backends = reference, OnnxBackend(bundle, DEVICES["cpu"], reference, threads=1, unpublished=folder)
    for function in package.functions:
        least = threshold_of(package, function, None)
        assert decibels(package, function, backends, bundle) >= least, function
        if length := varied(package, function):
            any_length_is_near(package, function, backends, bundle, length, least)


def outlying(network: str, tensors: Tensors) -> Tensors:
    """Thousands in single channels of the residual stream, which the next norms reduce, as in trained networks."""
    for key, channel, value in OUTLIERS[network]:
        tensors[key][..., channel] += value
    for key, tensor in tensors.items():
        if network == "clvp" and (key.endswith(".0.0.g") or key.endswith("transformer.norm.weight")):
            tensor *= 100
            tensor[[3, 5, 20, 30]] *= 1e-5
        if network == "autoregressive" and re.fullmatch(r"gpt\.h\.[12]\.ln_[12]\.weight", key):
            tensor[[7, 40]] /= 600
    return tensors


def quiet(network: str, tensors: Tensors) -> Tensors:
    """Small embeddings, of which 1/64 squared underflows in fp16, and some that are zero."""
    for side in ("text", "speech"):
        tensors[f"{side}_emb.weight"] *= 0.01
        tensors[f"{side}_emb.weight"][::9] = 0
    return tensors


@pytest.mark.parametrize(
    ("changed", "network"),
    [*((outlying, network) for network in OUTLIERS), (quiet, "clvp")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_no_value_overflows_or_underflows_in_half_precision(tmp_path, changed, network):
    contents = random_model.random_contents()
    changed_contents = replace(
        contents,
        tensors=lambda name: changed(name, contents.tensors(name)) if name == network else contents.tensors(name),
    )
    bundle = write_bundle(changed_contents, tmp_path / "bundle")
    package = write_package(bundle, network, replace(OPTIONS, caches=("io",)), tmp_path)
    reference, folder = reference_backend(bundle, keep=True), PackageFolder(tmp_path, [package])
    for engine in (ROUNDING, "narrow"):
        backends = reference, PackagedBackend(bundle, RUNTIMES[engine](), reference, unpublished=folder)
        for function in package.functions:
            assert decibels(package, function, backends, bundle, loudest=10) >= 45, (function, engine)


def any_length_is_near(
    package: PackageRecord,
    name: str,
    backends: Sequence[Backend],
    model: Bundle,
    lengths: tuple[str, int, int],
    least: float,
) -> None:
    axis, *limits = lengths

    @settings(max_examples=3)
    @given(st.integers(*limits))
    def check(length: int) -> None:
        assert decibels(package, name, backends, model, **{axis: length}) >= least

    check()


def assert_fits_the_engine(function: ProgramFunction, precision: str, may_leave: str) -> None:
    """Assert that a function has values of up to four axes, none too long, and no operation that leaves the engine."""
    types = [type for op in function.ops for type in op.outputs.values()]
    assert max(len(type.shape) for type in types) <= 4
    assert max(max(type.shape, default=1) for type in types) <= MAX_AXIS
    dtypes = {type.dtype for type in (*function.inputs.values(), *function.outputs.values())}
    assert dtypes <= {precision, "fp16", *(("int32",) if function.states else ())}
    assert {op.type for op in function.ops if op.type.startswith(LEAVING)} <= {may_leave}
    assert all("output_shape" in op.arguments for op in function.ops if op.type == "conv_transpose")
