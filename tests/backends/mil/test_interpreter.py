"""Test the interpreter on packages that coremltools wrote: rounding, states, functions, activations."""

import gc
import subprocess
import sys
from pathlib import Path

import coremltools as ct
import numpy as np
import pytest
import torch
from coremltools.converters.mil.mil import types

from ane.backends.mil import Arithmetic, Interpreter, Package
from ane.system.decibels import snr_db
from tests.backends.mil.programs import (
    CHANNELS,
    SHAPE,
    WEIGHT,
    WIDTH,
    X,
    convert,
    mb,
    normal,
    palettes,
    round_to_fp16,
    run,
    saved,
)

# Reading packages


def test_a_package_lists_its_functions_and_their_types(plain: Path):
    package = Package(plain)
    assert package.default_function == "main"
    assert package.metadata["com.github.apple.coremltools.version"] == ct.__version__
    main = package.functions["main"]
    assert [(name, str(type)) for name, type in main.inputs.items()] == [("x", "fp16 (1, 64, 1, 8)")]
    assert [type.dtype for type in main.outputs.values()] == ["fp16"]
    assert [op.type for op in main.ops] == ["conv", "relu", "add"]
    assert not main.states


def test_reading_a_package_does_not_import_coremltools_and_leaves_it_usable(plain: Path):
    read = f"import sys; from ane.backends.mil import *; Interpreter(Package({str(plain)!r})); print(*sys.modules)"
    imported = subprocess.check_output([sys.executable, "-c", read], text=True).split()
    assert "ane.backends.mil" in imported
    assert "coremltools" not in imported
    Interpreter(Package(plain))
    assert ct.utils.load_spec(str(plain)).WhichOneof("Type") == "mlProgram"


# Rounding


def test_results_are_rounded_only_with_fp16(plain: Path):
    weight = torch.from_numpy(WEIGHT).float().reshape(CHANNELS, CHANNELS)
    x = torch.from_numpy(X).reshape(CHANNELS, WIDTH)
    expected = (weight @ x).relu() + x
    assert snr_db(expected.numpy(), run(plain)[0, :, 0]) > 120
    rounded = round_to_fp16(round_to_fp16(weight @ round_to_fp16(x)).relu() + round_to_fp16(x))
    np.testing.assert_array_equal(run(plain, fp16=True)[0, :, 0], rounded.numpy())
    assert 55 < snr_db(expected.numpy(), rounded.numpy()) < 90


def test_values_beyond_fp16_become_infinite_only_in_fp16_ops_with_fp16(tmp_path: Path):
    path = saved(convert(lambda x: mb.mul(x=mb.mul(x=x, y=np.float16(300)), y=np.float16(1 / 256))), tmp_path)
    x = np.full(SHAPE, 300, np.float32)
    np.testing.assert_allclose(run(path, x), 300 * 300 / 256, rtol=1e-6)
    assert np.isinf(run(path, x, fp16=True)).all()

    def mixed(x):
        wide = mb.mul(x=mb.cast(x=x, dtype="fp32"), y=np.float32(1000))
        return mb.cast(x=mb.mul(x=mb.mul(x=wide, y=wide), y=np.float32(1e-6)), dtype="fp16")

    x = round_to_fp16(torch.from_numpy(X))
    np.testing.assert_array_equal(
        run(saved(convert(mixed), tmp_path, "mixed"), fp16=True),
        round_to_fp16(((x * 1000) * (x * 1000)) * 1e-6).numpy(),
    )


@pytest.mark.parametrize("op", ["layer_norm", "instance_norm", "l2_norm"])
def test_narrow_norms_fail_on_outliers_where_wide_norms_do_not(op: str, tmp_path: Path):
    extra = {"layer_norm": {"axes": [1], "epsilon": np.float16(1e-5)}}.get(op, {"epsilon": np.float16(1e-5)})
    path = saved(convert(lambda x: getattr(mb, op)(x=x, **extra)), tmp_path)
    x = X.copy()
    x[:, :4] = 3000
    x[..., 0] = -3000
    exact = run(path, x.astype(np.float16))
    assert snr_db(exact, run(path, x, fp16=True)) > 60
    narrow = run(path, x, fp16=True, narrow_norms=True)
    assert not np.isfinite(narrow).all() or snr_db(exact, narrow) < 10


