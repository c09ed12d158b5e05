"""Test that the decoder of every engine returns what torch's plain decoder returns with the same weights.

Schedules replace prefixes, step some of the lanes, rewind and refill lanes, move lanes to another prefix, and include
steps of several columns. tests/parity/test_whisper_packages.py compares cross-attention.
"""

import re
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import cache, partial
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from ane.backends.base import Stage, TensorSpec, check_inputs
from ane.backends.decoding import Decoder
from ane.backends.mlx.backend import MlxBackend
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.functions import PackageFunction
from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.kernel_decoder import KernelDecoder
from ane.backends.torch.kernels import library
from ane.backends.torch.static_decoder import StaticDecoder, run_eagerly
from converters.tortoise import autoregressive
from tests.arrays import assert_equal
from tests.backends.decoder_steps import (
    CAPACITY,
    CPU,
    LANES,
    LONGEST,
    PREFIXES,
    answers,
    assert_near,
    calls_of,
    columns,
    schedules,
    turns,
)
from tests.backends.packaged.packages import FP32, NEEDS_CORE_AI, InPlaceRuntime, functions, saved

# engine → required SNR in dB. A state is in fp16. The CPU's kernels are compiled when the package is installed
KERNELS = {} if library() is None else {"kernels": 95, "kernels with caches in fp16": 60}
THRESHOLDS = {
    **KERNELS,
    "static steps": 95,
    "static steps, replayed by a fake of CUDA graphs": 95,
    "packages": 95,
    "packages with a state": 65,
    "onnx": 95,
    "mlx fp32": 95,
    "mlx fp16": 48,
    "mlx 8bit": 24,
}
RECORDING = {*KERNELS, "mlx fp32", "mlx fp16", "mlx 8bit"}  # engines whose decoders record scores of attention
EVERY_ENGINE = pytest.mark.parametrize("engine", THRESHOLDS)
# other engines than these. Core ML's runtime reads arrays where they are
AND_EVERY_RUNTIME = [
    "torch",
    *THRESHOLDS,
    "packages on Core ML",
    "packages on Core ML with a state",
    *(pytest.param(f"packages on Core AI{kind}", marks=NEEDS_CORE_AI) for kind in ("", " with a state")),
]


@pytest.fixture(scope="module")
def backend(decoder_bundle) -> TorchBackend:
    return TorchBackend(decoder_bundle, "cpu", "fp32", keep=True, exact=True)


@pytest.fixture(scope="module")
def package_functions(backend, tmp_path_factory) -> Callable[[str], list[PackageFunction]]:
    """``package_functions(runtime)``: of the decoder, which all decoders share as those of a backend do."""
    built = autoregressive.decoder_graphs(backend.network("autoregressive"))
    graphs = [built.prefill(8), built.step(8, 160, "io", 160), built.step(8, 160, "state", 160), built.store(160)]
    paths = saved(graphs, FP32, tmp_path_factory.mktemp("packages"))

    @cache
    def on(runtime: str) -> list[PackageFunction]:
        if runtime == "Core AI":
            from ane.backends.coreai.runtime import CoreAIRuntime

            found = functions(graphs, paths, runtime=CoreAIRuntime())
            for function in found:
                function.name = "main"
            return found
        return functions(graphs, paths, runtime=InPlaceRuntime() if runtime == "Core ML" else None)

    return on


@pytest.fixture(scope="module")
def make(backend, decoder_bundle, request, fake_graphs) -> Callable[..., Decoder]:
    """``make(engine, lanes)``: a decoder; "torch" is the plain one."""
    network, packed = backend.network("autoregressive"), TorchBackend(decoder_bundle, "cpu", "fp32", keep=True)
    onnx = cache(partial(OnnxBackend, decoder_bundle, DEVICES["cpu"], backend, "fp32", threads=1))

    def make_decoder(engine: str, lanes: int = LANES) -> Decoder:
        if engine == "torch":
            return TorchDecoder(network, lanes, CAPACITY, CPU, torch.float32, PREFIXES, LONGEST)
        if engine in KERNELS:
            dtype = torch.float16 if "fp16" in engine else torch.float32
            decoder = KernelDecoder(packed.network("autoregressive"), lanes, CAPACITY, CPU, dtype, PREFIXES, LONGEST)
            assert decoder._blocks is not None, "all blocks are one call"
            return decoder
        if engine.startswith("static"):
            run = fake_graphs() if "replayed" in engine else run_eagerly
            return StaticDecoder(network, lanes, CAPACITY, CPU, torch.float32, PREFIXES, LONGEST, run, smallest=4)
        if engine.startswith("mlx"):
            return MlxBackend(decoder_bundle, backend, engine.removeprefix("mlx "), keep=True).decoder(
                lanes, CAPACITY, PREFIXES, LONGEST
            )
        if engine.startswith("packages"):
            runtime = engine.removeprefix("packages on ").removesuffix(" with a state")
            found = request.getfixturevalue("package_functions")(runtime)
            kinds = {kind: [f for f in found if f.kind == kind] for kind in ("prefill", "step", "state", "store")}
            shape = network.config.decoder_shape
            return PackagedDecoder(
                kinds["prefill"],
                kinds["state" if "state" in engine else "step"],
                kinds["store"],
                lanes,
                CAPACITY,
                (shape.layers, shape.heads, shape.head_width),
                1.0,
                np.float32,
                PREFIXES,
                LONGEST,
            )
        return onnx().decoder(lanes, CAPACITY, PREFIXES, LONGEST)

    return make_decoder


