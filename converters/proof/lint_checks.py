"""Find the operations, values and weights of a Core ML function that break a rule of ``converters.proof.lint``."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from ane.backends.mil.package import Package, ProgramFunction, ProgramOp
from ane.backends.mil.values import Constant, TensorType
from converters.neural_engine import MAX_AXIS, MAX_CHANNELS
from converters.proof.cost import VIEWS, constant_of, form, unique_weights, values

MAX_RANK = 4
MAX_UPSAMPLE = 2
MAX_BRANCHES = 11  # an operation may take at most this many computed values
BOUNDED = ("softmax", "sigmoid", "tanh", "sin", "cos")  # ops whose outputs are too small to overflow in a slice


class Violation(NamedTuple):
    """A violation of a rule by one operation or value.

    Attributes:
        op: Type of the operation. For a value that no operation computes: "input", "output", "state" or "weight".
        name: Name of the operation or value.
        what: Description of the violation.
    """

    op: str
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.op} {self.name}: {self.what}"


class LintedFunction:
    """A function of a package, and properties that the checks of rules need."""

    def __init__(self, package: Package, function: ProgramFunction):
        self.package, self.function, self.ops = package, function, function.ops
        self.types = values(function)

    @cached_property
    def activations(self) -> list[tuple[str, str, TensorType]]:
        """All inputs, states and computed values, as triples.

        A triple has the type of the operation that computes the value, the name of the value, and its type. An input
        has "input" instead of an operation, and a state has "state".
        """
        inputs = [("input", name, type) for name, type in self.function.inputs.items()]
        states = [("state", name, type) for name, type in self.function.states.items()]
        return inputs + states + [(op.type, name, type) for op in self.ops for name, type in op.outputs.items()]

    @cached_property
    def producers(self) -> dict[str, str]:
        """The type of the operation that computes each value, by the value's name."""
        return {name: op.type for op in self.ops for name in op.outputs}

    def argument_type(self, op: ProgramOp, key: str) -> TensorType:
        binding = op.arguments[key][0]
        return self.types[binding] if isinstance(binding, str) else binding.type

    def constant(self, op: ProgramOp, key: str) -> Any:
        """Return a constant argument as a list of numbers or as a string.

        If the argument is missing or computed, return ``None``.
        """
        return constant_of(op.arguments[key][0], self.function, self.package) if key in op.arguments else None


Check = Callable[[LintedFunction], Iterable[Violation]]


# Checks of shapes and types


def values_where(breaks: Callable[[str, TensorType], bool], what: str) -> Check:
    """Create a check that reports every value for which ``breaks(type of operation, type of value)`` is true.

    The report of a value is ``what`` and the value's shape.
    """
    return lambda function: (
        Violation(op, name, f"{what}: {type.shape}") for op, name, type in function.activations if breaks(op, type)
    )


def above_rank_4(function: LintedFunction) -> Iterator[Violation]:
    constants = [("weight", name, constant.type) for name, constant in unique_weights(function.function)]
    for op, name, type in function.activations + constants:
        if len(type.shape) > MAX_RANK:
            yield Violation(op, name, f"rank {len(type.shape)}: {type.shape}")


def is_long(op: str, type: TensorType) -> bool:
    channels = type.shape[1] if len(type.shape) == MAX_RANK else 0
    others = [size for axis, size in enumerate(type.shape) if not (channels and axis == 1)]
    return channels > MAX_CHANNELS or max(others, default=0) > MAX_AXIS


def integer_io(function: LintedFunction) -> Iterator[Violation]:
    if function.function.states and not any(
        function.types[op.name].dtype.startswith("fp")
        for op in function.ops
        if op.outputs and op.type not in VIEWS | {"cast", "slice_update"}
    ):
        return  # a function that only copies values to a state need not run on the engine
    for kind, types in (("input", function.function.inputs), ("output", function.function.outputs)):
        for name, type in types.items():
            if not type.dtype.startswith("fp"):
                yield Violation(kind, name, f"{type.dtype} {type.shape}")


def fp32_values(function: LintedFunction) -> Iterator[Violation]:
    yield from (
        Violation("input", name, f"fp32 {type.shape}")
        for name, type in function.function.inputs.items()
        if type.dtype == "fp32"
    )
    for op in function.ops:
        if any(type.dtype == "fp32" for type in op.outputs.values()):
            yield Violation(op.type, op.name, "computes in fp32")
        elif op.type == "cast" and function.argument_type(op, "x").dtype == "fp32":
            yield Violation(op.type, op.name, "casts from fp32")


# Checks of ops


def ops(
    *types: str, where: Callable[[LintedFunction, ProgramOp], str | bool | None] = lambda function, op: op.type
) -> Check:
    """Create a check that reports operations of some types (default: all types).

    ``where`` takes the function and an operation. ``where`` returns a description of the violation, or a false value if
    the operation breaks no rule.
    """

    def check(function: LintedFunction) -> Iterator[Violation]:
        for op in function.ops:
            what = where(function, op) if not types or op.type in types else None
            if what:
                yield Violation(op.type, op.name, str(what))

    return check


def odd_stride(function: LintedFunction, op: ProgramOp) -> str | bool:
    strides = function.constant(op, "strides") or []
    return any(stride > 1 and stride % 2 for stride in strides) and f"strides {strides}"


def upsampled(function: LintedFunction, op: ProgramOp) -> str | bool:
    if not op.type.startswith(("upsample_", "resize")):
        return False
    before, after = function.argument_type(op, "x").shape, op.outputs[op.name].shape
    factor = max((large / small for small, large in zip(before, after, strict=True)), default=1)
    return factor > MAX_UPSAMPLE and f"by {factor:g}"


def many_branches(function: LintedFunction, op: ProgramOp) -> str | bool:
    taken = {
        binding
        for bindings in op.arguments.values()
        for binding in bindings
        if isinstance(binding, str) and binding in function.producers
    }
    return len(taken) > MAX_BRANCHES and f"takes {len(taken)} computed values"


def width_slice(function: LintedFunction, op: ProgramOp) -> str | bool:
    """Describe a slice of the last axis that has an offset, or return False.

    A split of the last axis is also reported, because all its outputs except the first are such slices.
    """
    x = op.arguments.get("x", ("",))[0]
    if function.producers.get(x) in BOUNDED:
        return False
    rank = len(function.argument_type(op, "x").shape)
    if op.type == "split":
        offset = (function.constant(op, "axis") or [0])[0] % max(rank, 1) == rank - 1
    else:
        begin, begin_mask = function.constant(op, "begin"), function.constant(op, "begin_mask")
        offset = bool(begin and begin[-1] and not (begin_mask and begin_mask[-1]))
    return offset and f"a part of the last axis of {function.argument_type(op, 'x').shape}"


# Checks of weights


def weights_where(breaks: Callable[[Constant], bool]) -> Check:
    def check(function: LintedFunction) -> Iterator[Violation]:
        for name, constant in unique_weights(function.function):
            if breaks(constant):
                parts = constant.arguments if form(constant) != "dense" else {}
                data = next((parts[key].type for key in ("data", "quantized_data") if key in parts), constant.type)
                yield Violation(constant.op, name, f"{data.dtype} {constant.type.shape}")

    return check
