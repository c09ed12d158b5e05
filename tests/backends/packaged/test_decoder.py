"""Test a decoder that runs on packages: its lanes and slots, and the probes that check what its functions compute."""

import weakref
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from ane.backends.mil import Arithmetic, Package
from ane.backends.packaged import pools, state_pool
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.functions import PackageFunction, state_arrays
from ane.backends.packaged.golden import MOST_VALUES, SAMPLES, GoldenCase, samples, write_golden_cases
from ane.backends.torch.decoder import TorchDecoder
from ane.models.tortoise.networks.autoregressive import UnifiedVoice
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style
from converters.tortoise import autoregressive
from tests.backends.decoder_steps import answers, assert_near, columns, turns
from tests.backends.packaged.packages import FP16, NARROW, ROUNDED, functions, reference_network, saved
from tests.refusals import assert_refused

SCALE = 1 / 32
KINDS = ("step", "state")
STYLES = {"fp32": Style("fp32"), "fp16": Style("fp16")}
# SNR in dB that each kind of arithmetic must reach. A state is always fp16
FP32_THRESHOLDS = {"step": [(FP16, 100)], "state": [(FP16, 70)]}
FP16_THRESHOLDS = [(FP16, 60), (ROUNDED, 55), (NARROW, 55)]


def graphs(network: UnifiedVoice, scale: float = SCALE) -> list[CoreMLGraph]:
    built = autoregressive.decoder_graphs(network, scale)
    steps = [
        built.step(columns, slots, kind, capacity)
        for kind in ("io", "state")
        for columns, slots, capacity in ((1, 96, 96), (4, 96, 96), (8, 96, 160), (8, 160, 160))
    ]
    stores = [built.store(capacity) for capacity in (96, 160)]
    return [built.prefill(16), built.prefill(32), *stores, *steps]


@pytest.fixture(scope="module")
def network() -> UnifiedVoice:
    return reference_network("autoregressive")


@pytest.fixture(scope="module")
def packages(network: UnifiedVoice, tmp_path_factory: pytest.TempPathFactory):
    """``packages(style)``: the saved functions of a style, converted once."""

    @cache
    def convert(style: str) -> dict[str, Path]:
        return saved(graphs(network), STYLES[style], tmp_path_factory.mktemp(style))

    return convert


@pytest.fixture(scope="module")
def make_decoder(network: UnifiedVoice, packages):
    """``make_decoder(style, kind, lanes, capacity)``: a decoder on packages."""

    def make(
        style: str = "fp32",
        kind: str = "step",
        lanes: int = 5,
        capacity: int = 24,
        arithmetic: Arithmetic = FP16,
        widths: tuple[int, ...] = (1, 4, 8),
    ) -> PackagedDecoder:
        loaded = functions(graphs(network), packages(style), arithmetic)
        return PackagedDecoder(
            [f for f in loaded if f.kind == "prefill"],
            [f for f in loaded if f.kind == kind and f.bucket["columns"] in widths],
            [f for f in loaded if f.kind == "store"],
            lanes,
            capacity,
            geometry(network),
            SCALE,
            STYLES[style].dtype,
        )

    return make


def geometry(network: UnifiedVoice) -> tuple[int, int, int]:
    config = network.config
    return config.layers, config.heads, config.model_dim // config.heads


def reference_decoder(network: UnifiedVoice, lanes: int = 5, capacity: int = 24) -> TorchDecoder:
    return TorchDecoder(network, lanes, capacity, torch.device("cpu"), torch.float32)


def five_lanes() -> list[tuple]:
    """Calls for five lanes of one prefix: one is reset, one is rewound, one ends with seven positions at once."""
    calls, lengths = [(columns(0, 20),)], np.zeros(5, dtype=np.int64)
    for turn in range(14):
        lengths[2] *= turn != 6
        lengths[0] = 3 if turn == 8 else lengths[0]
        calls.append((columns(1 + turn, 5, 1), lengths.copy()))
        lengths += 1
    return [*calls, (columns(99, 1, 7), lengths[3:4], 3)]


