"""The values and weights of a function: types, bytes, storage, and what takes them."""

from collections.abc import Hashable, Iterable, Iterator
from math import prod
from typing import Any

import numpy as np

from ane.backends.mil.package import Package, ProgramFunction, ProgramOp
from ane.backends.mil.values import DTYPES, Constant, Expression, Immediate, TensorType


def values(function: ProgramFunction) -> dict[str, TensorType]:
    """Types of all values by name: inputs, states, constants and outputs of ops."""
    types = function.inputs | function.states | {name: value.type for name, value in function.constants.items()}
    for op in function.ops:
        types |= op.outputs
    return types


def nbytes(type: TensorType, alignment: int = 1) -> int:
    """Bytes of a value, its last axis padded to a multiple of ``alignment`` bytes; dynamic dimensions count as 1."""
    if type.dtype not in DTYPES or not type.shape:
        return 0
    *outer, last = type.shape
    row = abs(last) * np.dtype(DTYPES[type.dtype]).itemsize
    return size(outer) * -(-row // alignment) * alignment


def size(shape: Iterable[int]) -> int:
    """Number of values of a shape; a dynamic dimension, −1, counts as 1."""
    return prod(map(abs, shape))


def form(constant: Constant) -> str:
    """The storage of a weight: dense, palette, int8 (a scale per tensor or channel), blockwise, sparse or other."""
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
    """Weights by name, once for each op that reads them: all constants that are not immediate values."""
    for op in function.ops:
        for binding in (binding for bindings in op.arguments.values() for binding in bindings):
            constant = function.constants.get(binding) if isinstance(binding, str) else binding
            if constant is not None and not isinstance(constant, Immediate):
                yield binding if isinstance(binding, str) else op.name, constant


def unique_weights(function: ProgramFunction) -> list[tuple[str, Constant]]:
    """As ``weights``, each once, by its first name."""
    first: dict[Hashable, tuple[str, Constant]] = {}
    for name, constant in weights(function):
        first.setdefault(constant.key, (name, constant))
    return list(first.values())


def unique_bytes(function: ProgramFunction) -> int:
    """Bytes of a function's weights as stored, each once."""
    return sum(stored_bytes(constant) for _, constant in unique_weights(function))


def stored_bytes(constant: Constant) -> int:
    """Bytes of a constant, or of all parts of a compressed one."""
    if isinstance(constant, Expression):
        return sum(stored_bytes(part) for part in constant.arguments.values())
    return 0 if constant.type.dtype == "string" else constant.type.stored_bytes


def constant_of(binding: str | Constant, function: ProgramFunction, package: Package) -> Any:
    """A constant argument as a list of Python numbers, or as a string; None when it is computed."""
    constant = function.constants.get(binding) if isinstance(binding, str) else binding
    if constant is None:
        return None
    value = package.tensor(constant)
    return value if isinstance(value, str) else value.reshape(-1).tolist()


def consumers(function: ProgramFunction) -> dict[str, list[ProgramOp]]:
    """The ops that take each value."""
    found: dict[str, list[ProgramOp]] = {}
    for op in function.ops:
        for binding in (binding for bindings in op.arguments.values() for binding in bindings):
            if isinstance(binding, str):
                found.setdefault(binding, []).append(op)
    return found
