"""List at least one case for every op of MIL: a program for coremltools, the result in torch, and input arrays."""

# Tables with one subject per line:
# fmt: off

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import coremltools as ct
import numpy as np
import torch
import torch.nn.functional as F
from coremltools.converters.mil.mil import Function, Program, types

from converters.coreml.graph import UnprintedProgram, renamed
from tests.backends.mil.programs import mb, normal


@dataclass(frozen=True)
class MilOpCase:
    name: str                               # the op first
    program: Callable                       # takes MIL values
    expected: Callable                      # takes torch tensors
    arrays: tuple[np.ndarray, ...]
    target: ct.target = ct.target.iOS18

    @property
    def op(self) -> str:
        return self.name.partition(" ")[0].rstrip(",")


@dataclass(frozen=True)
class PackageOfCases:
    """One function for several cases: of case 3 the inputs in_3_0 and on, and the outputs out_3_0 and on."""

    cases: list[MilOpCase]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {f"in_{index}_{part}": array for index, case in enumerate(self.cases)
                for part, array in enumerate(case.arrays)}

    def program(self) -> Program:
        kinds, program = {"f": types.fp32, "i": types.int32}, UnprintedProgram()
        specs = {name: mb.TensorSpec(array.shape, kinds[array.dtype.kind]) for name, array in self.arrays.items()}
        with Function(specs, self.cases[0].target) as function:
            outputs = []
            for index, case in enumerate(self.cases):
                found = case.program(*(function.inputs[f"in_{index}_{part}"] for part in range(len(case.arrays))))
                outputs += [renamed(value, f"out_{index}_{part}")
                            for part, value in enumerate(found if isinstance(found, tuple | list) else [found])]
            function.set_outputs(outputs)
        program.add_function("main", function)
        return program

    def save(self, path: Path) -> Path:
        """No pass changes the program."""
        model = ct.convert(self.program(), convert_to="mlprogram", minimum_deployment_target=self.cases[0].target,
                           skip_model_load=True, compute_precision=ct.precision.FLOAT32,
                           pass_pipeline=ct.PassPipeline.EMPTY)
        model.save(str(path))
        return path

    def by_case(self, outputs: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
        return {case.name: [array for name, array in outputs.items() if name.startswith(f"out_{index}_")]
                for index, case in enumerate(self.cases)}


def case(name: str, program: Callable, expected: Callable, *arrays: np.ndarray, target=ct.target.iOS18) -> MilOpCase:
    return MilOpCase(name, program, expected, arrays, target)


X = normal(2, 3, 4, 5)
Y = normal(2, 3, 4, 5, seed=1)
POSITIVE = np.abs(X) + 0.1
W = normal(6, 3, 3, 2, seed=2)
GAMMA, BETA, MEAN, VARIANCE = normal(3, seed=3), normal(3, seed=4), normal(3, seed=5), np.abs(normal(3, seed=6)) + 0.1
T = torch.from_numpy


def unary(op: str, expected: Callable, x: np.ndarray = X, **attributes) -> MilOpCase:
    arguments = "".join(f" {value}" for value in attributes.values())
    return case(f"{op}{arguments}", lambda x: getattr(mb, op)(x=x, **attributes), expected, x)


def binary(op: str, expected: Callable, x: np.ndarray = X, y: np.ndarray = Y) -> MilOpCase:
    return case(f"{op} {x.dtype} {x.shape} {y.shape}", lambda x, y: getattr(mb, op)(x=x, y=y), expected, x, y)


def truth(op: str, expected: Callable) -> MilOpCase:
    """A comparison with a cast to numbers, since a package cannot return booleans."""
    return case(op, lambda x, y: mb.cast(x=getattr(mb, op)(x=x, y=y), dtype="fp32"),
                lambda x, y: expected(x, y).float(), np.round(X), np.round(Y))


def logic(op: str, expected: Callable) -> MilOpCase:
    return case(op, lambda x, y: mb.cast(x=getattr(mb, op)(x=mb.greater(x=x, y=np.float32(0)),
                                                           y=mb.greater(x=y, y=np.float32(0))), dtype="int32"),
                lambda x, y: expected(x > 0, y > 0).int(), X, Y)


I = np.array([3, -7, 12, 5], np.int32)     # noqa: E741
J = np.array([2, 2, -5, 5], np.int32)

ELEMENTWISE = [
    binary("add", torch.add), binary("add", torch.add, X, normal(4, 1)), binary("sub", torch.sub),
    binary("mul", torch.mul), binary("mul", torch.mul, I, J), binary("real_div", torch.div),
    binary("floor_div", lambda x, y: torch.floor(x / y)), binary("floor_div", torch.floor_divide, I, J),
    binary("mod", torch.remainder), binary("pow", torch.pow, POSITIVE), binary("maximum", torch.maximum),
    binary("minimum", torch.minimum),
    truth("greater", torch.gt), truth("greater_equal", torch.ge), truth("less", torch.lt),
    truth("less_equal", torch.le), truth("equal", torch.eq), truth("not_equal", torch.ne),
    logic("logical_and", torch.logical_and), logic("logical_or", torch.logical_or),
    logic("logical_xor", torch.logical_xor),
    case("logical_not", lambda x: mb.cast(x=mb.logical_not(x=mb.greater(x=x, y=np.float32(0))), dtype="fp32"),
         lambda x: (x <= 0).float(), X),
    case("select", lambda x, y: mb.select(cond=mb.greater(x=x, y=y), a=x, b=mb.square(x=y)),
         lambda x, y: torch.where(x > y, x, y * y), X, Y),
    *(unary(op, getattr(torch, op)) for op in ("abs", "cos", "sin", "erf", "exp", "exp2", "relu", "sigmoid", "tanh",
                                               "ceil", "floor", "round", "sign", "square", "tan", "atan")),
    unary("silu", F.silu), unary("softplus", F.softplus), unary("softsign", F.softsign),
    unary("relu6", F.relu6, X * 5), unary("sqrt", torch.sqrt, POSITIVE),
    unary("log", lambda x: torch.log(x + 0.5), POSITIVE, epsilon=0.5),
    unary("log", torch.log, POSITIVE),
    unary("rsqrt", lambda x: torch.rsqrt(x + 0.25), POSITIVE, epsilon=0.25),
    unary("inverse", lambda x: 1 / (x + 0.5), POSITIVE, epsilon=0.5),
    unary("clip", lambda x: x.clamp(-0.5, 0.75), alpha=-0.5, beta=0.75),
    unary("thresholded_relu", lambda x: F.threshold(x, 0.25, 0), alpha=0.25),
    unary("threshold", lambda x: x.clamp(min=0.25), alpha=0.25),
    unary("leaky_relu", lambda x: F.leaky_relu(x, 0.2), alpha=0.2),
    unary("elu", lambda x: F.elu(x, 0.5), alpha=0.5),
    case("fill_like", lambda x: mb.fill_like(ref_tensor=x, value=2.5), lambda x: torch.full_like(x, 2.5), X),
    unary("linear_activation", lambda x: 0.5 * x + 2, alpha=0.5, beta=2.0),
    unary("scaled_tanh", lambda x: 0.5 * torch.tanh(2 * x), alpha=0.5, beta=2.0),
    unary("sigmoid_hard", lambda x: (0.2 * x + 0.5).clamp(0, 1), alpha=0.2, beta=0.5),
    case("prelu", lambda x: mb.prelu(x=x, alpha=GAMMA), lambda x: F.prelu(x, T(GAMMA)), X),
    unary("gelu", F.gelu, mode="EXACT"),
    unary("gelu", lambda x: F.gelu(x, approximate="tanh"), mode="TANH_APPROXIMATION"),
    unary("gelu", lambda x: x * torch.sigmoid(1.702 * x), mode="SIGMOID_APPROXIMATION"),
    unary("cast", lambda x: x.int(), X * 9, dtype="int32"),
    unary("identity", lambda x: x),
    unary("softmax", lambda x: x.softmax(1), axis=1), unary("softmax", lambda x: x.softmax(-1), X * 50, axis=-1),
]

NORMS = [
    case("layer_norm last", lambda x: mb.layer_norm(x=x, axes=[-2, -1], gamma=normal(4, 5), beta=normal(4, 5, seed=9),
                                                    epsilon=1e-3),
         lambda x: F.layer_norm(x, (4, 5), T(normal(4, 5)), T(normal(4, 5, seed=9)), 1e-3), X),
    case("layer_norm channels", lambda x: mb.layer_norm(x=x, axes=[1], gamma=GAMMA, beta=BETA, epsilon=1e-5),
         lambda x: F.layer_norm(x.movedim(1, -1), (3,), T(GAMMA), T(BETA)).movedim(-1, 1), X),
    case("layer_norm all, plain", lambda x: mb.layer_norm(x=x, axes=[0, 1, 2, 3]),
         lambda x: F.layer_norm(x, x.shape), X),
    case("batch_norm", lambda x: mb.batch_norm(x=x, mean=MEAN, variance=VARIANCE, gamma=GAMMA, beta=BETA, epsilon=1e-2),
         lambda x: F.batch_norm(x, T(MEAN), T(VARIANCE), T(GAMMA), T(BETA), eps=1e-2), X),
    case("batch_norm plain, rank 3", lambda x: mb.batch_norm(x=x, mean=MEAN, variance=VARIANCE),
         lambda x: F.batch_norm(x, T(MEAN), T(VARIANCE)), X[..., 0]),
    case("instance_norm", lambda x: mb.instance_norm(x=x, gamma=GAMMA, beta=BETA, epsilon=1e-3),
         lambda x: F.instance_norm(x, weight=T(GAMMA), bias=T(BETA), eps=1e-3), X),
    case("l2_norm", lambda x: mb.l2_norm(x=x, epsilon=1e-2),
         lambda x: x / torch.sqrt(x.square().sum((1, 2, 3), keepdim=True) + 1e-2), X),
]


def reduction(op: str, expected: Callable, x: np.ndarray, axes: list[int], keep: bool) -> MilOpCase:
    return case(f"{op} {axes} {keep}", lambda x: getattr(mb, op)(x=x, axes=axes, keep_dims=keep),
                lambda x: expected(x, axes, keepdim=keep), x)


REDUCTIONS = [
    *(reduction(op, function, x, axes, keep) for op, function, x in (
          ("reduce_sum", torch.sum, X), ("reduce_mean", torch.mean, X), ("reduce_max", torch.amax, X),
          ("reduce_min", torch.amin, X), ("reduce_log_sum_exp", torch.logsumexp, X),
          ("reduce_sum_square", lambda x, axes, keepdim: x.square().sum(axes, keepdim=keepdim), X),
          ("reduce_l2_norm", lambda x, axes, keepdim: x.square().sum(axes, keepdim=keepdim).sqrt(), X),
          ("reduce_l1_norm", lambda x, axes, keepdim: x.abs().sum(axes, keepdim=keepdim), X),
          ("reduce_log_sum", lambda x, axes, keepdim: x.sum(axes, keepdim=keepdim).log(), POSITIVE))
      for axes, keep in (([1, -1], False), ([2], True))),
    case("reduce_sum all", lambda x: mb.reduce_sum(x=x), lambda x: x.sum(), X),
    case("reduce_prod", lambda x: mb.reduce_prod(x=x, axes=[0, 2]), lambda x: x.prod(2).prod(0), X),
    case("reduce_argmax", lambda x: mb.reduce_argmax(x=x, axis=2, keep_dims=True),
         lambda x: x.argmax(2, keepdim=True), X),
    case("reduce_argmin", lambda x: mb.reduce_argmin(x=x, axis=-1), lambda x: x.argmin(-1), X),
    case("reduce_argmax iOS15", lambda x: mb.reduce_argmax(x=x, axis=1), lambda x: x.argmax(1), X,
         target=ct.target.iOS15),
    case("cumsum", lambda x: mb.cumsum(x=x, axis=2), lambda x: x.cumsum(2), X),
    case("cumsum exclusive", lambda x: mb.cumsum(x=x, axis=1, exclusive=True), lambda x: x.cumsum(1) - x, X),
    case("cumsum reverse", lambda x: mb.cumsum(x=x, axis=3, reverse=True), lambda x: x.flip(3).cumsum(3).flip(3), X),
    case("topk", lambda x: mb.topk(x=x, k=2, axis=-1), lambda x: tuple(x.topk(2)), X),
    case("topk ascending", lambda x: mb.topk(x=x, k=3, axis=2, ascending=True),
         lambda x: tuple(x.topk(3, 2, largest=False)), X),
    case("argsort", lambda x: mb.argsort(x=x, axis=3, ascending=True), lambda x: x.argsort(3), X),
]


def conv(name: str, expected: Callable, x: np.ndarray = X, weight: np.ndarray = W, **attributes) -> MilOpCase:
    return case(f"conv {name}", lambda x: mb.conv(x=x, weight=weight, **attributes), expected, x)


def transposed(name: str, expected: Callable, x: np.ndarray = X, weight: np.ndarray | None = None,
               **attributes) -> MilOpCase:
    weight = normal(3, 4, 3, 3, seed=7) if weight is None else weight
    return case(f"conv_transpose {name}", lambda x: mb.conv_transpose(x=x, weight=weight, **attributes), expected, x)


def einsum(equation: str, *arrays: np.ndarray) -> MilOpCase:
    return case(f"einsum {equation}", lambda x, y: mb.einsum(values=(x, y), equation=equation),
                lambda x, y: torch.einsum(equation, x, y), *arrays)


V = normal(3, 4, 3, 3, seed=7)
BIAS4, BIAS6 = normal(4, seed=8), normal(6, seed=8)
NARROW, LONG = normal(6, 3, 1, 1), normal(2, 3, 11)

PRODUCTS = [
    conv("valid", lambda x: F.conv2d(x, T(W))),
    conv("custom, strides, dilations, bias",
         lambda x: F.conv2d(F.pad(x, (0, 3, 1, 2)), T(W), T(BIAS6), (2, 1), 0, (1, 2)),
         bias=BIAS6, strides=[2, 1], dilations=[1, 2], pad_type="custom", pad=[1, 2, 0, 3]),
    conv("same", lambda x: F.conv2d(F.pad(x, (0, 1, 1, 1)), T(W)), pad_type="same"),
    conv("same, even and odd sizes", lambda x: F.conv2d(F.pad(x, (0, 1, 0, 1)), T(W), stride=2), strides=[2, 2],
         pad_type="same"),
    conv("same_lower", lambda x: F.conv2d(F.pad(x, (1, 0, 1, 1)), T(W)), pad_type="same_lower"),
    conv("groups", lambda x: F.conv2d(x, T(normal(6, 1, 2, 2)), groups=3), weight=normal(6, 1, 2, 2), groups=3),
    conv("1×1", lambda x: F.conv2d(x, T(NARROW)), weight=NARROW),
    conv("1×1, one row, bias", lambda x: F.conv2d(x, T(NARROW), T(BIAS6)), x=normal(1, 3, 1, 7), weight=NARROW,
         bias=BIAS6),
    conv("1×1, stride", lambda x: F.conv2d(x, T(NARROW), stride=2), weight=NARROW, strides=[2, 2]),
    conv("rank 3", lambda x: F.conv1d(x, T(W[..., 0]), padding=1), x=LONG, weight=W[..., 0], pad_type="custom",
         pad=[1, 1]),
    transposed("valid", lambda x: F.conv_transpose2d(x, T(V), T(BIAS4)), weight=V, bias=BIAS4),
    transposed("custom, strides", lambda x: F.conv_transpose2d(x, T(V), stride=(2, 3))[..., 1:-2, 2:],
               weight=V, strides=[2, 3], pad_type="custom", pad=[1, 2, 2, 0]),
    transposed("same", lambda x: F.conv_transpose2d(x, T(V), stride=2)[..., :8, :10], weight=V, strides=[2, 2],
               pad_type="same"),
    transposed("output shape", lambda x: F.conv_transpose2d(x, T(V), T(BIAS4), stride=2, padding=1, output_padding=1),
               weight=V, bias=BIAS4, strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1], output_shape=[2, 4, 8, 10]),
    transposed("output beyond the last input",
               lambda x: F.conv_transpose1d(x, T(normal(3, 4, 2)), T(BIAS4), stride=4, output_padding=2), x=LONG,
               weight=normal(3, 4, 2), bias=BIAS4, strides=[4], output_shape=[2, 4, 44]),
    transposed("output beyond the last input, cropped before",
               lambda x: F.conv_transpose1d(x, T(normal(3, 4, 2)), T(BIAS4), stride=4, output_padding=3)[..., 1:],
               x=LONG, weight=normal(3, 4, 2), bias=BIAS4, strides=[4], pad_type="custom", pad=[1, 0],
               output_shape=[2, 4, 44]),
    transposed("groups, dilation", lambda x: F.conv_transpose1d(x, T(normal(3, 2, 4)), groups=3, dilation=2), x=LONG,
               weight=normal(3, 2, 4), groups=3, dilations=[2]),
    case("linear", lambda x: mb.linear(x=x, weight=normal(7, 5), bias=normal(7)),
         lambda x: F.linear(x, T(normal(7, 5)), T(normal(7))), X),
    case("matmul", lambda x, y: mb.matmul(x=x, y=y, transpose_y=True), lambda x, y: x @ y.mT, X, Y),
    case("matmul transposed, broadcast", lambda x, y: mb.matmul(x=x, y=y, transpose_x=True),
         lambda x, y: x.mT @ y, X, normal(4, 6)),
    *(einsum(equation, normal(*x), normal(*y, seed=1)) for equation, x, y in (      # the two products of attention
        ("bkhc,bchq->bkhq", (1, 6, 2, 4), (1, 4, 2, 5)), ("bchk,bkhq->bchq", (1, 4, 2, 6), (1, 6, 2, 5)))),
    case("attention", lambda x, y: mb.scaled_dot_product_attention(query=x, key=y, value=mb.square(x=y)),
         lambda x, y: F.scaled_dot_product_attention(x, y, y * y), X, Y),
    case("attention, mask", lambda x, y, mask: mb.scaled_dot_product_attention(query=x, key=y, value=y, attn_mask=mask),
         lambda x, y, mask: F.scaled_dot_product_attention(x, y, y, mask), X, Y, normal(1, 1, 4, 4)),
    case("attention, boolean mask", lambda x, y: mb.scaled_dot_product_attention(
             query=x, key=y, value=y, attn_mask=np.tril(np.ones((4, 4), bool))),
         lambda x, y: F.scaled_dot_product_attention(x, y, y, is_causal=True), X, Y),
]


