"""Test how the interpreter reads the weights of packages, and how it reports damaged weights."""

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
import pytest
from coremltools.converters.mil.mil import types

from ane.backends.mil import Interpreter, Package
from ane.system.decibels import snr_db
from tests.backends.mil.programs import CHANNELS, WEIGHT, X, configured, convert, mb, normal, palettes, run, saved
from tests.refusals import assert_refused

MANIFEST = "Manifest.json"
MODEL, WEIGHTS = (f"Data/com.apple.CoreML/{name}" for name in ("model.mlmodel", "weights/weight.bin"))


def truncated(kept: int) -> Callable[[Path], int]:
    return lambda file: file.write_bytes(file.read_bytes()[:kept])


def replaced_by_a_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (".", shutil.rmtree, r"there is no Core ML package at .*copy"),
        *(
            (MANIFEST, damage, r"copy\.mlpackage is not a Core ML package")
            for damage in (
                Path.unlink,
                replaced_by_a_fifo,
                lambda file: file.write_text("{}"),
                lambda file: file.write_text("[" * 100_000),
            )
        ),
        (MODEL, Path.unlink, r"copy\.mlpackage is damaged: Data/com.apple.CoreML/model\.mlmodel is missing"),
        *((MODEL, truncated(kept), r"copy\.mlpackage is damaged: its model") for kept in (0, 1000)),
        *(
            (WEIGHTS, truncated(kept), rf"copy\.mlpackage is damaged: the weight file weight.bin ends early.* {kept}")
            for kept in (100, 5000)
        ),
        (
            WEIGHTS,
            lambda file: file.write_bytes(bytes(file.stat().st_size)),
            r"the weight file weight.bin has no fp16 \(64, 64, 1, 1\) at byte 64",
        ),
        *(
            (WEIGHTS, damage, r"the weight file weight.bin is missing or empty")
            for damage in (Path.unlink, truncated(0), replaced_by_a_fifo)
        ),
    ],
)
def test_a_damaged_package_is_refused_when_it_is_opened(copy: Path, file: str, damage: Callable, message: str):
    damage(copy / file)
    assert_refused(message, Package, copy)


def test_a_missing_function_is_refused_by_name(plain: Path):
    assert_refused(
        r"model\.mlpackage has no function 'decode': choose one of main", lambda: Interpreter(Package(plain), "decode")
    )


def test_an_unsupported_argument_is_refused_by_name(copy: Path):
    spec = ct.utils.load_spec(str(copy))
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    relu = next(operation for operation in block.operations if operation.type == "relu")
    relu.inputs["slope"].arguments.add().name = "x"
    (copy / MODEL).write_bytes(spec.SerializeToString())
    assert_refused(
        r"does not support the argument slope of the op relu \(relu_0\) in function", lambda: Interpreter(Package(copy))
    )


def test_an_unsupported_op_is_refused_by_name(tmp_path: Path):
    path = saved(convert(lambda x: mb.sliding_windows(x=x, axis=3, size=2)), tmp_path)
    assert_refused(
        r"does not support the op sliding_windows \(sliding_windows_0\) in "
        r"function 'main' of .*model\.mlpackage",
        lambda: Interpreter(Package(path)),
    )


@cache
def weighted(target) -> ct.models.MLModel:
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


BLOCKS = {"mode": "linear_symmetric", "dtype": "int4", "granularity": "per_block", "block_size": 16}
IN_GROUPS = {"granularity": "per_grouped_channel", "group_size": 16}


@pytest.mark.parametrize(
    ("compress", "op", "target"),
    [
        *(
            pytest.param(palettes(bits), "constexpr_lut_to_dense", target, id=f"{bits}-bit palette {target.name}")
            for target, sizes in ((ct.target.iOS16, (1, 4, 8)), (ct.target.iOS18, (1, 2, 3, 4, 6, 8)))
            for bits in sizes
        ),
        pytest.param(
            palettes(4, **IN_GROUPS), "constexpr_lut_to_dense", ct.target.iOS18, id="4-bit palettes in groups"
        ),
        pytest.param(
            palettes(4, channel_axis=1, **IN_GROUPS),
            "constexpr_lut_to_dense",
            ct.target.iOS18,
            id="4-bit palettes in groups of inputs",
        ),
        pytest.param(linear(mode="linear_symmetric"), "constexpr_affine_dequantize", ct.target.iOS16, id="8-bit iOS16"),
        pytest.param(linear(mode="linear"), "constexpr_affine_dequantize", ct.target.iOS16, id="8-bit, zero points"),
        pytest.param(linear(mode="linear"), "constexpr_blockwise_shift_scale", ct.target.iOS18, id="8-bit iOS18"),
        pytest.param(linear(**BLOCKS), "constexpr_blockwise_shift_scale", ct.target.iOS18, id="4-bit blocks"),
        pytest.param(
            linear(**BLOCKS | {"mode": "linear", "dtype": "uint4"}),
            "constexpr_blockwise_shift_scale",
            ct.target.iOS18,
            id="4-bit blocks, offsets",
        ),
        pytest.param(pruned, "constexpr_sparse_to_dense", ct.target.iOS16, id="sparse iOS16"),
        pytest.param(pruned, "constexpr_sparse_to_dense", ct.target.iOS18, id="sparse iOS18"),
        pytest.param(pruned_and_8_bit, "constexpr_sparse_to_dense", ct.target.iOS18, id="sparse 8-bit"),
        pytest.param(
            lambda model: cto.palettize_weights(
                pruned(model), configured(cto.OpPalettizerConfig(nbits=4, mode="uniform")), joint_compression=True
            ),
            "constexpr_sparse_to_dense",
            ct.target.iOS18,
            id="sparse palette",
        ),
    ],
)
def test_compressed_weights_equal_those_that_coremltools_decompresses(
    compress: Callable, op: str, target, tmp_path: Path
):
    compressed = compress(weighted(target))
    path = saved(compressed, tmp_path)
    assert op in {getattr(constant, "op", None) for constant in Package(path).functions["main"].constants.values()}
    dense = run(saved(cto.decompress_weights(compressed), tmp_path, "dense"))
    np.testing.assert_array_equal(run(path), dense)
    plain = run(saved(weighted(target), tmp_path, "original"))
    assert snr_db(plain, dense) < 60  # compression has changed the weights


def test_palettes_of_vectors_are_expanded_along_their_axis(tmp_path: Path):
    indices = np.random.default_rng(0).integers(0, 16, (32, CHANNELS, 1, 1))
    lut = normal(2, 4, 1, 1, 16, 2).astype(np.float16)
    uint4 = types.nptype_from_builtin(types.string_to_builtin("uint4"))
    path = saved(
        convert(
            lambda x: mb.conv(
                x=x, weight=mb.constexpr_lut_to_dense(indices=indices.astype(uint4), lut=lut, vector_axis=0)
            )
        ),
        tmp_path,
    )
    weight = np.empty((64, CHANNELS), np.float32)
    for row, column in np.ndindex(32, CHANNELS):
        weight[2 * row : 2 * row + 2, column] = lut[row // 16, column // 16, 0, 0, indices[row, column, 0, 0]]
    np.testing.assert_allclose(run(path)[0, :, 0], weight @ X[0, :, 0], atol=1e-4)