@EVERY_ENGINE
@settings(deadline=None, max_examples=settings.default.max_examples // 3)
@given(schedule=schedules(12))
def test_any_schedule_gives_what_torch_gives(make, engine, schedule):
    plain = make("torch")
    calls = calls_of(schedule, plain.lanes, plain.shape.width)
    assert_near(answers(plain, calls), answers(make(engine), calls), THRESHOLDS[engine])


@pytest.mark.parametrize("engine", AND_EVERY_RUNTIME)
def test_two_decoders_stepped_in_turn_equal_each_alone(make, engine):
    both = [turns(5, 2, 12, 32, seed) for seed in (10, 50)]
    alone = [answers(make(engine, 2), calls) for calls in both]
    decoders = [make(engine, 2) for _ in both]
    in_turn = [answers(*each) for pair in zip(*both, strict=True) for each in zip(decoders, zip(pair), strict=True)]
    for first, expected in enumerate(alone):
        assert_equal(expected, chain(*in_turn[first::2]))


@EVERY_ENGINE
def test_the_next_call_does_not_overwrite_returned_arrays(make, engine):
    decoder, width, returned, before = make(engine), make("torch").shape.width, [], []
    for call in (*turns(5, LANES, 2, width), (columns(9, 7, width=width), 1)):
        returned += answers(decoder, [call])
        before += deepcopy(returned[len(before) :])
    assert_equal(before, returned)


@EVERY_ENGINE
def test_lanes_positions_and_prefixes_beyond_the_limits_are_refused(make, engine):
    decoder, width = make(engine), make("torch").shape.width
    decoder.prefill(columns(0, 5, width=width))
    for each in (1, 3):
        decoder.step(columns(0, 1, each, width=width), np.array([CAPACITY - each]), LANES - 1)
        with pytest.raises(ValueError, match=f"position {CAPACITY}"):
            decoder.step(columns(0, 1, each, width=width), np.array([CAPACITY - each + 1]))
        with pytest.raises(ValueError, match=f"lane {LANES}"):
            decoder.step(columns(0, 2, each, width=width), np.zeros(2, np.int64), LANES - 1)
    with pytest.raises(ValueError, match=f"prefix (index )?{PREFIXES}"):
        decoder.prefill(columns(0, 5, width=width), PREFIXES)


@EVERY_ENGINE
def test_a_decoder_copies_lanes_or_says_that_it_cannot(make, engine):
    """Recording copies scores in each step, so only decoders on the CPU or in unified memory do it."""
    decoder, plain = make(engine), make("torch")
    assert decoder.record([(0, 0)]) == (engine in RECORDING)
    assert plain.record([(0, 0)])
    if not decoder.copies_lanes:
        with pytest.raises(NotImplementedError):
            decoder.copy_lanes(np.zeros(LANES, np.int64), 2)
        return
    width = plain.shape.width
    for each in (decoder, plain):
        answers(each, turns(5, LANES, 2, width))
        each.copy_lanes(np.array([2, 2, 0, 1]), 2)
    assert_near(
        *(each.step(columns(9, LANES, 1, width=width), np.full(LANES, 2)) for each in (plain, decoder)),
        THRESHOLDS[engine],
    )


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"mel": np.zeros((2, 80, 7), np.float32)}, ""),
        ({"mel": np.zeros((2, 81, 7), np.float32)}, "input mel: expected float32 ('batch', 80, 'frames'), got float32"),
        ({"mel": np.zeros((2, 80), np.float32)}, "got float32 (2, 80)"),
        ({"mel": np.zeros((2, 80, 7))}, "got float64 (2, 80, 7)"),
        ({"sound": np.zeros((2, 80, 7), np.float32)}, "takes ['mel'], got ['sound']"),
    ],
)
def test_a_stage_takes_the_inputs_that_it_declares(inputs, message):
    stage = Stage("encoder", {"mel": TensorSpec(("batch", 80, "frames"))}, TensorSpec(("batch", 8)))
    with pytest.raises(TypeError, match=re.escape(message)) if message else nullcontext():
        check_inputs("encode", stage, inputs)