def sliced(name: str, expected: Callable, **attributes) -> MilOpCase:
    return case(f"slice_by_index {name}", lambda x: mb.slice_by_index(x=x, **attributes), expected, X)


MOVES = [
    case("concat", lambda x, y: mb.concat(values=[x, y, x], axis=-2), lambda x, y: torch.cat([x, y, x], -2), X, Y),
    case("concat interleaved", lambda x, y: mb.concat(values=[x, y], axis=1, interleave=True),
         lambda x, y: torch.stack([x, y], 2).flatten(1, 2), X, Y),
    case("split", lambda x: mb.split(x=x, num_splits=2, axis=2), lambda x: x.chunk(2, 2), X),
    case("split sizes", lambda x: mb.split(x=x, split_sizes=[1, 4], axis=-1), lambda x: x.split([1, 4], -1), X),
    case("stack", lambda x, y: mb.stack(values=[x, y], axis=1), lambda x, y: torch.stack([x, y], 1), X, Y),
    case("transpose", lambda x: mb.transpose(x=x, perm=[0, -1, 1, 2]), lambda x: x.permute(0, 3, 1, 2), X),
    case("reshape", lambda x: mb.reshape(x=x, shape=[0, 12, -1, 1]), lambda x: x.reshape(2, 12, 5, 1), X),
    case("reshape to another rank", lambda x: mb.reshape(x=x, shape=[0, -1, 2]), lambda x: x.reshape(3, 20, 2), X),
    case("squeeze", lambda x: mb.squeeze(x=x, axes=[1]), lambda x: x[:, 0], normal(1, 1, 3)),
    case("squeeze all", lambda x: mb.squeeze(x=x), lambda x: x[0, 0], normal(1, 1, 3)),
    case("expand_dims", lambda x: mb.expand_dims(x=x, axes=[0, -1, 2]), lambda x: x[None, :, None, :, None],
         normal(2, 3)),
    case("reverse", lambda x: mb.reverse(x=x, axes=[1, 3]), lambda x: x.flip(1, 3), X),
    case("tile", lambda x: mb.tile(x=x, reps=[1, 2, 1, 3]), lambda x: x.repeat(1, 2, 1, 3), X),
    case("pad", lambda x: mb.pad(x=x, pad=[1, 2, 0, 3], constant_val=0.5),
         lambda x: F.pad(x, (0, 3, 1, 2), value=0.5), X),
    case("pad all axes", lambda x: mb.pad(x=x, pad=[1, 0, 0, 2, 0, 0, 3, 1]),
         lambda x: F.pad(x, (3, 1, 0, 0, 0, 2, 1, 0)), X),
    case("pad reflect", lambda x: mb.pad(x=x, pad=[1, 2, 3, 4], mode="reflect"),
         lambda x: F.pad(x, (3, 4, 1, 2), mode="reflect"), X),
    case("pad replicate", lambda x: mb.pad(x=x, pad=[0, 0, 0, 0, 4, 0, 1, 2], mode="replicate"),
         lambda x: F.pad(x, (1, 2, 4, 0), mode="replicate"), X),
    case("crop", lambda x: mb.crop(x=x, crop_height=[1, 2], crop_width=[0, 3]), lambda x: x[..., 1:-2, :-3], X),
    sliced("plain", lambda x: x[1:, 0:2, 1:3, 2:5], begin=[1, 0, 1, 2], end=[2, 2, 3, 5]),
    sliced("masks", lambda x: x[:, :2, 1:, :], begin=[1, 2, 1, 4], end=[1, 2, 0, 1],
           begin_mask=[True, True, False, True], end_mask=[True, False, True, True]),
    sliced("negative indices, strides", lambda x: x[:, :, -3:-1, ::2], begin=[0, 0, -3, 0], end=[2, 3, -1, 5],
           stride=[1, 1, 1, 2]),
    sliced("negative strides", lambda x: x.flip(3)[..., 1::2].flip(2)[:, :, :3], begin=[0, 0, 3, 3], end=[2, 3, 0, 0],
           stride=[1, 1, -1, -2], end_mask=[False, False, False, True]),
    sliced("squeeze", lambda x: x[1, :, -1, 1:4], begin=[1, 0, -1, 1], end=[0, 0, 0, 4],
           end_mask=[False, True, False, False], squeeze_mask=[True, False, True, False]),
    case("slice_by_index at run time", lambda x, at: mb.slice_by_index(x=x, begin=at, end=[2, 3, 4, 5],
                                                                       squeeze_mask=[True, False, False, False]),
         lambda x, at: x[1], X, np.array([1, 0, 0, 0], np.int32)),
    case("slice_by_size", lambda x: mb.slice_by_size(x=x, begin=[0, 1, 2, 3], size=[2, -1, 1, 2]),
         lambda x: x[:, 1:, 2:3, 3:5], X),
    sliced("backwards", lambda x: x.flip(1, 3)[..., ::2], begin=[0] * 4, end=[0] * 4, stride=[1, -1, 1, -2],
           begin_mask=[True] * 4, end_mask=[True] * 4),
    case("slice_update", lambda x, y: mb.slice_update(x=x, update=y, begin=[0, 2, 0, 3], end=[2, 3, 4, 5]),
         lambda x, y: torch.cat([x[:, :2], torch.cat([x[:, 2:, :, :3], y], 3)], 1), X, normal(2, 1, 4, 2)),
    case("slice_update strides", lambda x, y: mb.slice_update(x=x, update=y, begin=[0, 1, 0, 0], end=[2, 2, 4, 5],
                                                      stride=[1, 1, 2, 2]),
         lambda x, y: torch.cat([x[:, :1], x[:, 1:2].index_put(
             (torch.arange(2).view(2, 1, 1, 1), torch.tensor(0), torch.arange(0, 4, 2).view(2, 1),
              torch.arange(0, 5, 2)), y), x[:, 2:]], 1), X, normal(2, 1, 2, 3)),
    case("slice_update squeezed, backwards",
         lambda x, y: mb.slice_update(x=x, update=y, begin=[0, 1, 0, 3], end=[2, 0, 4, 0], stride=[1, 1, 1, -1],
                                      squeeze_mask=[False, True, False, False]),
         lambda x, y: torch.cat([x[:, :1], torch.cat([x[:, 1:2, :, :1], y.flip(-1)[:, None], x[:, 1:2, :, 4:]], -1),
                                 x[:, 2:]], 1), X, normal(2, 4, 3)),
    case("upsample_nearest_neighbor",
         lambda x: mb.upsample_nearest_neighbor(x=x, scale_factor_height=2, scale_factor_width=3),
         lambda x: x.repeat_interleave(2, 2).repeat_interleave(3, 3), X),
    case("upsample_bilinear corners",
         lambda x: mb.upsample_bilinear(x=x, scale_factor_height=2, scale_factor_width=3, align_corners=True),
         lambda x: F.interpolate(x, scale_factor=(2, 3), mode="bilinear", align_corners=True), X),
    case("upsample_bilinear centres",
         lambda x: mb.upsample_bilinear(x=x, scale_factor_height=1.5, scale_factor_width=2., align_corners=False),
         lambda x: F.interpolate(x, scale_factor=(1.5, 2), mode="bilinear", align_corners=False), X),
    case("pixel_shuffle", lambda x: mb.pixel_shuffle(x=x, upscale_factor=2), lambda x: F.pixel_shuffle(x, 2),
         normal(1, 8, 2, 3)),
    case("shape", lambda x: mb.shape(x=mb.square(x=x)), lambda x: torch.tensor(x.shape), X),
    case("fill", lambda n: mb.fill(shape=n, value=2.5), lambda n: torch.full((2, 3), 2.5), np.array([2, 3], np.int32)),
    case("range_1d", lambda n: mb.range_1d(start=1, end=mb.squeeze(x=n), step=2), lambda n: torch.arange(1, 8, 2),
         np.array([8], np.int32)),
    case("band_part", lambda x: mb.band_part(x=x, lower=1, upper=0), lambda x: x.tril().triu(-1), X),
]

