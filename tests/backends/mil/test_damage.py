"""Weights of packages: how they are read, and damaged ones."""

import os
from collections.abc import Callable
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
import pytest
from coremltools.converters.mil.mil import types

from ane.backends.mil import Interpreter, Package
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from tests.backends.mil.programs import CHANNELS, WEIGHT, X, configured, convert, mb, normal, palettes, run, saved


def data(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML"


def test_a_folder_that_is_not_a_package_is_refused(tmp_path: Path, copy: Path):
    with pytest.raises(UserError, match=r"there is no Core ML package at .*nothing"):
        Package(tmp_path / "nothing.mlpackage")
    (copy / "Manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"copy\.mlpackage is not a Core ML package"):
        Package(copy)
    (copy / "Manifest.json").unlink()
    with pytest.raises(UserError, match=r"copy\.mlpackage is not a Core ML package"):
        Package(copy)


@pytest.mark.parametrize("damage", [lambda file: file.write_text("[" * 100_000), lambda file: os.mkfifo(file)])
def test_a_manifest_that_cannot_be_parsed_or_is_a_fifo_is_refused(copy: Path, damage: Callable):
    (copy / "Manifest.json").unlink()
    damage(copy / "Manifest.json")
    with pytest.raises(UserError, match=r"copy\.mlpackage is not a Core ML package"):
        Package(copy)


def test_a_fifo_in_place_of_the_weight_file_is_refused(copy: Path):
    weights = data(copy) / "weights" / "weight.bin"
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(UserError, match=r"the weight file weight.bin is missing or empty"):
        Package(copy)


def test_a_missing_model_file_is_refused(copy: Path):
    (data(copy) / "model.mlmodel").unlink()
    with pytest.raises(UserError, match=r"copy\.mlpackage is damaged: Data/com.apple.CoreML/model\.mlmodel is missing"):
        Package(copy)


@pytest.mark.parametrize("kept", [0, 1000])
def test_a_truncated_model_file_is_refused(copy: Path, kept: int):
    model = data(copy) / "model.mlmodel"
    model.write_bytes(model.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"copy\.mlpackage is damaged: its model"):
        Package(copy)


@pytest.mark.parametrize("kept", [100, 5000])
def test_a_truncated_weight_file_is_refused_on_opening(copy: Path, kept: int):
    weights = data(copy) / "weights" / "weight.bin"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(UserError, match=rf"copy\.mlpackage is damaged: the weight file weight.bin ends early.* {kept}"):
        Package(copy)


def test_an_overwritten_weight_file_is_refused_on_opening(copy: Path):
    weights = data(copy) / "weights" / "weight.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    with pytest.raises(UserError, match=r"the weight file weight.bin has no fp16 \(64, 64, 1, 1\) at byte 64"):
        Package(copy)


@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_weight_file_is_refused(copy: Path, empty: bool):
    weights = data(copy) / "weights" / "weight.bin"
    weights.unlink()
    if empty:
        weights.touch()
    with pytest.raises(UserError, match=r"the weight file weight.bin is missing or empty"):
        Package(copy)


def test_a_missing_function_is_refused_by_name(plain: Path):
    with pytest.raises(UserError, match=r"model\.mlpackage has no function 'decode'; it has main"):
        Interpreter(Package(plain), "decode")


def test_an_unsupported_argument_is_refused_by_name(copy: Path):
    model = data(copy) / "model.mlmodel"
    spec = ct.utils.load_spec(str(copy))
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    relu = next(operation for operation in block.operations if operation.type == "relu")
    relu.inputs["slope"].arguments.add().name = "x"
    model.write_bytes(spec.SerializeToString())
    with pytest.raises(UserError, match=r"does not support the argument slope of the op relu \(relu_0\) in function"):
        Interpreter(Package(copy))


def test_an_unsupported_op_is_refused_by_name(tmp_path: Path):
    path = saved(convert(lambda x: mb.sliding_windows(x=x, axis=3, size=2)), tmp_path)
    with pytest.raises(UserError, match=r"does not support the op sliding_windows \(sliding_windows_0\) in "
                                        r"function 'main' of .*model\.mlpackage"):
        Interpreter(Package(path))


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