def assert_equals_torch(network, decoder, calls, decibels: float) -> None:
    """The packages return what torch returns for calls."""
    assert_near(
        answers(reference_decoder(network, decoder.lanes, decoder.capacity), calls), answers(decoder, calls), decibels
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", STYLES)
def test_lanes_at_different_positions_match_torch(network, make_decoder, style, kind):
    for arithmetic, threshold in FP32_THRESHOLDS[kind] if style == "fp32" else FP16_THRESHOLDS:
        assert_equals_torch(network, make_decoder(style, kind, arithmetic=arithmetic), five_lanes(), threshold)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_in_groups_are_joined_in_their_order(network, tmp_path, monkeypatch, kind):
    """As at the official size, where the scores of all heads are too many for the chip."""
    monkeypatch.setattr(blocks, "ON_CHIP", 8 * (160 + 32 + 8) * 4)  # memory for one head
    built = autoregressive.decoder_graphs(network, SCALE)
    parts = [built.prefill(32), built.store(160), built.step(8, 160, {"step": "io"}.get(kind, kind), 160)]
    paths = saved(parts, STYLES["fp32"], tmp_path)
    prefill, store, grouped = functions(parts, paths)
    decoder = PackagedDecoder([prefill], [grouped], [store], 5, 24, geometry(network), SCALE, np.float32)
    assert_equals_torch(network, decoder, five_lanes(), FP32_THRESHOLDS[kind][0][1])
    softmaxes = [op for op in Package(paths[parts[-1].name]).function("main").ops if op.type == "softmax"]
    assert len(softmaxes) == network.config.layers * network.config.heads


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_are_refilled_for_more_steps_than_the_pool_has_slots(network, make_decoder, kind):
    calls, rng, lengths = [(columns(0, 20),)], np.random.default_rng(7), np.zeros(4, dtype=np.int64)
    for turn in range(60):  # these turns take 240 positions, and the pool has 96 slots
        calls.append((columns(turn, 4, 1), lengths))
        lengths = np.where((lengths == 9) | (rng.random(4) < 0.1), 0, lengths + 1)
    packaged = make_decoder(kind=kind, lanes=4, capacity=10, widths=(4,))
    assert_equals_torch(network, packaged, calls, 100 if kind == "step" else 65)


def test_a_state_has_no_gaps_whatever_the_prefix_and_the_number_of_lanes(make_decoder):
    """A prefix of 20 and calls of 5 columns do not fill blocks of 32."""
    packaged = make_decoder(kind="state", lanes=5, capacity=24)
    answers(packaged, turns(20, 5, 18))
    (pool,) = packaged.pools
    stored = np.flatnonzero(pool.owner[: pool.slots] != pools.FREE)
    assert len(stored) == 20 + 2 * 30  # 6 calls fill 30 of the 32 recent columns, and the next call stores them first
    np.testing.assert_array_equal(stored, np.arange(80))


def test_a_state_without_a_run_of_free_slots_is_rewritten(network, make_decoder, monkeypatch):
    """One lane of five stays, in every fifth slot, when the others begin again."""
    read = []

    def read_one(state, names):
        assert [array for array in read if array() is not None] == [], "one cache at a time: it is large"
        (array,) = state_arrays(state, names)
        read.append(weakref.ref(array))
        return [array]

    monkeypatch.setattr(state_pool, "state_arrays", read_one)
    again = [(columns(turn, 4, 1), np.full(4, turn - 24), 1) for turn in range(24, 48)]
    calls = [*turns(20, 5, 24), *again, (columns(99, 1, 1), np.array([23]))]
    assert_equals_torch(network, make_decoder(kind="state", lanes=5, capacity=24), calls, 65)
    assert read


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_takes_the_function_with_the_fewest_slots_that_hold_the_text(network, make_decoder, monkeypatch, kind):
    """Nothing is computed again when the text grows into the next one."""
    packaged, called, call = make_decoder(kind=kind, widths=(8,)), [], PackageFunction.__call__

    def noted(function: PackageFunction, *arguments, **inputs) -> dict[str, np.ndarray]:
        called.extend([function.bucket["slots"]] if function in packaged.steps else [])
        return call(function, *arguments, **inputs)

    monkeypatch.setattr(PackageFunction, "__call__", noted)
    assert_equals_torch(network, packaged, turns(20, 5, 24), 100 if kind == "step" else 65)
    assert called == sorted(called)
    assert set(called) == {96, 160}


def test_a_prefix_longer_than_every_prefill_bucket_is_fed_as_steps(network, make_decoder):
    assert_equals_torch(network, make_decoder(capacity=8), [(columns(5, 50),)], 100)


def test_lanes_that_one_pool_cannot_hold_are_divided_among_several(network, make_decoder):
    packaged = make_decoder(lanes=5, capacity=30)  # 160 slots are enough for 4 lanes of 30 next to a prefix of 20
    assert_equals_torch(network, packaged, five_lanes(), 100)
    assert [pool.lanes for pool in packaged.pools] == [4, 1]


def test_a_text_that_no_pool_can_hold_is_refused_in_one_line(make_decoder):
    assert_refused(
        r"takes 20 positions .* up to 200.*has 160.*larger buckets",
        lambda: make_decoder(capacity=200).prefill(columns(0, 20)),
    )


def test_parts_of_the_logits_are_joined_in_their_order():
    """Also with more than ten parts, whose names do not sort by number."""
    outputs = {f"logits_{part}": np.full((1, 2, 1, 3), part) for part in reversed(range(12))}
    assert (
        pools.joined_logits({**outputs, "hidden": np.zeros((1, 5, 1, 3))}, slice(1, 3)).tolist()
        == [[part for part in range(12) for _ in range(2)]] * 2
    )


def test_the_stream_scale_keeps_squares_within_fp16(network):
    assert autoregressive.stream_scale(network) == 1
    loud = reference_network("autoregressive")
    loud.gpt.h[1].mlp.c_proj.bias[3] += 3000.0
    assert 3000 * autoregressive.stream_scale(loud) <= 64


DECLARED = {"step": {"x": ((2, 3), "float32"), "keys": ((4, 2**18), "float32")}}
X, KEYS = np.arange(6, dtype=np.float16).reshape(2, 3), np.tile(np.float16([1, 2]), (4, 2**17))


@pytest.fixture
def probe() -> GoldenCase:
    return GoldenCase([("step", {"x": X, "keys": KEYS})], {"y": samples(X + KEYS.mean())}, 40.0)


def test_a_probe_is_read_as_it_was_written_and_its_file_is_small(tmp_path, probe):
    write_golden_cases(tmp_path, {"step": probe})
    read = GoldenCase.read(tmp_path, "step", DECLARED)
    assert read.threshold == 40.0
    [(called, inputs)] = read.calls
    assert called == "step"
    for name, array in (("x", X), ("keys", KEYS)):
        np.testing.assert_array_equal(inputs[name], array)
        assert inputs[name].dtype == np.float32
    np.testing.assert_array_equal(read.expected["y"], probe.expected["y"])
    assert (tmp_path / "probes.safetensors").stat().st_size < 2 * MOST_VALUES + 10_000
    assert GoldenCase.read(tmp_path, "other", DECLARED) is None
    assert GoldenCase.read(tmp_path / "none", "step", DECLARED) is None


@pytest.mark.parametrize("shape", [(5,), (3, 4096), (64, 1, 4096), (7, 11, 13, 17)])
def test_samples_are_few_and_spread_over_every_axis(shape):
    found = samples(np.arange(np.prod(shape)).reshape(shape))
    assert len(found) <= SAMPLES
    for axis, size in enumerate(shape):
        assert len(set(np.unravel_index(found.astype(int), shape)[axis])) == size or size > SAMPLES / 2


class CacheMeanEngine:
    """Returns x plus the mean of the cache, as ``fault`` has it: the cache of this call, and of the one before."""

    def __init__(self, fault=lambda number, cache, before: cache):
        self.fault, self.number, self.before = fault, 0, None

    def predict(self, function):
        def call(inputs, state):
            self.number += 1
            cache, self.before = self.fault(self.number, inputs["keys"], self.before), inputs["keys"]
            return {"y": inputs["x"] + cache.mean()}

        return call


@pytest.mark.parametrize(
    ("fault", "passes"),
    [
        (lambda number, cache, before: cache, True),
        (lambda number, cache, before: cache * 1.05, False),
        (lambda number, cache, before: cache if number < 100 else before, False),
        (lambda number, cache, before: cache if number != 150 else cache * np.nan, False),
    ],
)
def test_a_cache_that_goes_wrong_at_any_of_two_hundred_steps_is_found(probe, fault, passes):
    engine = CacheMeanEngine(fault)
    assert (probe.run(engine.predict, lambda: None) >= probe.threshold) == passes
    assert engine.number == 200 or not passes
