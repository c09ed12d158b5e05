"""Estimate what a call of a Core ML function costs: the bytes it moves, its arithmetic, and its minimum time on a chip.

All figures are **estimates** from the program and from published data about chips, not measurements. They assume that
values of up to 2 MB stay on the chip, and that reading one layer's slice of a cache does not copy the slice. For
language models, others report that Core ML runs at 45 to 65 % of the speed that this minimum time would allow (Anemll,
CoreML-LLM, not measured by us).
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ane.backends.mil.package import Package, ProgramFunction, ProgramOp
from ane.backends.mil.values import DTYPES, Constant, Expression, Immediate, TensorType
from converters.neural_engine import ON_CHIP, Chip

DISPATCH = 0.23e-3  # shortest time of a call in seconds (ane-guide, chapter 9, measured on an M1)
CACHES = ("keys", "values", "recent_keys", "recent_values")  # inputs that hold the kv-cache
NEW = ("new_keys", "new_values")  # outputs that are new columns of the kv-cache
FORMULA = (
    "seconds per call = max(bytes / bandwidth, FLOPs / rate) + 0.23 ms for the dispatch. bytes = stored weights + "
    "cache read + cache written + rewritten slices of a state, which are read again + 6 bytes per element of an fp16 "
    "input or output + twice the size of every value above 2 MB, which is written once and read once. An element takes "
    "6 bytes because coremltools passes it as float32 and Core ML converts it. Values below 2 MB are assumed to stay "
    "on the chip. A chip that expands compressed weights in memory, as an M1 expands int8, moves more bytes"
)


@dataclass(frozen=True)
class FunctionCost:
    """The cost of one call of a function.

    Attributes:
        ops: Number of operations.
        weights: Bytes of weights that the operations read, as stored. A weight counts once for each operation that uses
            it.
        cache_read: Bytes of the kv-cache that the call reads: the inputs ``CACHES``, and the slices of states.
        cache_written: Bytes of the kv-cache that the call writes: the outputs ``NEW``, and the updated slices of
            states. If a state is not updated by a slice, the whole state counts.
        flops: FLOPs of convolutions, matrix products and einsums. A multiplication and an addition are 2 FLOPs.
        rewritten: Bytes of states that are read once more, because an operation computes a whole new state.
        converted: Bytes moved to convert inputs and outputs. Every fp16 element is read in one type and written in the
            other, fp16 or float32.
        large: Bytes of computed values that are larger than ``ON_CHIP``. Views, such as slices, do not count, and
            values that only rewrite a state do not count.
    """

    ops: int
    weights: int
    cache_read: int
    cache_written: int
    flops: int
    rewritten: int = 0
    converted: int = 0
    large: int = 0

    @property
    def moved(self) -> int:
        """Bytes that a call moves, according to ``FORMULA``."""
        return self.weights + self.cache_read + self.cache_written + self.rewritten + self.converted + 2 * self.large


def cost(package: Package, function: str | None = None) -> FunctionCost:
    """Compute the cost of one call of a function. Raises UserError if the package has no such function."""
    program = package.function(function)
    types = values(program)
    return FunctionCost(
        ops=len(program.ops),
        weights=sum(stored_bytes(constant) for _, constant in weights(program)),
        cache_read=_bytes(program.inputs, CACHES) + _state_read(program),
        cache_written=_bytes(program.outputs, NEW) + sum(_written(program)),
        flops=sum(_flops(op, program, types, package) for op in program.ops),
        rewritten=_written(program)[1],
        converted=_converted(program),
        large=_large(program),
    )


class CostEstimate(NamedTuple):
    """The shortest possible time of a call on a chip.

    Attributes:
        seconds: The time in seconds.
        bound: Name of the resource that limits the time: "bandwidth", "compute" or "dispatch".
    """

    seconds: float
    bound: str


def estimate(bytes: float, flops: float, chip: Chip, dispatch: float = DISPATCH) -> CostEstimate:
    """Estimate the seconds of a call with ``FORMULA``.

    The result is not a measurement. The formula is a roofline model (Williams et al. 2009, and ane-guide, chapter 9).
    """
    times = {"bandwidth": bytes / (chip.bandwidth * 1e9), "compute": flops / (chip.tflops * 1e12)}
    bound = max(times, key=times.__getitem__)
    return CostEstimate(times[bound] + dispatch, "dispatch" if dispatch > times[bound] else bound)


# Bytes of a function


def _bytes(types: dict[str, TensorType], names: Iterable[str]) -> int:
    return sum(nbytes(types[name]) for name in names if name in types)


def _state_read(function: ProgramFunction) -> int:
    """Return how many bytes of states the operations read.

    If the operations read only slices of a state, only the slices count. An operation that replaces a slice of a state
    does not count.
    """
    users_of, total = consumers(function), 0
    for op in function.ops:
        if op.type == "read_state":
            users = [user for name in op.outputs for user in users_of.get(name, ())]
            whole = sum(nbytes(type) for type in op.outputs.values())
            slices = sum(
                nbytes(type) for user in users if user.type == "slice_by_index" for type in user.outputs.values()
            )
            total += (
                whole
                if any(user.type not in ("slice_by_index", "slice_update") for user in users)
                else min(whole, slices)
            )
    return total


def _written(function: ProgramFunction) -> tuple[int, int]:
    """Return how many bytes of states a function writes as slices, and how many it writes as whole states."""
    types, makers = values(function), {name: op for op in function.ops for name in op.outputs}
    parts = whole = 0
    for op in function.ops:
        if op.type in ("write_state", "coreml_update_state"):
            maker = makers.get(op.arguments["data" if "data" in op.arguments else "value"][0])
            if maker is not None and maker.type == "slice_update":
                parts += nbytes(types[maker.arguments["update"][0]])
            else:
                whole += nbytes(types[op.arguments["input"][0]])
    return parts, whole


def _converted(function: ProgramFunction) -> int:
    """Return how many bytes a call moves to convert inputs from float32 to fp16, and outputs from fp16 to float32."""
    half, whole = (np.dtype(kind).itemsize for kind in (np.float16, np.float32))
    return sum(
        (half + whole) * type.size
        for type in (*function.inputs.values(), *function.outputs.values())
        if type.dtype == "fp16"
    )


VIEWS = frozenset(
    (
        "coreml_update_state",
        "expand_dims",
        "identity",
        "read_state",
        "reshape",
        "slice_by_index",
        "slice_by_size",
        "split",
        "squeeze",
        "write_state",
    )
)


def _large(function: ProgramFunction) -> int:
    """Return the bytes of all computed values that are larger than ``ON_CHIP``.

    Views do not count, and neither do values that are computed only to be written to a state.
    """
    users_of = consumers(function)
    rewriting: set[int] = set()
    for op in reversed(function.ops):
        uses = [use for name in op.outputs for use in users_of.get(name, ())]
        if op.type in ("coreml_update_state", "write_state") or (
            uses and all(id(use) in rewriting for use in uses) and not set(op.outputs) & set(function.outputs)
        ):
            rewriting.add(id(op))
    return sum(
        nbytes(type)
        for op in function.ops
        if op.type not in VIEWS and id(op) not in rewriting
        for type in op.outputs.values()
        if nbytes(type) > ON_CHIP
    )


# Arithmetic


def _flops(op: ProgramOp, function: ProgramFunction, types: dict[str, TensorType], package: Package) -> int:
    def shape(key: str, number: int = 0) -> tuple[int, ...]:
        binding = op.arguments[key][number]
        return (types[binding] if isinstance(binding, str) else binding.type).shape

    def constant(key: str) -> Any:
        return constant_of(op.arguments[key][0], function, package) if key in op.arguments else None

    computed = sum(size(type.shape) for type in op.outputs.values())
    if op.type == "conv":  # weight (O, C / groups, …kernel)
        return 2 * computed * size(shape("weight")[1:])
    if op.type == "conv_transpose":  # weight (C, O / groups, …kernel)
        return 2 * size(shape("x")) * size(shape("weight")[1:])
    if op.type == "matmul":
        return 2 * computed * shape("x")[-2 if (constant("transpose_x") or [False])[0] else -1]
    if op.type == "linear":  # weight (O, C)
        return 2 * computed * shape("weight")[-1]
    if op.type == "einsum":
        letters = constant("equation").split("->")[0].replace(" ", "").split(",")
        sizes = {
            letter: length
            for number, term in enumerate(letters)
            for letter, length in zip(term, shape("values", number), strict=True)
        }
        return 2 * size(sizes.values())
    if op.type == "scaled_dot_product_attention":  # (…, S, E), (…, keys, E), (…, keys, E')
        *_, keys, width = shape("value")
        return 2 * size(shape("query")[:-1]) * keys * (shape("query")[-1] + width)
    return 0


# Values and weights of a function


def values(function: ProgramFunction) -> dict[str, TensorType]:
    """Return the types of all values in a package's function, by name.

    Values are inputs, states, constants and results.
    """
    types = function.inputs | function.states | {name: value.type for name, value in function.constants.items()}
    for op in function.ops:
        types |= op.outputs
    return types


def nbytes(type: TensorType) -> int:
    """Return the size of a value in bytes. Dynamic dimensions count as 1."""
    return size(type.shape) * np.dtype(DTYPES[type.dtype]).itemsize if type.dtype in DTYPES and type.shape else 0


def size(shape: Iterable[int]) -> int:
    """Return the number of elements of a shape. A dynamic dimension, −1, counts as 1."""
    return prod(map(abs, shape))


def form(constant: Constant) -> str:
    """Return how a weight is stored: "dense", "palette", "int8", "blockwise", "sparse" or "other".

    "int8" means 8 bits with one scale per tensor or per channel. Weights with more scales are "blockwise".
    """
    if not isinstance(constant, Expression):
        return "dense"
    arguments = constant.arguments
    if constant.op == "constexpr_lut_to_dense":
        return "palette"
    if constant.op == "constexpr_sparse_to_dense":
        return "sparse"
    if constant.op == "constexpr_affine_dequantize":
        return "int8"
    if constant.op == "constexpr_blockwise_shift_scale":
        data, scale = arguments["data"].type, arguments["scale"].type
        per_channel = sum(size > 1 for size in scale.shape) <= 1 and max(scale.shape, default=1) in (1, *data.shape)
        return "int8" if per_channel and data.dtype.endswith("int8") else "blockwise"
    return "other"


def weights(function: ProgramFunction) -> Iterator[tuple[str, Constant]]:
    """Yield the name and constant of every weight, once for each operation that reads it.

    A constant that the program itself contains, such as an axis, is not a weight.
    """
    for op in function.ops:
        for binding in (binding for bindings in op.arguments.values() for binding in bindings):
            constant = function.constants.get(binding) if isinstance(binding, str) else binding
            if constant is not None and not isinstance(constant, Immediate):
                yield binding if isinstance(binding, str) else op.name, constant


def unique_weights(function: ProgramFunction) -> list[tuple[str, Constant]]:
    """List each weight once, with the first name under which an operation reads it."""
    first: dict[Hashable, tuple[str, Constant]] = {}
    for name, constant in weights(function):
        first.setdefault(constant.key, (name, constant))
    return list(first.values())


def unique_bytes(function: ProgramFunction) -> int:
    """Return the stored bytes of the weights of a package's function. Each weight counts once."""
    return sum(stored_bytes(constant) for _, constant in unique_weights(function))


def stored_bytes(constant: Constant) -> int:
    """Return the stored bytes of a constant. For a compressed constant, this is the sum over its components."""
    if isinstance(constant, Expression):
        return sum(stored_bytes(part) for part in constant.arguments.values())
    return 0 if constant.type.dtype == "string" else constant.type.stored_bytes


def constant_of(binding: str | Constant, function: ProgramFunction, package: Package) -> Any:
    """Return a constant argument as a list of Python numbers, or as a string.

    Return ``None`` for a computed argument.
    """
    constant = function.constants.get(binding) if isinstance(binding, str) else binding
    if constant is None:
        return None
    value = package.tensor(constant)
    return value if isinstance(value, str) else value.reshape(-1).tolist()


def consumers(function: ProgramFunction) -> dict[str, list[ProgramOp]]:
    """Return the operations that take each value as an argument, by the value's name."""
    users_of: dict[str, list[ProgramOp]] = {}
    for op in function.ops:
        for binding in (binding for bindings in op.arguments.values() for binding in bindings):
            if isinstance(binding, str):
                users_of.setdefault(binding, []).append(op)
    return users_of
