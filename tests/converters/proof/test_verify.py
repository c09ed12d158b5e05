"""Test ``converters.proof.verify``: sound packages pass, and wrong layers are named. A stand-in plays Core ML."""

import dataclasses
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from ane.backends.coreml.compiled import extract_function
from ane.backends.coreml.runtime import CoreMLRuntime
from ane.backends.mil import Arithmetic, Interpreter, MilRuntime, Package
from ane.backends.packaged.functions import PackageFunction
from ane.backends.torch.backend import TorchDenoiser
from ane.bundles.package_records import FunctionRecord
from ane.models.tortoise.diffusion import Diffusion, sample
from ane.models.tortoise.packaged import PackagedDenoiser
from converters.coreml.coreml_package import CoreMLOptions
from converters.coreml.graph import CoreMLGraph
from converters.proof.activations import CallRecorder, CapturedOutputs, compare_with_modules, interpreted
from converters.proof.differences import CoreMLInspector, core_ml_activations
from converters.proof.elements import MAX_SNR, ComparedValue, LayerComparison, compare, first_drift
from converters.proof.parity import FLUSHED
from converters.proof.verify import (
    FunctionCheck,
    PackageRunner,
    UnverifiedBundle,
    choose_packages,
    runner_named,
    verify,
)
from converters.tortoise import diffusion_decoder as diffusion
from tests.backends.coreml.mac_fixtures import mac, unguarded_mac  # noqa: F401
from tests.backends.packaged.packages import FP32, InterpretingRuntime, reference_network, saved
from tests.refusals import assert_refused
from tests.small_bundle import OPTIONS, spoil, write_small_bundle

