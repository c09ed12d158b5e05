"""The checks of the Neural Engine lint: they find what in a function breaks a rule (converters/proof/lint_rules.py)."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from ane.backends.mil.package import Package, ProgramFunction, ProgramOp
from ane.backends.mil.values import Constant, TensorType
from converters.neural_engine import MAX_AXIS, MAX_CHANNELS, ON_CHIP, ROW_BYTES, STATE_WIDTH
from converters.proof.cost import MOVES
from converters.proof.program_values import constant_of, form, nbytes, size, unique_bytes, unique_weights, values

MAX_RANK, ENGINE_RANK = 4, 5            # of our graphs; that the engine supports
MAX_KERNEL = 13
MAX_UPSAMPLE = 2
MAX_STATES = 2
MAX_BYTES, MIN_BYTES = 950e6, 50e6      # of a function's weights
KERNEL_MEMORY = 2**16                   # bytes for the rows of a matmul's output
MAX_BRANCHES = 11                       # computed values that one op takes
CORES = 4                               # of an M1's engine


class Violation(NamedTuple):
    """A violation of a rule: type and name of the op (or "input", "weight", …), description, bytes of padding."""

    op: str
    name: str
    what: str
    wasted: int = 0


class LintedFunction:
    """A function of a package, with the queries that checks need."""

    def __init__(self, package: Package, function: ProgramFunction):
        self.package, self.function, self.ops = package, function, function.ops
        self.types = values(function)

    @cached_property
    def activations(self) -> list[tuple[str, str, TensorType]]:
        """(op type, name, type) of all values that ops compute; of inputs and states, "input" and "state" as op."""
        inputs = [("input", name, type) for name, type in self.function.inputs.items()]
        states = [("state", name, type) for name, type in self.function.states.items()]
        return inputs + states + [(op.type, name, type) for op in self.ops for name, type in op.outputs.items()]

    @cached_property
    def producers(self) -> dict[str, str]:
        """Value → type of the op that computes it."""
        return {name: op.type for op in self.ops for name in op.outputs}

    def type(self, op: ProgramOp, key: str) -> TensorType:
        binding = op.arguments[key][0]
        return self.types[binding] if isinstance(binding, str) else binding.type

    def constant(self, op: ProgramOp, key: str) -> Any:
        """A constant argument as a list of numbers or a string; None when it is missing or computed."""
        return constant_of(op.arguments[key][0], self.function, self.package) if key in op.arguments else None


# Checks of shapes and types

def rank(function: LintedFunction) -> Iterator[Violation]:
    constants = [("weight", name, constant.type) for name, constant in unique_weights(function.function)]
    for op, name, type in function.activations + constants:
        if len(type.shape) > MAX_RANK:
            yield Violation(op, name, f"rank {len(type.shape)}: {type.shape}")


def values_where(breaks: Callable[[str, TensorType], bool],
                 what: str) -> Callable[[LintedFunction], Iterator[Violation]]:
    """A check that reports every value, with its shape, for which ``breaks(type of op, type)`` is true."""
    return lambda function: (Violation(op, name, f"{what}: {type.shape}")
                             for op, name, type in function.activations if breaks(op, type))


def long_axis(function: LintedFunction) -> Iterator[Violation]:
    for op, name, type in function.activations:
        channels = type.shape[1] if len(type.shape) == MAX_RANK else 0
        others = [size for axis, size in enumerate(type.shape) if not (channels and axis == 1)]
        if channels > MAX_CHANNELS or max(others, default=0) > MAX_AXIS:
            yield Violation(op, name, f"a long dimension: {type.shape}")


def large_value(function: LintedFunction) -> Iterator[Violation]:
    for op, name, type in function.activations:
        if nbytes(type) > ON_CHIP:
            yield Violation(op, name, f"{nbytes(type) / 1e6:.1f} MB: {type.shape}")


def singleton_width(function: LintedFunction) -> Iterator[Violation]:
    for op, name, type in function.activations:
        if type.shape and type.shape[-1] == 1 and size(type.shape) > 1:
            wasted = nbytes(type, ROW_BYTES) - nbytes(type)
            what = f"{type.shape} takes {nbytes(type, ROW_BYTES):,} bytes for {nbytes(type):,}"
            yield Violation(op, name, what, wasted)


def unaligned_width(function: LintedFunction) -> Iterator[Violation]:
    for op, name, type in function.activations:
        wasted = nbytes(type, ROW_BYTES) - nbytes(type)
        if wasted and type.shape[-1] > 1:
            factor = nbytes(type, ROW_BYTES) / nbytes(type)
            yield Violation(op, name, f"last axis {type.shape[-1]}: {factor:.2f} times its memory", wasted)


def integer_io(function: LintedFunction) -> Iterator[Violation]:
    if function.function.states and not any(function.types[op.name].dtype.startswith("fp") for op in function.ops
                                            if op.outputs and op.type not in MOVES | {"cast"}):
        return              # it only copies to a state, which the CPU does as well
    for kind, types in (("input", function.function.inputs), ("output", function.function.outputs)):
        for name, type in types.items():
            if not type.dtype.startswith("fp"):
                yield Violation(kind, name, f"{type.dtype} {type.shape}")


def fp32_values(function: LintedFunction) -> Iterator[Violation]:
    for name, type in function.function.inputs.items():
        if type.dtype == "fp32":
            yield Violation("input", name, f"fp32 {type.shape}")
    for op in function.ops:
        if any(type.dtype == "fp32" for type in op.outputs.values()):
            yield Violation(op.type, op.name, "computes in fp32")
        elif op.type == "cast" and function.type(op, "x").dtype == "fp32":
            yield Violation(op.type, op.name, "casts from fp32")


# Checks of ops

def of_types(*types: str) -> Callable[[LintedFunction], Iterator[Violation]]:
    def check(function: LintedFunction) -> Iterator[Violation]:
        return (Violation(op.type, op.name, op.type) for op in function.ops if op.type in types)
    return check


def kernel(function: LintedFunction) -> Iterator[Violation]:
    for op in function.ops:
        if op.type in ("conv", "conv_transpose") and function.type(op, "weight").shape[-1] > MAX_KERNEL:
            yield Violation(op.type, op.name, f"kernel width {function.type(op, 'weight').shape[-1]}")


def dilation(function: LintedFunction) -> Iterator[Violation]:
    for op in function.ops:
        dilations = function.constant(op, "dilations") if op.type in ("conv", "conv_transpose") else None
        if max(dilations or [1]) > 1:
            yield Violation(op.type, op.name, f"dilations {dilations}")


def odd_stride(function: LintedFunction) -> Iterator[Violation]:
    for op in function.ops:
        strides = (function.constant(op, "strides") if op.type == "conv_transpose" else None) or []
        if any(stride > 1 and stride % 2 for stride in strides):
            yield Violation(op.type, op.name, f"strides {strides}")


def upsample(function: LintedFunction) -> Iterator[Violation]:
    for op in function.ops:
        if op.type.startswith(("upsample_", "resize")):
            before, after = function.type(op, "x").shape, op.outputs[op.name].shape
            factor = max((large / small for small, large in zip(before, after, strict=True)), default=1)
            if factor > MAX_UPSAMPLE:
                yield Violation(op.type, op.name, f"by {factor:g}")


def moved_width(function: LintedFunction) -> Iterator[Violation]:
    for op in function.ops:
        if op.type == "reshape":
            before, after = function.type(op, "x").shape, op.outputs[op.name].shape
            moves = before[-1:] != after[-1:]
        else:
            order = function.constant(op, "perm") if op.type == "transpose" else None
            moves = bool(order) and order[-1] % len(order) != len(order) - 1
        if moves:
            yield Violation(op.type, op.name, f"moves the last axis of {function.type(op, 'x').shape}")


def matmul_rows(function: LintedFunction) -> Iterator[Violation]:
    for op in function.ops:
        rows = op.outputs[op.name].shape[-2] if op.type == "matmul" else 0
        if 2 * rows > KERNEL_MEMORY:
            yield Violation(op.type, op.name, f"{rows} rows")


def branches(function: LintedFunction) -> Iterator[Violation]:
    for op in function.ops:
        taken = {binding for bindings in op.arguments.values() for binding in bindings
                 if isinstance(binding, str) and binding in function.producers}
        if len(taken) > MAX_BRANCHES:
            yield Violation(op.type, op.name, f"takes {len(taken)} computed values")


def groups(function: LintedFunction) -> Iterator[Violation]:
    for op in function.ops:
        groups = (function.constant(op, "groups") if op.type in ("conv", "conv_transpose") else None) or [1]
        if CORES % groups[0]:
            yield Violation(op.type, op.name, f"{groups[0]} groups")


def reflection(function: LintedFunction) -> Iterator[Violation]:
    for op in function.ops:
        if op.type == "pad" and function.constant(op, "mode") == "reflect":
            yield Violation(op.type, op.name, "pads by reflection")


def computed_slice(function: LintedFunction) -> Iterator[Violation]:
    for op in function.ops:
        if op.type in ("slice_by_index", "slice_by_size") and function.constant(op, "begin") is None:
            yield Violation(op.type, op.name, "begins at a computed index")


BOUNDED = ("softmax", "sigmoid", "tanh", "sin", "cos")      # their outputs are too small to overflow in a slice


def width_slice(function: LintedFunction) -> Iterator[Violation]:
    """A split of the last axis counts: all its parts but the first are such slices."""
    for op in function.ops:
        x = op.arguments.get("x", ("",))[0]
        if op.type in ("slice_by_index", "slice_by_size", "split") and function.producers.get(x) not in BOUNDED:
            rank = len(function.type(op, "x").shape)
            if op.type == "split":
                offset = (function.constant(op, "axis") or [0])[0] % max(rank, 1) == rank - 1
            else:
                begin, begin_mask = function.constant(op, "begin"), function.constant(op, "begin_mask")
                offset = bool(begin and begin[-1] and not (begin_mask and begin_mask[-1]))
            if offset:
                yield Violation(op.type, op.name, f"a part of the last axis of {function.type(op, 'x').shape}")


# Checks of weights and states

def states(function: LintedFunction) -> Iterator[Violation]:
    if len(function.function.states) > MAX_STATES:
        yield Violation("state", next(iter(function.function.states)), f"{len(function.function.states)} states")


def state_width(function: LintedFunction) -> Iterator[Violation]:
    for name, type in function.function.states.items():
        if type.shape and type.shape[-1] % STATE_WIDTH:
            yield Violation("state", name, f"last axis {type.shape[-1]}")


def small_palette(function: LintedFunction) -> Iterator[Violation]:
    for name, constant in unique_weights(function.function):
        if form(constant) == "palette" and constant.arguments["indices"].type.dtype == "uint4":
            yield Violation(constant.op, name, _stored_as(constant))


def weights_where(breaks: Callable[[int], bool]) -> Callable[[LintedFunction], Iterator[Violation]]:
    def check(function: LintedFunction) -> Iterator[Violation]:
        if breaks(found := unique_bytes(function.function)):
            yield Violation("weight", function.function.name, f"{found / 1e6:.1f} MB of weights")
    return check


def of_form(expected: str) -> Callable[[LintedFunction], Iterator[Violation]]:
    """A check that reports every weight of one form (``program_values.form``)."""
    def check(function: LintedFunction) -> Iterator[Violation]:
        for name, constant in unique_weights(function.function):
            if form(constant) == expected:
                yield Violation(constant.op, name, _stored_as(constant))
    return check


def _stored_as(constant: Constant) -> str:
    parts = constant.arguments
    data = next((parts[key].type for key in ("data", "quantized_data") if key in parts), constant.type)
    return f"{data.dtype} {constant.type.shape}"
