"""Test every lint rule on two graphs: one that violates the rule, and one just inside its limit."""

import dataclasses
import json
import re

import numpy as np
import pytest
from coremltools.converters.mil.mil.types import np_uint4_dtype

from ane.backends.mil.package import Package
from ane.backends.mil.values import TensorType
from converters.coreml.graph import CoreMLGraph, Style, mb
from converters.proof.lint import RULES, WARNING, BrokenRule, lint

X = (1, 8, 1, 64)
KERNEL = np.random.default_rng(0).standard_normal((8, 8, 1, 3)).astype(np.float16)


def saved(tmp_path, body, states=None, style=None, **inputs) -> Package:
    """A package of one function; ``body(**values)`` returns its only output, or its outputs by name."""

    def outputs(_, **inputs):
        result = body(**inputs)
        return result if isinstance(result, dict) else {"y": result}

    graph = CoreMLGraph("graph", {}, inputs or {"x": X}, outputs, states or {})
    package = tmp_path / f"graph{len(list(tmp_path.iterdir()))}.mlpackage"
    graph.build(style or Style(), package)
    return Package(package)


def broken(package: Package, generation: int = 1) -> dict[str, BrokenRule]:
    return {found.rule.id: found for found in lint(package, generation=generation)}


def conv(x, weight=KERNEL, **options):
    return mb.conv(x=x, weight=weight, pad_type="valid", **options)


def with_logic(x):
    return mb.cast(x=mb.logical_not(x=mb.cast(x=x, dtype="bool")), dtype="fp16")


def recurrent(x):
    weights = np.ones((4, 64), np.float16), np.ones((4, 1), np.float16)
    h = np.zeros((1, 1), np.float16)
    return mb.lstm(
        x=mb.reshape(x=x, shape=(8, 1, 64)), initial_h=h, initial_c=h, weight_ih=weights[0], weight_hh=weights[1]
    )[0]


def fused(x):
    q = mb.reshape(x=x, shape=(1, 1, 8, 64))
    return mb.scaled_dot_product_attention(query=q, key=q, value=q)


def palette(x):
    indices = np.random.default_rng(0).integers(0, 16, KERNEL.shape).astype(np_uint4_dtype)
    table = np.arange(16, dtype=np.float16).reshape(1, 1, 1, 1, 16, 1)
    return conv(x, mb.constexpr_lut_to_dense(indices=indices, lut=table))


# rule → a graph just outside its limit, as a body with the types of the reported ops
GRAPHS = {
    "rank": (lambda x: mb.reshape(x=mb.exp(x=mb.reshape(x=x, shape=(1, 2, 4, 1, 64))), shape=X), {"reshape", "exp"}),
    "integer-io": (lambda x: mb.cast(x=x, dtype="int32"), {"output"}),
    "gather": (lambda x: mb.gather(x=x, indices=np.array([3, 1], np.int32), axis=1), {"gather"}),
    "scatter": (
        lambda x: mb.scatter(
            data=x, indices=np.array([2], np.int32), updates=np.ones((1, 1, 1, 64), np.float16), axis=1
        ),
        {"scatter"},
    ),
    "no-such-op": (with_logic, {"logical_not"}),
    "comparison": (lambda x: mb.select(cond=mb.greater(x=x, y=np.float16(0)), a=x, b=np.float16(1)), {"greater"}),
    "topk": (lambda x: mb.topk(x=x, k=2, axis=1)[0], {"topk"}),
    "recurrent": (recurrent, {"lstm"}),
    "fused-attention": (fused, {"scaled_dot_product_attention"}),
    "fp32": (lambda x: mb.cast(x=mb.exp(x=mb.cast(x=x, dtype="fp32")), dtype="fp16"), {"cast", "exp"}),
    "dimension": (
        lambda x: mb.concat(
            values=[mb.tile(x=x, reps=[1, 1, 1, 256]), mb.reduce_sum(x=x, axes=[3], keep_dims=True)], axis=3
        ),
        {"concat"},
    ),
    "singleton-width": (lambda x: mb.reduce_sum(x=x, axes=[3], keep_dims=True), {"reduce_sum"}),
    "kernel-width": (lambda x: conv(x, np.ones((8, 8, 1, 14), np.float16)), {"conv"}),
    "dilation": (lambda x: conv(x, dilations=[1, 2]), {"conv"}),
    "upsample": (
        lambda x: mb.upsample_nearest_neighbor(x=x, scale_factor_height=1, scale_factor_width=3),
        {"upsample_nearest_neighbor"},
    ),
    "odd-stride": (
        lambda x: mb.conv_transpose(x=x, weight=KERNEL, strides=[1, 3], pad_type="valid"),
        {"conv_transpose"},
    ),
    "sin-cos": (lambda x: mb.add(x=mb.sin(x=x), y=mb.cos(x=x)), {"sin", "cos"}),
    "reflection": (lambda x: mb.pad(x=x, pad=[0, 0, 0, 0, 0, 0, 3, 3], mode="reflect"), {"pad"}),
    "width-slice": (lambda x: mb.slice_by_index(x=x, begin=(0, 0, 0, 1), end=(1, 8, 1, 33)), {"slice_by_index"}),
    "branches": (lambda x: mb.concat(values=[mb.add(x=x, y=np.float16(i)) for i in range(12)], axis=1), {"concat"}),
    "matmul-rows": (lambda x: mb.matmul(x=mb.tile(x=x, reps=[1, 1, 1, 513]), y=x, transpose_x=True), {"matmul"}),
    "4-bit-palette": (palette, {"constexpr_lut_to_dense"}),
}


