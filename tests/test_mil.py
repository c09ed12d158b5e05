"""The interpreter on packages that coremltools wrote: roundings, compressed weights, states, functions, damage."""

import gc
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
import pytest
import torch
from coremltools.converters import mil
from coremltools.converters.mil.mil import types
from torch import nn

from ane.backends.mil import Arithmetic, Interpreter, Package
from ane.errors import UserError

mb = mil.Builder

CHANNELS, WIDTH = 64, 8
SHAPE = (1, CHANNELS, 1, WIDTH)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


WEIGHT = normal(CHANNELS, CHANNELS, 1, 1, seed=1).astype(np.float16) / 8
X = normal(*SHAPE)


def convert(body: Callable, *specs, target=ct.target.iOS18, dtype=types.fp16) -> ct.models.MLModel:
    """A program of fp16 with one input of SHAPE, or with these specs, nothing in it folded or rewritten."""
    specs = specs or (mb.TensorSpec(shape=SHAPE, dtype=dtype),)
    program = mb.program(input_specs=list(specs), opset_version=target)(body)
    return ct.convert(program, convert_to="mlprogram", minimum_deployment_target=target, skip_model_load=True,
                      compute_precision=ct.precision.FLOAT32, pass_pipeline=ct.PassPipeline.EMPTY)


def saved(model: ct.models.MLModel, directory: Path, name: str = "model") -> Path:
    path = directory / f"{name}.mlpackage"
    model.save(str(path))
    return path


@pytest.fixture(scope="module", autouse=True)
def quick_conversions() -> Iterator[None]:
    """Every conversion collects garbage: nine tenths of its time, unless what is there is left out."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """relu(conv(x)) + x in fp16; not to be changed."""
    return saved(convert(lambda x: mb.add(x=mb.relu(x=mb.conv(x=x, weight=WEIGHT)), y=x)),
                 tmp_path_factory.mktemp("plain"))


@pytest.fixture
def copy(plain: Path, tmp_path: Path) -> Path:
    """The plain package, to be damaged."""
    return Path(shutil.copytree(plain, tmp_path / "copy.mlpackage"))


def data(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML"


def run(path: Path, x: np.ndarray = X, **arithmetic: bool) -> np.ndarray:
    (result,) = Interpreter(Package(path), arithmetic=Arithmetic(**arithmetic)).predict({"x": x}).values()
    return result


def snr(expected: np.ndarray, got: np.ndarray) -> float:
    """Decibels; 300 where there is no error."""
    signal, error = (np.square(part.astype(np.float64)).mean() for part in (expected, expected - got))
    return float(10 * np.log10(signal / max(error, signal * 1e-30)))


def half(values: torch.Tensor) -> torch.Tensor:
    return values.half().float()


# What a package says of itself


def test_a_package_tells_its_functions_and_their_types(plain: Path):
    package = Package(plain)
    assert package.default_function == "main"
    assert package.metadata["com.github.apple.coremltools.version"] == ct.__version__
    main = package.functions["main"]
    assert [(name, str(type)) for name, type in main.inputs.items()] == [("x", "fp16 (1, 64, 1, 8)")]
    assert [type.dtype for type in main.outputs.values()] == ["fp16"]
    assert [op.type for op in main.ops] == ["conv", "relu", "add"]
    assert not main.states


def test_reading_a_package_does_without_coremltools_and_leaves_it_usable(plain: Path):
    code = f"""
import sys
from ane.backends.mil import Interpreter, Package
Interpreter(Package({str(plain)!r}))
assert "coremltools" not in sys.modules
import coremltools
assert coremltools.utils.load_spec({str(plain)!r}).WhichOneof("Type") == "mlProgram"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Rounding


def test_maths_is_in_float32_unless_fp16_is_asked_for(plain: Path):
    weight = torch.from_numpy(WEIGHT).float().reshape(CHANNELS, CHANNELS)
    x = torch.from_numpy(X).reshape(CHANNELS, WIDTH)
    expected = (weight @ x).relu() + x
    assert snr(expected.numpy(), run(plain)[0, :, 0]) > 120
    rounded = half(half(weight @ half(x)).relu() + half(x))
    np.testing.assert_array_equal(run(plain, fp16=True)[0, :, 0], rounded.numpy())
    assert 55 < snr(expected.numpy(), rounded.numpy()) < 90


