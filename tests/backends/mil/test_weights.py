"""Compressed weights are decoded as coremltools decodes them."""

from collections.abc import Callable
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
import pytest
from coremltools.converters.mil.mil import types

from ane.backends.mil import Package
from ane.system.decibels import snr_db
from tests.backends.mil.programs import CHANNELS, WEIGHT, X, configured, convert, mb, normal, palettes, run, saved


def _weighted(target) -> ct.models.MLModel:
    def body(x):
        y = mb.conv(x=x, weight=WEIGHT)
        table = normal(48, 64, seed=3).astype(np.float16)
        return mb.linear(x=mb.transpose(x=y, perm=[0, 3, 2, 1]), weight=table, bias=normal(48).astype(np.float16))
    return convert(body, target=target)


def linear(**options) -> Callable:
    return lambda model: cto.linear_quantize_weights(model, configured(cto.OpLinearQuantizerConfig(**options)))


def pruned(model: ct.models.MLModel) -> ct.models.MLModel:
    return cto.prune_weights(model, configured(cto.OpMagnitudePrunerConfig(target_sparsity=0.6)))


def pruned_and_8_bit(model: ct.models.MLModel) -> ct.models.MLModel:
    config = cto.OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int8")
    return cto.linear_quantize_weights(pruned(model), configured(config), joint_compression=True)


def pruned_and_palettes(model: ct.models.MLModel) -> ct.models.MLModel:
    return cto.palettize_weights(pruned(model), configured(cto.OpPalettizerConfig(nbits=4, mode="uniform")),
                                 joint_compression=True)


BLOCKS = {"mode": "linear_symmetric", "dtype": "int4", "granularity": "per_block", "block_size": 16}
IN_GROUPS = {"granularity": "per_grouped_channel", "group_size": 16}


@pytest.mark.parametrize(("compress", "op", "target"), [
    *(pytest.param(palettes(bits), "constexpr_lut_to_dense", target, id=f"{bits}-bit palette {target.name}")
      for bits in (1, 2, 4, 6, 8) for target in (ct.target.iOS16, ct.target.iOS18)),
    pytest.param(palettes(3), "constexpr_lut_to_dense", ct.target.iOS18, id="3-bit palette"),
    pytest.param(palettes(4, **IN_GROUPS), "constexpr_lut_to_dense", ct.target.iOS18, id="4-bit palettes in groups"),
    pytest.param(palettes(4, channel_axis=1, **IN_GROUPS), "constexpr_lut_to_dense", ct.target.iOS18,
                 id="4-bit palettes in groups of inputs"),
    pytest.param(linear(mode="linear_symmetric"), "constexpr_affine_dequantize", ct.target.iOS16, id="8-bit iOS16"),
    pytest.param(linear(mode="linear"), "constexpr_affine_dequantize", ct.target.iOS16, id="8-bit, zero points"),
    pytest.param(linear(mode="linear"), "constexpr_blockwise_shift_scale", ct.target.iOS18, id="8-bit iOS18"),
    pytest.param(linear(**BLOCKS), "constexpr_blockwise_shift_scale", ct.target.iOS18, id="4-bit blocks"),
    pytest.param(linear(**BLOCKS | {"mode": "linear", "dtype": "uint4"}), "constexpr_blockwise_shift_scale",
                 ct.target.iOS18, id="4-bit blocks, offsets"),
    pytest.param(pruned, "constexpr_sparse_to_dense", ct.target.iOS16, id="sparse iOS16"),
    pytest.param(pruned, "constexpr_sparse_to_dense", ct.target.iOS18, id="sparse iOS18"),
    pytest.param(pruned_and_8_bit, "constexpr_sparse_to_dense", ct.target.iOS18, id="sparse 8-bit"),
    pytest.param(pruned_and_palettes, "constexpr_sparse_to_dense", ct.target.iOS18, id="sparse palette"),
])
def test_compressed_weights_equal_those_that_coremltools_decompresses(compress: Callable, op: str, target,
                                                                    tmp_path: Path):
    compressed = compress(_weighted(target))
    path = saved(compressed, tmp_path)
    assert op in {getattr(constant, "op", None) for constant in Package(path).functions["main"].constants.values()}
    dense = run(saved(cto.decompress_weights(compressed), tmp_path, "dense"))
    np.testing.assert_array_equal(run(path), dense)
    plain = run(saved(_weighted(target), tmp_path, "original"))
    assert snr_db(plain, dense) < 60        # compression did change the weights


def test_palettes_of_vectors_are_expanded_along_their_axis(tmp_path: Path):
    indices = np.random.default_rng(0).integers(0, 16, (32, CHANNELS, 1, 1))
    lut = normal(2, 4, 1, 1, 16, 2).astype(np.float16)
    uint4 = types.nptype_from_builtin(types.string_to_builtin("uint4"))
    path = saved(convert(lambda x: mb.conv(x=x, weight=mb.constexpr_lut_to_dense(
        indices=indices.astype(uint4), lut=lut, vector_axis=0))), tmp_path)
    weight = np.empty((64, CHANNELS), np.float32)
    for row, column in np.ndindex(32, CHANNELS):
        weight[2 * row:2 * row + 2, column] = lut[row // 16, column // 16, 0, 0, indices[row, column, 0, 0]]
    np.testing.assert_allclose(run(path)[0, :, 0], weight @ X[0, :, 0], atol=1e-4)