@pytest.mark.parametrize("rule", GRAPHS)
def test_a_rule_reports_a_graph_that_violates_it(tmp_path, rule):
    body, ops = GRAPHS[rule]
    found = broken(saved(tmp_path, body))
    assert rule in found
    assert set(found[rule].ops) == ops
    assert found[rule].example.what


def test_a_clean_graph_is_not_reported(tmp_path):
    def body(x):
        x = mb.conv(x=x, weight=KERNEL, pad_type="same", dilations=[1, 1])
        x = mb.upsample_nearest_neighbor(x=x, scale_factor_height=1, scale_factor_width=2)
        x = mb.slice_by_index(x=x, begin=(0, 4, 0, 0), end=(1, 8, 1, 96))
        return mb.pad(x=x, pad=[0, 0, 0, 0, 0, 0, 0, 32], mode="constant", constant_val=np.float16(0))

    assert broken(saved(tmp_path, body)) == {}


@pytest.mark.parametrize(("width", "reported"), [(64, False), (450, True)])
def test_a_state_of_an_odd_width_is_reported(tmp_path, width, reported):
    def body(x, total):
        return {"y": mb.coreml_update_state(state=total, value=mb.exp(x=mb.read_state(input=total))), "z": mb.exp(x=x)}

    assert ("state-width" in broken(saved(tmp_path, body, {"total": (1, 8, 1, width)}, x=X))) == reported


@pytest.mark.parametrize(
    ("shape", "reported"),
    [((1, 65536, 1, 1), False), ((1, 65537, 1, 1), True), ((1, 1, 1, 16384), False), ((1, 1, 16385, 1), True)],
)
def test_channels_may_be_more_than_columns(tmp_path, shape, reported):
    assert ("dimension" in broken(saved(tmp_path, lambda x: mb.exp(x=x), x=shape))) == reported


def test_rules_have_unique_ids_and_a_source():
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(re.fullmatch(r"\w.*: https://\S+", rule.source) for rule in RULES)


@pytest.mark.parametrize(
    ("input", "rule"),
    [
        (TensorType((1, 8, 1, -1), "fp16"), "dynamic-shape"),
        (TensorType(X, "int32"), "integer-io"),
        (TensorType(X, "bool"), "integer-io"),
    ],
)
def test_open_dimensions_integers_and_booleans_are_refused_as_inputs(tmp_path, input, rule):
    package = saved(tmp_path, lambda x: mb.exp(x=x))
    package.functions["main"] = dataclasses.replace(package.functions["main"], inputs={"x": input})
    found = broken(package)[rule]
    assert (found.ops, found.example.name) == ({"input": 1}, "x")


def test_an_fp32_package_is_reported_and_an_fp16_one_is_not(tmp_path):
    assert broken(saved(tmp_path, conv, style=Style("fp32")))["fp32"].rule.severity == WARNING
    assert broken(saved(tmp_path, conv, style=Style("fp32")))["fp32"].ops["input"] == 1
    assert "fp32" not in broken(saved(tmp_path, conv))


def test_a_third_state_is_one_too_many(tmp_path):
    def body(x, **states):
        for state in states.values():
            x = mb.add(x=x, y=mb.read_state(input=state))
            mb.coreml_update_state(state=state, value=x)
        return x

    for count, rule in ((2, set()), (3, {"states"})):
        states = {f"s{number}": X for number in range(count)}
        assert set(broken(saved(tmp_path, body, states, x=X))) == rule


