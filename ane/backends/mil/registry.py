"""The table of MIL ops, and how an op's arguments become a Python function's."""

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

Ints = tuple[int, ...]
Bools = tuple[bool, ...]
Tensors = tuple[Tensor, ...]

# Rounds between the inner steps of a norm: to fp16, or not at all.
Rounding = Callable[[Tensor], Tensor]

# An op's function says by its annotations how it wants an argument: as the tensor, or as Python numbers.
CONVERTERS: dict[object, Callable] = {
    Tensor: lambda value: value,
    str: lambda value: value,
    int: lambda value: int(value),
    float: lambda value: float(value),
    bool: lambda value: bool(value),
    Ints: lambda value: tuple(value.reshape(-1).tolist()),
    Bools: lambda value: tuple(value.reshape(-1).tolist()),
}


@dataclass(frozen=True)
class Kernel:
    """How an op is computed: tensors are float32, int64 or bool, and never written to.

    exact: it only moves values, so that there is nothing to round.
    """

    function: Callable
    exact: bool

    @cached_property
    def converters(self) -> dict[str, Callable]:
        """Parameter → what makes its argument of a tensor; ``Tensors`` and ``inner`` are left out."""
        return {name: CONVERTERS[kind] for name, kind in self._kinds.items() if kind in CONVERTERS}

    @cached_property
    def variadic(self) -> frozenset[str]:
        return frozenset(name for name, kind in self._kinds.items() if kind == Tensors)

    @cached_property
    def has_inner(self) -> bool:
        return "inner" in self._kinds

    @cached_property
    def _kinds(self) -> dict[str, object]:
        kinds = {}
        for name, parameter in inspect.signature(self.function).parameters.items():
            kind = parameter.annotation
            if isinstance(kind, types.UnionType):
                kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
            kinds[name] = kind
        return kinds


KERNELS: dict[str, Kernel] = {}


def op(function: Callable | None = None, *, name: str | None = None, exact: bool = False) -> Callable:
    """Register a function for the op of its name (a trailing underscore avoids a builtin's)."""
    def register(function: Callable) -> Callable:
        KERNELS[name or function.__name__.rstrip("_")] = Kernel(function, exact)
        return function
    return register if function is None else register(function)