def test_values_beyond_fp16_become_infinite_only_in_fp16(tmp_path: Path):
    path = saved(convert(lambda x: mb.mul(x=mb.mul(x=x, y=np.float16(300)), y=np.float16(1 / 256))), tmp_path)
    x = np.full(SHAPE, 300, np.float32)
    np.testing.assert_allclose(run(path, x), 300 * 300 / 256, rtol=1e-6)
    assert np.isinf(run(path, x, fp16=True)).all()


def test_float32_ops_of_a_mixed_program_are_not_rounded(tmp_path: Path):
    def body(x):
        wide = mb.mul(x=mb.cast(x=x, dtype="fp32"), y=np.float32(1000))
        return mb.cast(x=mb.mul(x=mb.mul(x=wide, y=wide), y=np.float32(1e-6)), dtype="fp16")
    path = saved(convert(body), tmp_path)
    x = half(torch.from_numpy(X))
    np.testing.assert_array_equal(run(path, fp16=True), half(((x * 1000) * (x * 1000)) * 1e-6).numpy())


@pytest.mark.parametrize("op", ["layer_norm", "instance_norm", "l2_norm"])
def test_narrow_norms_lose_an_outlier_that_wide_ones_hold(op: str, tmp_path: Path):
    extra = {"layer_norm": {"axes": [1], "epsilon": np.float16(1e-5)}}.get(op, {"epsilon": np.float16(1e-5)})
    path = saved(convert(lambda x: getattr(mb, op)(x=x, **extra)), tmp_path)
    x = X.copy()
    x[:, :4] = 3000
    x[..., 0] = -3000
    exact = run(path, x.astype(np.float16))
    assert snr(exact, run(path, x, fp16=True)) > 60
    narrow = run(path, x, fp16=True, narrow_norms=True)
    assert not np.isfinite(narrow).all() or snr(exact, narrow) < 10


def test_narrow_norms_round_every_inner_step_of_a_layer_norm(tmp_path: Path):
    gamma, beta = normal(CHANNELS).astype(np.float16), normal(CHANNELS, seed=2).astype(np.float16)
    path = saved(convert(lambda x: mb.layer_norm(x=x, axes=[1], gamma=gamma, beta=beta, epsilon=np.float16(1e-3))),
                 tmp_path)
    outlier = X.copy()
    outlier[0, 0, 0, 0] = 400       # its square is beyond fp16, the mean of the squares is not
    x = half(torch.from_numpy(outlier))
    centred = half(x - half(x.mean(1, keepdim=True)))
    variance = half(half(centred * centred).mean(1, keepdim=True))
    z = half(centred * half(half(variance + float(np.float16(1e-3))).rsqrt()))
    scale, shift = (torch.from_numpy(part).float().view(1, -1, 1, 1) for part in (gamma, beta))
    got = run(path, outlier, fp16=True, narrow_norms=True)
    np.testing.assert_array_equal(got, half(half(z * scale) + shift).numpy())
    np.testing.assert_array_equal(got[0, :, 0, 0], beta)
    assert snr(run(path), run(path, fp16=True)) > snr(run(path), run(path, fp16=True, narrow_norms=True))


def test_narrow_norms_without_fp16_are_refused():
    with pytest.raises(ValueError, match="narrow_norms needs fp16"):
        Arithmetic(narrow_norms=True)


# Weights


def _weighted(target) -> ct.models.MLModel:
    def body(x):
        y = mb.conv(x=x, weight=WEIGHT)
        table = normal(48, 64, seed=3).astype(np.float16)
        return mb.linear(x=mb.transpose(x=y, perm=[0, 3, 2, 1]), weight=table, bias=normal(48).astype(np.float16))
    return convert(body, target=target)


def _configured(config) -> cto.OptimizationConfig:
    return cto.OptimizationConfig(global_config=config)


def palettes(bits: int, **options) -> Callable:
    config = cto.OpPalettizerConfig(nbits=bits, mode="uniform", **options)
    return lambda model: cto.palettize_weights(model, _configured(config))


def linear(**options) -> Callable:
    return lambda model: cto.linear_quantize_weights(model, _configured(cto.OpLinearQuantizerConfig(**options)))