AT = np.array([2, 0, 2], np.int32)
SCALES = np.float32([0.1, 0.02, 0.3])
ALONG = np.random.default_rng(3).integers(0, 3, (2, 2, 4, 5)).astype(np.int32)
INDICES = np.array([[0, 2], [1, 0]], np.int32)


def scattered(mode: str, expected: Callable) -> MilOpCase:
    return case(f"scatter {mode}", lambda x, at, y: mb.scatter(data=x, indices=at, updates=y, axis=1, mode=mode),
                lambda x, at, y: torch.stack([expected(x[:, 0], y[:, 1]), x[:, 1], expected(x[:, 2], y[:, 0])], 1),
                X, np.array([2, 0], np.int32), normal(2, 2, 4, 5, seed=5))


INDEXED = [
    case("gather", lambda x, at: mb.gather(x=x, indices=at, axis=1), lambda x, at: x[:, at], X, AT),
    case("gather rank 2, iOS15, negative", lambda x, at: mb.gather(x=x, indices=at, axis=-1),
         lambda x, at: x[..., at], X, np.array([[0, -1], [-2, 3]], np.int32), target=ct.target.iOS15),
    case("gather batch", lambda x, at: mb.gather(x=x, indices=at, axis=2, batch_dims=1),
         lambda x, at: torch.stack([x[0][:, at[0]], x[1][:, at[1]]]), X, INDICES),
    case("gather_along_axis", lambda x, at: mb.gather_along_axis(x=x, indices=at, axis=1),
         lambda x, at: x.gather(1, at), X, ALONG),
    case("gather_nd", lambda x, at: mb.gather_nd(x=x, indices=at), lambda x, at: x[at[:, 0], at[:, 1]], X, INDICES),
    *(scattered(mode, function) for mode, function in (
        ("update", lambda old, new: new), ("add", torch.add), ("sub", torch.sub), ("mul", torch.mul),
        ("div", torch.div), ("max", torch.maximum), ("min", torch.minimum))),
    case("scatter add to one index twice", lambda x, at, y: mb.scatter(data=x, indices=at, updates=y, axis=0),
         lambda x, at, y: torch.stack([x[0], x[1] + y[0] + y[1]]), X, np.array([1, 1], np.int32), Y),
    case("scatter_along_axis", lambda x, at, y: mb.scatter_along_axis(data=x, indices=at, updates=y, axis=1,
                                                                      mode="add"),
         lambda x, at, y: x.scatter_add(1, at, y), X, ALONG, normal(2, 2, 4, 5, seed=5)),
    case("scatter_nd", lambda x, at, y: mb.scatter_nd(data=x, indices=at, updates=y, mode="update"),
         lambda x, at, y: x.index_put((at[:, 0], at[:, 1]), y), X, INDICES, normal(2, 4, 5)),
    case("quantize and dequantize", lambda x: mb.dequantize(
        input=mb.quantize(input=x, scale=SCALES, zero_point=np.int8([0, 5, -3]), output_dtype="int8", axis=1),
        scale=SCALES, zero_point=np.int8([0, 5, -3]), axis=1),
         lambda x: torch.fake_quantize_per_channel_affine(x, T(SCALES), T(np.int32([0, 5, -3])), 1, -128, 127), X),
    case("one_hot", lambda at: mb.one_hot(indices=at, one_hot_vector_size=4, axis=0, on_value=2., off_value=-1.),
         lambda at: (F.one_hot(at.long(), 4).T * 3 - 1).float(), AT),
]


OP_CASES = ELEMENTWISE + NORMS + REDUCTIONS + PRODUCTS + MOVES + INDEXED
PACKAGES = [PackageOfCases([case for case in OP_CASES if case.target == target])
            for target in (ct.target.iOS15, ct.target.iOS18)]


def assert_equals_torch(case: MilOpCase, results: list[np.ndarray], atol: float = 2e-5) -> None:
    wanted = case.expected(*(T(array).long() if array.dtype.kind == "i" else T(array) for array in case.arrays))
    for actual, expected in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert actual.dtype == (np.float32 if expected.is_floating_point() else np.int32)
        np.testing.assert_allclose(actual, expected.numpy(), rtol=2e-5, atol=atol, equal_nan=True)