def test_narrow_norms_round_every_inner_step_of_a_layer_norm(tmp_path: Path):
    gamma, beta = normal(CHANNELS).astype(np.float16), normal(CHANNELS, seed=2).astype(np.float16)
    path = saved(
        convert(lambda x: mb.layer_norm(x=x, axes=[1], gamma=gamma, beta=beta, epsilon=np.float16(1e-3))), tmp_path
    )
    outlier = X.copy()
    outlier[0, 0, 0, 0] = 400  # the square of 400 overflows fp16, and the mean of the squares does not
    x = round_to_fp16(torch.from_numpy(outlier))
    centred = round_to_fp16(x - round_to_fp16(x.mean(1, keepdim=True)))
    variance = round_to_fp16(round_to_fp16(centred * centred).mean(1, keepdim=True))
    z = round_to_fp16(centred * round_to_fp16(round_to_fp16(variance + float(np.float16(1e-3))).rsqrt()))
    scale, shift = (torch.from_numpy(part).float().view(1, -1, 1, 1) for part in (gamma, beta))
    got = run(path, outlier, fp16=True, narrow_norms=True)
    np.testing.assert_array_equal(got, round_to_fp16(round_to_fp16(z * scale) + shift).numpy())
    np.testing.assert_array_equal(got[0, :, 0, 0], beta)
    assert snr_db(run(path), run(path, fp16=True)) > snr_db(run(path), run(path, fp16=True, narrow_norms=True))


def test_small_numbers_of_inputs_weights_and_results_are_flushed_and_the_epsilon_of_a_norm_is_not(tmp_path: Path):
    small, smallest = np.float16(2**-15), np.float16(2**-14)  # ``smallest`` is fp16's smallest normal number

    def body(x):
        return mb.add(x=mb.mul(x=mb.mul(x=x, y=small), y=np.float16(2**15)), y=mb.mul(x=x, y=smallest))

    path = saved(convert(body), tmp_path)
    assert (run(path, np.full(SHAPE, 2, np.float32), fp16=True) == 2).all()
    assert (run(path, np.full(SHAPE, 2, np.float32), fp16=True, flush=True) == 2**-13).all(), "the weight is flushed"
    assert (run(path, np.full(SHAPE, small, np.float32), fp16=True, flush=True) == 0).all(), "the input is flushed"
    assert (run(path, np.full(SHAPE, 0.25, np.float32), fp16=True, flush=True) == 0).all(), "the result is flushed"
    # an epsilon keeps columns of zeros, such as padding, from being divided by 0
    path = saved(convert(lambda x: mb.layer_norm(x=x, axes=[1], epsilon=np.float16(1e-5))), tmp_path, "norm")
    assert (run(path, np.zeros(SHAPE, np.float32), fp16=True, flush=True) == 0).all()


@pytest.mark.parametrize("option", ["narrow_norms", "flush"])
def test_arithmetic_of_fp16_without_fp16_is_refused(option):
    with pytest.raises(ValueError, match="narrow_norms and flush need fp16"):
        Arithmetic(**{option: True})


# States


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """total ← total + x; returns (the old total, twice the new one)."""

    def body(x, total):
        old = mb.read_state(input=total)
        new = mb.coreml_update_state(state=total, value=mb.add(x=old, y=x))
        return mb.identity(x=old), mb.mul(x=new, y=np.float16(2))

    specs = mb.TensorSpec(shape=SHAPE, dtype=types.fp16), mb.StateTensorSpec(SHAPE, dtype=types.fp16)
    return saved(convert(body, *specs), tmp_path_factory.mktemp("counting"))


@pytest.mark.parametrize("fp16", [False, True])
def test_a_state_is_kept_from_call_to_call(counting: Path, fp16: bool):
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
    weights = [
        package.tensor(constant)
        for function in package.functions.values()
        for constant in function.constants.values()
        if constant.type.shape == WEIGHT.shape
    ]
    assert len(weights) == 2
    assert len({weight.data_ptr() for weight in weights}) == 1


# Running


def test_activations_are_yielded_in_program_order_as_float32(plain: Path):
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


def test_changing_a_result_changes_nothing_else(tmp_path: Path):
    path = saved(convert(lambda x: (mb.identity(x=x), mb.add(x=mb.identity(x=WEIGHT), y=np.float16(0)))), tmp_path)
    interpreter = Interpreter(Package(path))
    x = X.copy()
    for array in interpreter.predict({"x": x}).values():
        array[:] = 7
    assert (x == X).all()
    again = list(interpreter.predict({"x": x}).values())
    np.testing.assert_array_equal(again[0], X)
    np.testing.assert_array_equal(again[1], WEIGHT.astype(np.float32))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"y": X}, r"function 'main' of .*model\.mlpackage takes \['x'\], got \['y'\]"),
        ({"x": X[..., :3]}, r"input x of function 'main' of .* is fp16 \(1, 64, 1, 8\), got float32 \(1, 64, 1, 3\)"),
        ({}, r"takes \['x'\], got \[\]"),
        ({"x": X.astype(np.int32)}, r"got int32"),
    ],
)
def test_wrong_inputs_are_refused(plain: Path, inputs: dict, message: str):
    with pytest.raises(TypeError, match=message):
        Interpreter(Package(plain)).predict(inputs)
