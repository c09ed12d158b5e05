"""A step on Triton's kernels equals the plain one, in Triton's interpreter; tests/cuda runs the kernels on a GPU."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from ane.backends.base import Draws
from ane.backends.torch.cuda_graphs import StepRunner, run_eagerly
from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.static_decoder import StaticDecoder, StaticDecoders
from ane.models.tortoise.networks.autoregressive import UnifiedVoice, UnifiedVoiceConfig
from benchmarks.launches import CountedOperations, counted_kernels, decoder_step, random_network
from tests.backends.torch.decoder_steps import (
    CAPACITY,
    CPU,
    HALF_PRECISION,
    LONGEST,
    PREFIXES,
    assert_close,
    assert_same_results,
    columns,
    in_dtype,
    schedules,
)

pytestmark = pytest.mark.usefixtures("triton_interpreter")

LANES, WIDTH = 3, 48        # two heads of 24 channels: neither is a power of two


@pytest.fixture(scope="module")
def network() -> UnifiedVoice:
    config = UnifiedVoiceConfig(layers=2, model_dim=WIDTH, heads=2, number_mel_codes=20)
    torch.manual_seed(0)
    network = random_network("autoregressive", config, CPU)
    for key, tensor in network.named_parameters():
        tensor.copy_(torch.randn(tensor.shape) * (0.2 if tensor.ndim > 1 else 0.5) + (1 if "ln_" in key else 0))
    return network


@pytest.fixture(autouse=True)
def tile_sizes(monkeypatch):
    """Few tiles of a product, since each takes the interpreter milliseconds, and several blocks of positions."""
    from ane.backends.torch import triton_kernels

    for name, size in {"POSITIONS": 16, "TILES": 1, "MOST_COLUMNS": 256}.items():
        monkeypatch.setattr(triton_kernels, name, size)


def plain(network: UnifiedVoice, dtype: torch.dtype = torch.float32) -> TorchDecoder:
    return TorchDecoder(network, LANES, CAPACITY, CPU, dtype, PREFIXES, LONGEST)


def fused(network: UnifiedVoice, run: StepRunner = run_eagerly, dtype: torch.dtype = torch.float32) -> StaticDecoder:
    from ane.backends.torch.fused_decoder import FusedStaticDecoder

    return FusedStaticDecoder(network, LANES, CAPACITY, CPU, dtype, PREFIXES, LONGEST, run)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_linear_layer_with_norm_gelu_and_residual(monkeypatch, rows, dtype):
    from ane.backends.torch import triton_kernels
    from ane.backends.torch.triton_kernels import linear

    monkeypatch.setattr(triton_kernels, "MOST_COLUMNS", 16)
    torch.manual_seed(0)
    x, residual, norm = torch.randn(rows, 100) * 3 + 5, torch.randn(rows, 40), torch.nn.LayerNorm(100)
    norm.weight.data, norm.bias.data = torch.randn(100), torch.randn(100)
    layer = torch.nn.Module()
    layer.weight, layer.bias = (torch.randn(shape).to(dtype) for shape in ((100, 40), (40,)))
    half = x.to(dtype)
    with torch.inference_mode():
        products = [(norm(x).to(dtype).float() if each else half.float()) @ layer.weight.float() + layer.bias.float()
                    for each in (True, False)]
        expected = torch.nn.functional.gelu(products[0], approximate="tanh"), residual + products[1]
        actual = linear(x, layer, norm, gelu=True), linear(half, layer, residual=residual)
    assert [each.dtype for each in actual] == [dtype, torch.float32]
    assert_close([each.numpy() for each in expected], [each.float().numpy() for each in actual],
                 {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype])


def test_a_schedule_recorded_once_equals_plain_steps(network, graphs):
    """Three prefixes, one replaced; lanes start late, are refilled, rewound and moved to another prefix; steps of some
    lanes, and one of several columns in between; recorded once and replayed."""
    everyone = ("step", 0, 3, [0] * 3, [0, 1, 2], 1)
    schedule = [everyone, everyone, ("step", 1, 2, [0, CAPACITY, 0], [2, 2, 2], 1), ("prefill", 1, 12),
                ("step", 0, 3, [0, 0, 5], [1, 1, 1], 1), ("step", 0, 3, [0, 1, 0], [1, 0, 0], 16), everyone, everyone,
                ("step", 2, 3, [0] * 3, [0, 0, 0], 1), everyone]
    run = graphs()
    assert_same_results((plain(network), fused(network, run)), schedule)
    assert [graph.replays for graph in run.graphs.values()] == [7]


@settings(max_examples=6, deadline=None)
@given(schedule=schedules(6, LANES))
def test_any_schedule_equals_plain_steps(network, schedule):
    assert_same_results((plain(network), fused(network)), schedule)


@pytest.mark.parametrize(("dtype", "tolerance"), HALF_PRECISION)
def test_in_half_precision_steps_differ_by_rounding(network, dtype, tolerance):
    half = in_dtype(network, dtype)
    both = plain(half, dtype), fused(half, dtype=dtype)
    assert_close(*(decoder.prefill(columns(0, 9, width=WIDTH)) for decoder in both), tolerance)
    for turn in range(3):
        x = columns(turn, LANES, 1, width=WIDTH)
        assert_close(*(decoder.step(x, np.array([2, 0, 1]) + turn) for decoder in both), tolerance)


def test_codes_are_drawn_from_the_same_logits(network, graphs):
    decoders = plain(network), fused(network, graphs())
    for decoder in decoders:
        decoder.prefill(columns(0, 5, width=WIDTH))
    ones = np.ones(2)
    draws = Draws(np.zeros((2, 3), np.int64), ones / 2, ones, ones, ones, top_k=np.full(2, 9), excluded=1)
    for turn in range(3):
        x, lengths = columns(turn, 2, 1, width=WIDTH), np.array([turn, turn + 1])
        hidden, logits = decoders[0].step(x, lengths, 1)
        hidden_too, tokens, _ = decoders[1].step_and_draw(x, lengths, draws, 1)
        assert_close((hidden, logits), (hidden_too, decoders[1].last_logits()))
        assert (tokens >= 0).all()


def test_one_recording_serves_all_lengths(network, graphs):
    run = graphs()
    decoder = fused(network, run)
    decoder.prefill(columns(0, 5, width=WIDTH))
    for turn in (0, 1, 17, CAPACITY - 1):
        decoder.step(columns(turn, 2, 1, width=WIDTH), np.array([turn, 0]), first_lane=1)
    assert [graph.replays for graph in run.graphs.values()] == [3]


def test_masked_positions_are_not_read(network):
    """Not of lanes, prefixes, or the extra position where lanes that were not requested write."""
    decoder, outputs = fused(network), []
    for fill in (0.0, float("nan")):
        with torch.inference_mode():
            for cache in (decoder.keys, decoder.values):
                cache.fill_(fill)
        decoder.prefill(columns(0, 5, width=WIDTH))
        with torch.inference_mode():
            for cache in (decoder.prefix_keys, decoder.prefix_values):
                cache[:, :, :, 5:] = fill
        outputs.append([decoder.step(columns(turn, 2, 1, width=WIDTH), np.array([turn, 0]), 1) for turn in range(3)])
        assert decoder.hidden.device.isfinite().all()       # also of lane 0, which was not requested
    for one, other in zip(*outputs, strict=True):
        assert_close(one, other, 0)


def test_the_next_decoder_of_a_shape_has_the_same_class_and_recordings(network, graphs):
    from ane.backends.torch.fused_decoder import FusedStaticDecoder

    def make(*shape: int | None) -> StaticDecoder:
        return FusedStaticDecoder(network, *shape[:2], CPU, torch.float32, *shape[2:], run=graphs())

    reused, runs = StaticDecoders(), []
    for _ in range(2):
        decoder = reused(make, LANES, CAPACITY, 1, 8)
        assert type(decoder) is FusedStaticDecoder
        decoder.prefill(columns(0, 5, width=WIDTH))
        decoder.step(columns(1, LANES, 1, width=WIDTH), np.zeros(LANES, dtype=np.int64))
        runs.append(decoder.run)
        del decoder
    assert runs[0] is runs[1]


def test_a_layer_launches_five_kernels():
    found = []
    for layers in (2, 5):
        with counted_kernels() as kernel:
            step = decoder_step(CPU, None, fused=True, layers=layers)
            with CountedOperations() as mode:
                step()
        found.append((mode.found["operations"], kernel.launches))
    (operations, kernels), (same_operations, more_kernels) = found
    assert same_operations == operations
    assert (more_kernels - kernels) / 3 == 5