def pruned(model: ct.models.MLModel) -> ct.models.MLModel:
    return cto.prune_weights(model, _configured(cto.OpMagnitudePrunerConfig(target_sparsity=0.6)))


def pruned_and_8_bit(model: ct.models.MLModel) -> ct.models.MLModel:
    config = cto.OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int8")
    return cto.linear_quantize_weights(pruned(model), _configured(config), joint_compression=True)


def pruned_and_palettes(model: ct.models.MLModel) -> ct.models.MLModel:
    return cto.palettize_weights(pruned(model), _configured(cto.OpPalettizerConfig(nbits=4, mode="uniform")),
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
def test_compressed_weights_are_those_that_coremltools_decompresses(compress: Callable, op: str, target,
                                                                    tmp_path: Path):
    compressed = compress(_weighted(target))
    path = saved(compressed, tmp_path)
    assert op in {getattr(constant, "op", None) for constant in Package(path).functions["main"].constants.values()}
    dense = run(saved(cto.decompress_weights(compressed), tmp_path, "dense"))
    np.testing.assert_array_equal(run(path), dense)
    assert snr(run(saved(_weighted(target), tmp_path, "original")), dense) < 60     # they are not the original's


def test_vectors_of_a_palette_run_along_their_axis(tmp_path: Path):
    indices = np.random.default_rng(0).integers(0, 16, (32, CHANNELS, 1, 1))
    lut = normal(2, 4, 1, 1, 16, 2).astype(np.float16)
    uint4 = types.nptype_from_builtin(types.string_to_builtin("uint4"))
    path = saved(convert(lambda x: mb.conv(x=x, weight=mb.constexpr_lut_to_dense(
        indices=indices.astype(uint4), lut=lut, vector_axis=0))), tmp_path)
    weight = np.empty((64, CHANNELS), np.float32)
    for row, column in np.ndindex(32, CHANNELS):
        weight[2 * row:2 * row + 2, column] = lut[row // 16, column // 16, 0, 0, indices[row, column, 0, 0]]
    np.testing.assert_allclose(run(path)[0, :, 0], weight @ X[0, :, 0], atol=1e-4)


# States


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """total ← total + x; gives (the old total, twice the new one)."""
    def body(x, total):
        old = mb.read_state(input=total)
        new = mb.coreml_update_state(state=total, value=mb.add(x=old, y=x))
        return mb.identity(x=old), mb.mul(x=new, y=np.float16(2))
    specs = mb.TensorSpec(shape=SHAPE, dtype=types.fp16), mb.StateTensorSpec(SHAPE, dtype=types.fp16)
    return saved(convert(body, *specs), tmp_path_factory.mktemp("counting"))


@pytest.mark.parametrize("fp16", [False, True])
def test_a_state_is_carried_from_call_to_call(counting: Path, fp16: bool):
    interpreter = Interpreter(Package(counting), arithmetic=Arithmetic(fp16=fp16))
    state, other = interpreter.make_state(), interpreter.make_state()
    array, total = state["total"], np.zeros(SHAPE, np.float16)
    for step in range(4):
        x = normal(*SHAPE, seed=step).astype(np.float16)
        old, doubled = interpreter.predict({"x": x}, state).values()
        np.testing.assert_array_equal(old, total)
        total = (total.astype(np.float32) + x).astype(np.float16)
        np.testing.assert_array_equal(doubled, 2 * total.astype(np.float32))
        np.testing.assert_array_equal(array, total)
    assert state["total"] is array
    assert not other["total"].any()


def test_a_state_that_does_not_fit_is_refused(counting: Path, plain: Path):
    interpreter = Interpreter(Package(counting))
    for state in (None, {"total": np.zeros(SHAPE, np.float32)}, {"sum": np.zeros(SHAPE, np.float16)}):
        with pytest.raises(TypeError, match=r"counting.*has the state total fp16 \(1, 64, 1, 8\)"):
            interpreter.predict({"x": X}, state)
    with pytest.raises(TypeError, match="has no state"):
        Interpreter(Package(plain)).predict({"x": X}, interpreter.make_state())


# Functions


def test_functions_of_one_package_share_their_decoded_weights(tmp_path: Path):
    wide = (mb.TensorSpec(shape=(1, CHANNELS, 1, 2 * WIDTH), dtype=types.fp16),)
    descriptor = ct.utils.MultiFunctionDescriptor()
    for name, specs in (("short", ()), ("long", wide)):
        model = convert(lambda x: mb.square(x=mb.conv(x=x, weight=WEIGHT)), *specs)
        descriptor.add_function(str(saved(palettes(4)(model), tmp_path, name)), "main", name)
    descriptor.default_function_name = "long"
    ct.utils.save_multifunction(descriptor, str(tmp_path / "both.mlpackage"))

    package = Package(tmp_path / "both.mlpackage")
    assert sorted(package.functions) == ["long", "short"]
    assert Interpreter(package).function.name == package.default_function == "long"
    assert package.functions["short"].inputs["x"].shape == SHAPE
    short = Interpreter(package, "short").predict({"x": X})
    long = Interpreter(package, "long").predict({"x": np.concatenate([X, X], -1)})
    np.testing.assert_allclose(np.concatenate([*short.values()] * 2, -1), *long.values(), atol=1e-5)
    weights = [package.tensor(constant) for function in package.functions.values()
               for constant in function.constants.values() if constant.type.shape == WEIGHT.shape]
    assert len(weights) == 2
    assert len({weight.data_ptr() for weight in weights}) == 1


# Running


def test_activations_come_in_program_order_as_float32(plain: Path):
    interpreter = Interpreter(Package(plain))
    seen = list(interpreter.activations({"x": X}))
    assert [op for _, op, _ in seen] == ["conv", "relu", "add"]
    assert all(array.dtype == np.float32 and array.shape == SHAPE for _, _, array in seen)
    np.testing.assert_array_equal(seen[1][2], np.maximum(seen[0][2], 0))
    np.testing.assert_array_equal(seen[2][2], interpreter.predict({"x": X})[seen[2][0]])


def test_a_value_is_freed_after_its_last_use(tmp_path: Path):
    shape = (1, 3, 1, 1237)

    def body(x):
        for _ in range(30):
            x = mb.add(x=mb.tanh(x=x), y=np.float16(0.5))
        return x
    path = saved(convert(body, mb.TensorSpec(shape=shape, dtype=types.fp16)), tmp_path)
    for name, _, _ in Interpreter(Package(path)).activations({"x": normal(*shape)}):
        last = name
    assert last == "add_29"
    for name, _, _ in Interpreter(Package(path)).activations({"x": normal(*shape)}):
        if name == last:
            alive = [item for item in gc.get_objects() if isinstance(item, torch.Tensor) and item.shape == shape]
            assert len(alive) <= 4


def test_a_result_is_the_callers_to_change(tmp_path: Path):
    path = saved(convert(lambda x: (mb.identity(x=x), mb.add(x=mb.identity(x=WEIGHT), y=np.float16(0)))), tmp_path)
    interpreter = Interpreter(Package(path))
    x = X.copy()
    for array in interpreter.predict({"x": x}).values():
        array[:] = 7
    assert (x == X).all()
    again = list(interpreter.predict({"x": x}).values())
    np.testing.assert_array_equal(again[0], X)
    np.testing.assert_array_equal(again[1], WEIGHT.astype(np.float32))


@pytest.mark.parametrize(("inputs", "message"), [
    ({"y": X}, r"function 'main' of .*model\.mlpackage takes \['x'\], got \['y'\]"),
    ({}, r"takes \['x'\], got \[\]"),
    ({"x": X[..., :3]}, r"input x of function 'main' of .* is fp16 \(1, 64, 1, 8\), got float32 \(1, 64, 1, 3\)"),
    ({"x": X.astype(np.int32)}, r"got int32"),
], ids=["name", "missing", "shape", "kind"])
def test_wrong_inputs_are_refused(plain: Path, inputs: dict, message: str):
    with pytest.raises(TypeError, match=message):
        Interpreter(Package(plain)).predict(inputs)


class Block(nn.Module):
    """Channels-first attention and an MLP, as the decoder has them."""

    def __init__(self, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(CHANNELS)
        self.mix, self.out = nn.Conv2d(CHANNELS, 3 * CHANNELS, 1), nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.up = nn.ConvTranspose1d(CHANNELS, CHANNELS // 2, 4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(self.norm(x.transpose(1, 3)).transpose(1, 3)).reshape(
            3, self.heads, CHANNELS // self.heads, -1).unbind(0)
        weights = torch.softmax(q.mT @ k / 4, dim=-1)
        x = x + self.out((v @ weights.mT).reshape(1, CHANNELS, 1, -1))
        return torch.tanh(nn.functional.gelu(self.up(x[:, :, 0]), approximate="tanh"))


def test_a_converted_torch_module_agrees_with_torch(tmp_path: Path):
    torch.manual_seed(0)
    module, x = Block().eval(), torch.from_numpy(X)
    program = torch.export.export(module, (x,)).run_decompositions({})
    model = ct.convert(program, minimum_deployment_target=ct.target.iOS18, skip_model_load=True,
                       inputs=[ct.TensorType("x", SHAPE, dtype=np.float16)], outputs=[ct.TensorType(dtype=np.float16)])
    path = saved(model, tmp_path)
    with torch.no_grad():
        expected = module(x).numpy()
    assert snr(expected, run(path)) > 60
    assert 50 < snr(expected, run(path, fp16=True)) < 90


# Damage


def test_opening_what_is_not_a_package(tmp_path: Path, copy: Path):
    with pytest.raises(UserError, match=r"there is no Core ML package at .*nothing"):
        Package(tmp_path / "nothing.mlpackage")
    (copy / "Manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"copy\.mlpackage is not a Core ML package"):
        Package(copy)
    (copy / "Manifest.json").unlink()
    with pytest.raises(UserError, match=r"copy\.mlpackage is not a Core ML package"):
        Package(copy)


def test_a_missing_model_file(copy: Path):
    (data(copy) / "model.mlmodel").unlink()
    with pytest.raises(UserError, match=r"copy\.mlpackage is damaged: Data/com.apple.CoreML/model\.mlmodel is missing"):
        Package(copy)


@pytest.mark.parametrize("kept", [0, 1000])
def test_a_truncated_model_file(copy: Path, kept: int):
    model = data(copy) / "model.mlmodel"
    model.write_bytes(model.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"copy\.mlpackage is damaged: its model"):
        Package(copy)


@pytest.mark.parametrize("kept", [100, 5000])
def test_a_truncated_weight_file_is_found_on_opening(copy: Path, kept: int):
    weights = data(copy) / "weights" / "weight.bin"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(UserError, match=rf"copy\.mlpackage is damaged: the weight file weight.bin ends early.* {kept}"):
        Package(copy)


def test_an_overwritten_weight_file_is_found_on_opening(copy: Path):
    weights = data(copy) / "weights" / "weight.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    with pytest.raises(UserError, match=r"the weight file weight.bin has no fp16 \(64, 64, 1, 1\) at byte 64"):
        Package(copy)


@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_weight_file(copy: Path, empty: bool):
    weights = data(copy) / "weights" / "weight.bin"
    weights.unlink()
    if empty:
        weights.touch()
    with pytest.raises(UserError, match=r"the weight file weight.bin is missing or empty"):
        Package(copy)


def test_a_function_that_is_not_there(plain: Path):
    with pytest.raises(UserError, match=r"model\.mlpackage has no function 'decode'; it has main"):
        Interpreter(Package(plain), "decode")


def test_an_argument_that_is_not_known(copy: Path):
    model = data(copy) / "model.mlmodel"
    spec = ct.utils.load_spec(str(copy))
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    relu = next(operation for operation in block.operations if operation.type == "relu")
    relu.inputs["slope"].arguments.add().name = "x"
    model.write_bytes(spec.SerializeToString())
    with pytest.raises(UserError, match=r"does not know the argument slope of the op relu \(relu_0\) in function"):
        Interpreter(Package(copy))


def test_an_op_that_is_not_known(tmp_path: Path):
    path = saved(convert(lambda x: mb.local_response_norm(x=x, size=3)), tmp_path)
    with pytest.raises(UserError, match=r"does not know the op local_response_norm \(local_response_norm_0\) in "
                                        r"function 'main' of .*model\.mlpackage"):
        Interpreter(Package(path))
