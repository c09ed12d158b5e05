"""Every op that is lowered to Core AI returns what the interpreter returns, in a package that coremltools wrote."""

import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb  # noqa: N813  its name everywhere

from ane.backends.mil import Interpreter, Package
from ane.system.errors import UserError
from converters.coreml.graph import renamed
from tests.backends.mil.programs import normal
from tests.backends.mil.test_ops import save

pytest.importorskip("coreai", reason="needs Core AI: pip install '.[coreai]'")

from ane.backends.coreai.lowering import LOWERINGS
from ane.backends.coreai.runtime import CoreAIRuntime

X, Y = normal(2, 3, 4, 5), normal(2, 3, 4, 5, seed=1)
SQUARE, POSITIVE = normal(1, 4, 4, 4, seed=2), np.abs(normal(2, 3, 4, 5, seed=3)) + 0.1
WEIGHT, BIAS = normal(6, 3, 1, 3, seed=4), normal(6, seed=5)
UNARY = ("abs", "cos", "erf", "exp", "relu", "sigmoid", "silu", "sin", "tanh", "square", "identity")
BINARY = ("add", "sub", "mul", "real_div", "maximum", "minimum")

# name → program of x and y
PROGRAMS = {
    **{name: lambda x, y, name=name: getattr(mb, name)(x=x) for name in UNARY},
    **{name: lambda x, y, name=name: getattr(mb, name)(x=x, y=y) for name in BINARY},
    **{f"reduce_{name}": lambda x, y, name=name: getattr(mb, f"reduce_{name}")(x=x, axes=[1, -1], keep_dims=False)
       for name in ("max", "mean", "min", "sum")},
    "reduce_mean keeps": lambda x, y: mb.reduce_mean(x=x, axes=[1], keep_dims=True),
    "sqrt": lambda x, y: mb.sqrt(x=mb.square(x=x)),
    "rsqrt": lambda x, y: mb.rsqrt(x=mb.square(x=x), epsilon=0.1),
    "pow": lambda x, y: mb.pow(x=mb.abs(x=x), y=y),
    "clip": lambda x, y: mb.clip(x=x, alpha=-0.5, beta=0.25),
    "leaky_relu": lambda x, y: mb.leaky_relu(x=x, alpha=0.2),
    "gelu exact": lambda x, y: mb.gelu(x=x, mode="EXACT"),
    "gelu tanh": lambda x, y: mb.gelu(x=x, mode="TANH_APPROXIMATION"),
    "gelu sigmoid": lambda x, y: mb.gelu(x=x, mode="SIGMOID_APPROXIMATION"),
    "select greater": lambda x, y: mb.select(cond=mb.greater(x=x, y=y), a=x, b=y),
    "select equal": lambda x, y: mb.select(cond=mb.equal(x=x, y=y), a=x, b=y),
    "cast": lambda x, y: mb.cast(x=x, dtype="int32"),
    "layer_norm": lambda x, y: mb.layer_norm(x=x, axes=[1], gamma=BIAS[:3], beta=BIAS[3:], epsilon=1e-3),
    "layer_norm of the last axes": lambda x, y: mb.layer_norm(x=x, axes=[-2, -1], epsilon=1e-3),
    "softmax": lambda x, y: mb.softmax(x=x, axis=1),
    "softmax of the last axis": lambda x, y: mb.softmax(x=x, axis=-1),
    "conv": lambda x, y: mb.conv(x=x, weight=WEIGHT, bias=BIAS, strides=[1, 2], pad_type="custom", pad=[1, 0, 2, 1],
                                 dilations=[1, 2]),
    "conv of groups": lambda x, y: mb.conv(x=x, weight=WEIGHT[:, :1], groups=3, pad_type="valid"),
    "conv_transpose": lambda x, y: mb.conv_transpose(x=x, weight=WEIGHT.swapaxes(0, 1), bias=BIAS, strides=[2, 3],
                                                     pad_type="custom", pad=[0, 1, 2, 1]),
    "linear": lambda x, y: mb.linear(x=x, weight=normal(7, 5), bias=normal(7)),
    "matmul": lambda x, y: mb.matmul(x=x, y=y, transpose_y=True),
    "matmul transposed first": lambda x, y: mb.matmul(x=x, y=y, transpose_x=True),
    "concat": lambda x, y: mb.concat(values=[x, y, x], axis=-1),
    "split": lambda x, y: mb.concat(values=mb.split(x=x, split_sizes=[1, 3, 1], axis=-1)[::-1], axis=3),
    "split in equal parts": lambda x, y: mb.sub(**dict(zip("xy", mb.split(x=x, num_splits=2, axis=2), strict=True))),
    "transpose": lambda x, y: mb.transpose(x=x, perm=[0, 3, -3, 2]),
    "reshape": lambda x, y: mb.reshape(x=x, shape=[0, -1, 2]),
    "expand_dims, squeeze": lambda x, y: mb.squeeze(x=mb.expand_dims(x=mb.reduce_sum(x=x, axes=[1]), axes=[0, -1]),
                                                    axes=[0, -1]),
    "tile": lambda x, y: mb.tile(x=x, reps=[1, 2, 1, 3]),
    "pad": lambda x, y: mb.pad(x=x, pad=[1, 0, 2, 3], mode="constant", constant_val=0.5),
    "pad reflecting": lambda x, y: mb.pad(x=x, pad=[1, 2], mode="reflect"),
    "slice_by_index": lambda x, y: mb.slice_by_index(x=x, begin=[0, -2, 1, 0], end=[2, 3, 4, -1], stride=[1, 1, 2, 1],
                                                     end_mask=[True, False, False, False]),
    "slice_by_index backwards": lambda x, y: mb.slice_by_index(
        x=x, begin=[0, 0, 0, 0], end=[0, 0, 0, 0], stride=[1, -1, 1, -2], begin_mask=[True] * 4, end_mask=[True] * 4),
    "slice_by_index of one": lambda x, y: mb.slice_by_index(x=x, begin=[0, 1, 0, 0], end=[2, 2, 4, 5],
                                                            squeeze_mask=[False, True, False, False]),
    "slice_update": lambda x, y: mb.slice_update(
        x=x, update=mb.slice_by_index(x=y, begin=[0, 0, 0, 0], end=[2, 1, 4, 2]), begin=[0, 2, 0, 3], end=[2, 3, 4, 5]),
    "constant only": lambda x, y: mb.add(x=x, y=mb.matmul(x=mb.reshape(x=y, shape=[2, 3, 4, 5]), y=normal(5, 5))),
}