def test_a_slice_at_a_computed_index_is_reported(tmp_path):
    def body(x):
        begin = mb.cast(x=mb.reshape(x=mb.reduce_max(x=x, axes=[0, 1, 2, 3]), shape=(1,)), dtype="int32")
        begin = mb.concat(values=[np.zeros(3, np.int32), begin], axis=0)
        return mb.slice_by_size(x=x, begin=begin, size=(1, 8, 1, 32))

    assert "computed-slice" in broken(saved(tmp_path, body))


@pytest.mark.parametrize(("before", "found"), [(mb.exp, True), (mb.sigmoid, False)])
def test_a_split_of_the_last_axis_matters_where_values_may_be_large(tmp_path, before, found):
    package = saved(tmp_path, lambda x: mb.exp(x=mb.split(x=before(x=x), num_splits=2, axis=3)[1]))
    assert ("width-slice" in broken(package)) is found


def test_rules_of_old_chips_are_left_out_for_newer_ones(tmp_path):
    package = saved(tmp_path, lambda x: mb.slice_by_index(x=mb.sin(x=x), begin=(0, 0, 0, 32), end=X))
    assert "width-slice" not in broken(package), "sines are small"
    package = saved(tmp_path, lambda x: mb.sin(x=mb.slice_by_index(x=x, begin=(0, 0, 0, 32), end=X)))
    rules = {generation: set(broken(package, generation)) for generation in (1, 2, 3)}
    assert rules == {1: {"sin-cos", "width-slice"}, 2: {"sin-cos"}, 3: set()}


# rule → a graph just inside its limit
INSIDE = {
    "rank": lambda x: mb.exp(x=mb.reshape(x=x, shape=(1, 2, 4, 64))),
    "dimension": lambda x: mb.tile(x=x, reps=[1, 1, 1, 256]),
    "singleton-width": lambda x: mb.split(x=x, num_splits=32, axis=3)[0],
    "kernel-width": lambda x: conv(x, np.ones((8, 8, 1, 13), np.float16)),
    "odd-stride": lambda x: mb.conv_transpose(x=x, weight=KERNEL, strides=[1, 2], pad_type="valid"),
    "width-slice": lambda x: mb.slice_by_index(x=x, begin=(0, 1, 0, 0), end=(1, 8, 1, 32)),
}


@pytest.mark.parametrize("rule", INSIDE)
def test_a_rule_begins_at_its_limit(tmp_path, rule):
    assert rule not in broken(saved(tmp_path, INSIDE[rule]))


def test_bytes_of_weights_have_a_limit(tmp_path, monkeypatch):
    package = saved(tmp_path, conv)
    for difference, expected in ((-1, True), (0, False)):
        monkeypatch.setattr("converters.proof.lint.MAX_BYTES", KERNEL.nbytes + difference)
        assert ("too-heavy" in broken(package)) is expected, difference


def test_compressed_weights_are_distinguished(tmp_path):
    codes = np.arange(64, dtype=np.int8).reshape(8, 8, 1, 1)

    def body(scales):
        def with_scales(x):
            weight = mb.constexpr_blockwise_shift_scale(data=codes, scale=np.full(scales, 0.1, np.float16))
            return mb.conv(x=x, weight=weight, pad_type="valid")

        return with_scales

    by_channel, by_block = (broken(saved(tmp_path, body(scales))) for scales in ((8, 1, 1, 1), (8, 2, 1, 1)))
    assert by_channel["int8"].ops == {"constexpr_blockwise_shift_scale": 1}
    assert "blockwise" not in by_channel
    assert by_block["blockwise"].example.what == "int8 (8, 8, 1, 1)"
    assert "int8" not in by_block
    package = saved(tmp_path, body((8, 2, 1, 1)))
    assert [chip for chip in (1, 2, 3) if "blockwise" in broken(package, chip)] == [1, 2]


def test_a_record_counts_violations_and_shows_the_first(tmp_path):
    def body(x):
        part = mb.slice_by_index(x=x, begin=(0, 0, 0, 0), end=(1, 2, 1, 64))
        eight, two = (mb.reduce_sum(x=values, axes=[3], keep_dims=True) for values in (x, part))
        return mb.add(x=eight, y=mb.reduce_sum(x=two, axes=[1], keep_dims=True))

    found = broken(saved(tmp_path, body))["singleton-width"]
    assert found.ops == {"reduce_sum": 2, "add": 1}, "a single value is exempt"
    record = json.loads(json.dumps(found.record()))
    assert (record["rule"], record["count"], record["functions"]) == ("singleton-width", 3, ["main"])
    assert record["example"].endswith(": a last axis of 1: (1, 8, 1, 1)")
