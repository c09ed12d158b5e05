"""Test the estimated costs of graphs that can be counted by hand, and compare the roofline with the design's table."""

import numpy as np
import pytest
from coremltools.converters.mil.mil.types import np_uint4_dtype

from ane.backends.mil.package import Package
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from converters.coreml.coreml_package import load_reference
from converters.coreml.graph import CoreMLGraph, Style, mb
from converters.decoder_graphs import RECENT
from converters.neural_engine import CHIPS, Chip
from converters.proof import cost
from converters.tortoise import autoregressive as gpt2
from tests.random_model import random_model

# a chip that moves 1 byte/s and computes 1 FLOP/s
ONES = Chip("ones", 1, 1e-9, 1e-12, "for tests")


def saved(tmp_path, body, states=None, **inputs) -> Package:
    graph = CoreMLGraph("graph", {}, inputs, lambda style, **inputs: body(**inputs), states or {})
    package = tmp_path / f"graph{len(list(tmp_path.iterdir()))}.mlpackage"
    graph.build(Style(), package)
    return Package(package)


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float16)


PRODUCTS = {
    # inputs, body, and FLOPs, which are 2 per multiplication and addition
    "conv": (
        {"x": (1, 8, 1, 10)},
        lambda x: mb.conv(x=x, weight=weight(6, 8, 1, 3), pad_type="valid"),
        2 * 6 * 8 * 3 * 8,
    ),
    "grouped": (
        {"x": (1, 8, 1, 10)},
        lambda x: mb.conv(x=x, weight=weight(8, 1, 1, 3), groups=8, pad_type="same"),
        2 * 8 * 1 * 3 * 10,
    ),
    "transposed": (
        {"x": (1, 8, 1, 10)},
        lambda x: mb.conv_transpose(x=x, weight=weight(8, 4, 1, 2), strides=[1, 2], pad_type="valid"),
        2 * 8 * 4 * 2 * 10,
    ),
    "matmul": (
        {"x": (1, 3, 5, 7), "z": (1, 3, 5, 11)},
        lambda x, z: mb.matmul(x=x, y=z, transpose_x=True),
        2 * 3 * 7 * 5 * 11,
    ),
    "einsum": (
        {"x": (1, 4, 1, 6), "z": (1, 6, 1, 9)},
        lambda x, z: mb.einsum(values=(x, z), equation="bkhc,bchq->bkhq"),
        2 * 4 * 6 * 9,
    ),
    "attention": (
        {"x": (1, 2, 5, 8), "z": (1, 2, 7, 8)},
        lambda x, z: mb.scaled_dot_product_attention(query=x, key=z, value=z),
        2 * 2 * 5 * 7 * (8 + 8),
    ),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_flops_of_products_are_counted(tmp_path, product):
    inputs, body, flops = PRODUCTS[product]
    assert cost.cost(saved(tmp_path, lambda **given: {"y": body(**given)}, **inputs)).flops == flops


def test_weights_are_counted_as_stored_for_each_op_that_reads_them(tmp_path):
    kernel = weight(64, 64, 1, 1)

    def dense(x):
        x = mb.conv(x=x, weight=kernel, pad_type="valid")
        return {"y": mb.conv(x=x, weight=kernel, pad_type="valid")}

    def palette(x):
        table = weight(1, 1, 1, 1, 16, 1)
        indices = np.random.default_rng(0).integers(0, 16, kernel.shape).astype(np_uint4_dtype)
        return {"y": mb.conv(x=x, weight=mb.constexpr_lut_to_dense(indices=indices, lut=table), pad_type="valid")}

    def int8(x):
        codes = np.random.default_rng(0).integers(-127, 127, kernel.shape).astype(np.int8)
        scaled = mb.constexpr_blockwise_shift_scale(data=codes, scale=weight(64, 1, 1, 1))
        return {"y": mb.conv(x=x, weight=scaled, pad_type="valid")}

    x = (1, 64, 1, 32)
    bodies = {dense: 2 * 8192, palette: 4096 // 2 + 16 * 2, int8: 4096 + 64 * 2}
    assert {body: cost.cost(saved(tmp_path, body, x=x)).weights for body in bodies} == bodies


def decoder(config: UnifiedVoiceConfig, vocabulary: int, columns: int, slots: int) -> tuple[int, int, int, int]:
    """Bytes of weights, of cache read and written, and FLOPs of a step in fp16, by hand."""
    D, layers = config.model_dim, config.layers
    matrices = layers * 12 * D * D + vocabulary * D
    # per layer, biases of 3, 1, 4 and 1 D and norms of 4 D. Then two last norms and the head
    others = layers * 13 * D + 4 * D + vocabulary
    attention = layers * 2 * 2 * D * columns * (slots + columns)
    return (
        2 * (matrices + others),
        2 * 2 * layers * D * slots,
        2 * 2 * layers * D * columns,
        2 * matrices * columns + attention,
    )


@pytest.mark.parametrize("cache", ["io", "state"])
def test_the_cost_of_a_decoder_step_follows_from_its_sizes(tmp_path, cache):
    network = load_reference(random_model(), "autoregressive")
    gpt2.decoder_graphs(network).step(16, 64, cache, capacity=128).build(Style(), tmp_path / "step.mlpackage")
    package = Package(tmp_path / "step.mlpackage")
    counted = cost.cost(package)
    slots = 64 if cache == "io" else 64 + RECENT
    weights, read, written, flops = decoder(network.config, network.config.number_mel_codes, 16, slots)
    assert (counted.weights, counted.cache_read) == (weights, read)
    assert (counted.cache_written, counted.flops) == (written, flops)
    handed_over = sum(
        type.size for types in (package.function().inputs, package.function().outputs) for type in types.values()
    )
    assert (counted.converted, counted.rewritten, counted.large) == (6 * handed_over, 0, 0)


def test_handing_over_a_pool_costs_more_than_reading_it(tmp_path):
    """coremltools hands float32 over: 4 bytes read and 2 written for each value of 2 bytes that the graph reads."""
    network = load_reference(random_model(), "autoregressive")
    for cache, capacity in (("io", None), ("state", 8192)):
        graph = gpt2.decoder_graphs(network).step(16, 4096, cache, capacity)
        graph.build(Style(), tmp_path / f"{cache}.mlpackage")
    io, state = (cost.cost(Package(tmp_path / f"{cache}.mlpackage")) for cache in ("io", "state"))
    assert 3 * io.cache_read < io.converted < 4 * io.cache_read
    assert state.cache_read == io.cache_read // 4096 * (4096 + RECENT), "the slots in use, and recent columns"
    assert state.cache_written + state.rewritten + state.large < io.cache_read / 200
    assert io.moved > 3 * state.moved


def test_storing_columns_in_a_state_costs_what_is_written(tmp_path):
    network = load_reference(random_model(), "autoregressive")
    gpt2.decoder_graphs(network, 1.0).store(8192).build(Style(), tmp_path / "store.mlpackage")
    counted = cost.cost(Package(tmp_path / "store.mlpackage"))
    block = 2 * 2 * network.config.layers * network.config.model_dim * RECENT
    assert (counted.cache_read, counted.cache_written, counted.rewritten, counted.large) == (block, block, 0, 0)
    assert counted.flops == 0


def test_a_state_that_the_graph_rewrites_costs_all_of_it(tmp_path):
    def body(x, total):
        total = mb.coreml_update_state(state=total, value=mb.add(x=mb.read_state(input=total), y=x))
        return {"y": mb.exp(x=total)}

    graph = CoreMLGraph(
        "state", {}, {"x": (1, 8, 1, 64)}, lambda style, **values: body(**values), {"total": (1, 8, 1, 64)}
    )
    graph.build(Style(), tmp_path / "state.mlpackage")
    counted = cost.cost(Package(tmp_path / "state.mlpackage"))
    assert (counted.cache_written, counted.rewritten) == (1024, 1024)
    assert counted.cache_read >= 1024


def test_values_above_two_megabytes_count_twice(tmp_path):
    def body(x):
        return {"y": mb.reduce_sum(x=mb.exp(x=mb.tile(x=x, reps=[1, 8, 1, 256])), axes=[3], keep_dims=True)}

    counted = cost.cost(saved(tmp_path, body, x=(1, 8, 1, 64)))
    assert counted.large == 2 * (2 * 64 * 64 * 256)
    assert counted.moved == counted.converted + 2 * counted.large


# Tokens per second of all lanes together, at official sizes with 256 slots per lane, without the time of dispatches.
# They were calculated for the design of the decoder, at 60 GB/s (here: 60.9) and 126.4 GB/s.
TABLE = {
    ("M1", "fp16"): {1: 75, 8: 469, 16: 752, 32: 1079},
    ("M1", "4-bit"): {1: 260, 8: 1065, 16: 1367, 32: 1593},
    ("M4 Pro", "fp16"): {1: 157, 8: 984, 16: 1580, 32: 2266},
}


@pytest.mark.parametrize(("chip", "precision"), TABLE)
def test_the_roofline_gives_the_table_of_the_design(chip, precision):
    for lanes, tokens in TABLE[chip, precision].items():
        weights, read, _, flops = decoder(UnifiedVoiceConfig(), 8194, lanes, 256 * lanes)
        weights = 199e6 if precision == "4-bit" else weights  # bytes that the stored package has
        seconds, bound = cost.estimate(weights + read, flops, CHIPS[chip], dispatch=0)
        assert lanes / seconds == pytest.approx(tokens, rel=0.02)
        assert bound == "bandwidth"


def test_a_call_takes_the_longest_of_its_parts():
    assert cost.estimate(bytes=3, flops=2, chip=ONES, dispatch=1) == (4, "bandwidth")
    assert cost.estimate(bytes=2, flops=3, chip=ONES, dispatch=1) == (4, "compute")
    assert cost.estimate(bytes=2, flops=3, chip=ONES, dispatch=5) == (8, "dispatch")