@pytest.fixture(scope="module")
def runtime() -> CoreAIRuntime:
    return CoreAIRuntime()


@pytest.fixture(scope="module")
def outputs(runtime, tmp_path_factory) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What the interpreter and Core AI return for each of ``PROGRAMS``, all in one function."""
    def program(x, y):
        return tuple(renamed(PROGRAMS[name](x, y), f"result_{index}") for index, name in enumerate(PROGRAMS))

    path = save(tmp_path_factory.mktemp("ops") / "ops.mlpackage", program, {"x": X, "y": Y})
    expected = Interpreter(Package(path)).predict({"x": X, "y": Y})
    actual = runtime.load(path, "main", "ALL").predict({"x": X, "y": Y})
    assert actual.keys() == expected.keys()
    return {name: (expected[f"result_{index}"], actual[f"result_{index}"]) for index, name in enumerate(PROGRAMS)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_op_returns_what_the_interpreter_returns(outputs, name):
    expected, actual = outputs[name]
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


def test_attention_by_einsum_returns_what_the_interpreter_returns(runtime, tmp_path):
    def program(x, y):
        scores = mb.einsum(values=(x, y), equation="bkhc,bchq->bkhq")
        return mb.einsum(values=(y, scores), equation="bchk,bkhq->bchq")

    arrays = {"x": normal(1, 6, 1, 4), "y": normal(1, 4, 1, 6, seed=1)}
    path = save(tmp_path / "op.mlpackage", program, arrays)
    expected, = Interpreter(Package(path)).predict(arrays).values()
    actual, = runtime.load(path, "main", "ALL").predict(arrays).values()
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


def test_every_lowering_is_tested():
    tested = " ".join(PROGRAMS).replace(",", "").split()
    assert set(LOWERINGS) - {"einsum"} <= set(tested)


@pytest.mark.parametrize(("program", "message"), [
    (lambda x, y: mb.cumsum(x=x, axis=1), r"op cumsum \(.*\) in function 'main' of .*op.mlpackage is not supported$"),
    (lambda x, y: mb.conv(x=x, weight=WEIGHT, pad_type="same"), "op conv .* is not supported: pad_type same"),
    (lambda x, y: mb.concat(values=[x, y], axis=1, interleave=True), "op concat .* is not supported: interleave"),
])
def test_an_unsupported_op_is_named_with_its_function(runtime, tmp_path, program, message):
    path = save(tmp_path / "op.mlpackage", lambda x, y: program(x, y), {"x": X, "y": Y})
    with pytest.raises(UserError, match=message):
        runtime.load(path, "main", "ALL")