AUTOREGRESSIVE = "packages/autoregressive-fp16.mlpackage"


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_small_bundle(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def inside(small):
    """Results for the whole bundle with fp16 rounding, with the values inside."""
    model = UnverifiedBundle(small)
    results = verify(model, choose_packages(model), runner_named("mil:fp16"), layers=LayerComparison())
    return {one.function: one for one in results}


@pytest.fixture
def copy(small, tmp_path) -> Path:
    return shutil.copytree(small, tmp_path / "copy")


def test_sound_packages_pass(inside):
    assert len(inside) == 10
    assert [one for one in inside.values() if not one.passed or one.drift or one.difference] == []
    assert inside["step_2_64"].error < 0.1


GPT = ["gpt.h.0.ln_1", "gpt.h.2", "gpt.ln_f", "final_norm", "mel_head"]


@pytest.mark.parametrize(
    ("function", "count", "modules"),
    [
        ("prefill_32", 21, GPT),
        ("step_2_64", 21, GPT),
        ("state_2_64_64", 21, GPT),
        ("store_32_64", 0, []),
        (
            "clvp_text_32",
            6,
            [
                "text_transformer.transformer.attn_layers.layers.3.1",
                "text_transformer.transformer.norm",
                "to_text_latent",
            ],
        ),
        ("clvp_speech_32", 6, ["speech_transformer.transformer.attn_layers.layers.0.1", "to_speech_latent"]),
        ("diffusion_conditioning_401", 8, [*"0123456", "(the network)"]),
        ("ar_random", 6, ["layers.0", "layers.4", "(the network)"]),
        ("hifigan_14_14", 20, ["conv_pre", "cond_layer", "ups.3", "resblocks.11", "conv_post", "(the network)"]),
        (
            "univnet_14_17",
            41,
            [
                "conv_pre",
                "res_stack.0.convt_pre.1",
                "res_stack.1.kernel_predictor.residual_convs.2.3",
                "res_stack.2.conv_blocks.3.1",
                "res_stack.2",
                "conv_post.1",
            ],
        ),
    ],
)
def test_values_equal_the_outputs_of_the_modules_they_are_named_after(inside, function, count, modules):
    found = {value.module: value for value in inside[function].values}
    assert len(inside[function].values) == count
    for module in modules:
        assert found[module].snr > 50, module
    if function == "diffusion_conditioning_401":  # for this function, the scales of its streams are reported
        assert [found[module].factor for module in "026"] == [1, 4, 4]


def denoised_and_compared(folder: Path, rows: int) -> list[list[ComparedValue]]:
    """Values of condition and of denoise, compared with the reference's modules."""
    network, length = reference_network("diffusion"), 57
    graphs = [diffusion.condition(network, 16), diffusion.denoise(network, rows, 64)]
    engine, paths = CallRecorder(InterpretingRuntime()), saved(graphs, FP32, folder)
    functions = [
        [PackageFunction(engine, paths[graph.name], graph.name, graph.bucket, "CPU_ONLY", graph.kind)]
        for graph in graphs
    ]

    def captured(graph: CoreMLGraph) -> CapturedOutputs:
        names = [name for op in Package(paths[graph.name]).function("main").ops for name in op.outputs]
        return CapturedOutputs("diffusion", FunctionRecord(graph.kind, dict(graph.bucket), {}), names, network)

    rng, config = np.random.default_rng(0), network.config
    latents, voice = (
        rng.standard_normal(shape, dtype=np.float32)
        for shape in ((1, 13, config.in_latent_channels), (1, 2 * config.model_channels))
    )
    packaged = PackagedDenoiser(*functions, network.unconditioned_embedding.numpy(), latents, voice, length)
    run = Diffusion(1, "ddim", 2.0 if rows == 2 else None)
    first, last = found = {graph.name: captured(graph) for graph in graphs}
    with found[first].capture(), found[last].capture():
        reference = TorchDenoiser(network, [torch.from_numpy(latents)], torch.from_numpy(voice), [length])
        sample(reference, [length], run, [np.random.default_rng(1)])
    sample(packaged, [length], run, [np.random.default_rng(1)])
    source = interpreted(MilRuntime())
    return [
        compare_with_modules(one, source(paths[name], "main", engine.calls[name]), engine.calls[name])
        for name, one in found.items()
    ]


@pytest.mark.parametrize("rows", [1, 2])
def test_the_denoiser_is_compared_with_all_its_modules(tmp_path, rows):
    of_condition, of_network = denoised_and_compared(tmp_path, rows)
    blocks = [
        *(f"conditioning_timestep_integrator.{index}.resblk" for index in range(3)),
        *(f"layers.{index}.resblk" for index in range(2)),
        *(f"layers.{index}" for index in range(2, 5)),
    ]
    inner = [f"{block}{layer}" for block in blocks for layer in (".in_layers.2", ".out_layers.3", "")]
    attention = [block.replace("resblk", "attn") for block in blocks if "resblk" in block]
    modules = ["time_embed", "inp_block", "integrating_conv", "out", *inner, *attention]
    assert [value.module for value in of_condition] == [f"latent_conditioner.{index}" for index in range(5)]
    assert sorted(value.module for value in of_network) == sorted(modules)
    assert min(value.snr for value in of_condition + of_network) > 60


@pytest.mark.parametrize("layer", ["gpt__h__0__mlp__c_fc", "gpt__h__1__attn"])
def test_the_layer_of_a_wrong_weight_is_named(copy, layer):
    spoil(copy, AUTOREGRESSIVE, "step_2_64", layer)
    model = UnverifiedBundle(copy)
    chosen = choose_packages(model, ["autoregressive"])
    for one in verify(model, chosen, runner_named("mil"), layers=LayerComparison()):
        assert not one.passed
        if one.function != "store_32_64":  # it has no layers, so the prefill or the step next to it is wrong
            assert one.drift.name == layer
            assert (one.difference.op, one.difference.name) == ("conv", layer)


def test_a_damaged_package_is_reported_and_the_others_are_verified(copy):
    file = next((copy / AUTOREGRESSIVE).rglob("weight.bin"))
    file.write_bytes(file.read_bytes()[:-64])
    model = UnverifiedBundle(copy)
    found = {one.function: one for one in verify(model, choose_packages(model), runner_named("mil"))}
    assert "weight.bin has" in found["step_2_64"].problem
    assert not found["step_2_64"].passed
    assert found["ar_random"].passed


def test_the_requirement_is_the_threshold_or_nearly_the_recorded_parity(inside):
    one = inside["prefill_32"]
    assert one.required == pytest.approx(one.recorded - 3)
    assert dataclasses.replace(one, recorded=48.0).required == 46
    assert dataclasses.replace(one, threshold=80.0, recorded=120.0).required == 87
    assert not dataclasses.replace(one, snr=float("nan")).passed


def test_a_mac_must_reach_what_was_recorded_less_what_a_right_engine_loses(small, mac):  # noqa: F811
    model = UnverifiedBundle(small)
    chosen = choose_packages(model, ["rlg_auto"])
    flushed = chosen[0][0].functions["ar_random"].parity[FLUSHED]
    (one,) = verify(model, chosen, runner_named("coreml"))
    assert one.passed
    assert one.required == pytest.approx(max(36, flushed - 12))
    assert dataclasses.replace(one, recorded=None).required == 36, "a package of an earlier version"
    assert dataclasses.replace(one, recorded=120.0).required == 78


def value(snr: float) -> ComparedValue:
    return ComparedValue(f"at {snr}", "add", 0.0, snr)


@pytest.mark.parametrize(
    ("ratios", "drift"),
    [
        ((200, 71, 70, 63, 62, 61), None),  # the first rounding is not drift
        ((71, 60, 51, 40), 51),
        ((200, 115, 30, 60), 30),
        ((60, 55, 50, 45, 41, 38), 41),
        ((52,), None),
        ((51.9,), 51.9),  # 8 dB less than 60 dB, which is 10 dB above the threshold
        ((55, 47), None),
        ((55, 46.9), 46.9),  # 8 dB less than the lowest value before
        ((52, 44, 42), None),
        ((52, 44, 41.9), 41.9),
    ],
)  # 8 dB below the threshold
def test_drift_is_a_large_drop_or_the_end_of_a_long_decline(ratios, drift):
    found = first_drift([value(snr) for snr in ratios], 50)
    assert (found and found.snr) == drift


def test_ratios_ignore_a_power_of_two_and_are_never_nan():
    x = np.random.default_rng(0).standard_normal(1000)
    assert compare("x", "add", 32 * x, x, scaled=True).factor == 32
    assert compare("x", "add", 32 * x, x, scaled=True).snr == MAX_SNR
    assert compare("x", "add", x, 1.01 * x).snr == pytest.approx(40)
    assert compare("x", "add", x, -x, scaled=True).factor == 1
    assert compare("x", "add", x, np.full(1000, np.nan)).snr == -MAX_SNR
    assert compare("x", "add", 0 * x, 0 * x, scaled=True).snr == MAX_SNR
    assert compare("x", "add", 0 * x, x, scaled=True).snr == -MAX_SNR


def test_a_package_states_its_options(small):
    for package in UnverifiedBundle(small).packages:
        assert CoreMLOptions.of(package) == OPTIONS
        package.source["options"] |= {"heads": "matmul", "wide": []}  # as earlier versions recorded them
        assert CoreMLOptions.of(package) == OPTIONS
    assert_refused("does not record the options", lambda: CoreMLOptions.of(dataclasses.replace(package, source={})))


# Core ML's own values, from a stand-in


class Inspecting:
    """Values with the rounding of fp16, of a package with one function; one value is missing."""

    def __init__(self, package: Path, compute_units: str):
        assert compute_units == "CPU_AND_NE"
        self.interpreter = Interpreter(Package(package), "main", Arithmetic(fp16=True))

    def values(self, inputs, names):
        assert all(array.dtype == np.float32 for array in inputs.values())
        found = {name: array for name, _, array in self.interpreter.activations(inputs)}
        return {name: None if name == "gpt__h__1" else found[name].astype(np.float64) for name in names}


@pytest.fixture
def check(small, mac):  # noqa: F811
    """``check(function, inspector)``: its result on Core ML, with a stand-in for Core ML's inspector."""
    engine, model = CoreMLRuntime(), UnverifiedBundle(small)

    def check(function: str, inspector: type, shows_all: bool = False) -> FunctionCheck:
        runner = PackageRunner("coreml", engine, partial(core_ml_activations, inspector=inspector), shows_all=shows_all)
        (one,) = verify(model, choose_packages(model, function=function), runner, layers=LayerComparison())
        return one

    return check


class Wrong(Inspecting):
    """From one value on, everything that Core ML computes is wrong; it counts the models that it compiles."""

    compiled, first = 0, "gpt__h__1__mlp"

    def values(self, inputs, names):
        type(self).compiled += 1
        order = [name for name, _, _ in self.interpreter.activations(inputs)]
        begin = next(index for index, name in enumerate(order) if name.startswith(self.first))
        Wrong.expected = order[begin]
        found = super().values(inputs, names)
        return {name: array if array is None or order.index(name) < begin else -array for name, array in found.items()}


def test_where_core_ml_goes_wrong_is_found_in_few_compilations(small, check, monkeypatch):
    monkeypatch.setattr("converters.proof.differences.BATCH", 8)
    monkeypatch.setattr(FunctionCheck, "passed", property(lambda check: False))
    one = check("step_2_64", Wrong)
    assert (one.problem, one.difference.name) == ("", Wrong.expected)
    assert Wrong.compiled <= 3 < len(Package(small / AUTOREGRESSIVE).function("step_2_64").ops) / 8


@pytest.mark.parametrize("function", ["step_2_64", "state_2_64_64"])
def test_a_function_that_passes_on_core_ml_is_not_compiled_again(check, function):
    one = check(function, Failing)
    assert (one.passed, one.problem, one.values) == (True, "", ())


def test_values_inside_core_ml_are_compared(check):
    """As of a package that `ane verify --package` runs."""
    one = check("step_2_64", Inspecting, shows_all=True)
    assert one.passed, one.problem
    assert one.drift is None
    assert "gpt.h.1" not in {value.module for value in one.values}, "what Core ML does not return is left out"
    assert len(one.values) == 20


def test_a_failing_inspector_is_reported_beside_the_result(check, monkeypatch):
    monkeypatch.setattr(FunctionCheck, "passed", property(lambda check: False))
    one = check("ar_random", Failing)
    assert re.search(r"cannot show the values .* ar_random of .* on CPU_AND_NE: ANECCompile\(\) FAILED", one.problem)


def test_an_extracted_function_computes_the_same(small, tmp_path):
    program = Package(small / AUTOREGRESSIVE).function("step_2_64")
    extract_function(small / AUTOREGRESSIVE, "step_2_64", tmp_path / "single.mlpackage")
    single = Package(tmp_path / "single.mlpackage")
    assert list(single.functions) == ["main"]
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(type.shape, dtype=np.float32) for name, type in program.inputs.items()}
    wanted = MilRuntime().load(small / AUTOREGRESSIVE, "step_2_64", "").predict(inputs)
    for name, array in Interpreter(single).predict(inputs).items():
        assert np.array_equal(array, wanted[name])
    assert len(Package(small / AUTOREGRESSIVE).functions) == 4, "the original was modified through a link"
    assert set(CoreMLInspector(tmp_path / "single.mlpackage", "CPU_ONLY").inspector.output_names) >= {"gpt__h__1"}


class Failing:
    def __init__(self, package, units):
        raise RuntimeError("ANECCompile() FAILED")
