"""Register MIL ops in a table, and convert an op's arguments to the arguments of a Python function.

``rows`` and the decorator ``op`` fill ``OPS`` when the modules ops_* are imported. It does not change after that.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

Ints = tuple[int, ...]
Bools = tuple[bool, ...]
Tensors = tuple[Tensor, ...]

# rounds the intermediate results of a norm to fp16, or not at all
Rounding = Callable[[Tensor], Tensor]

# annotation of a parameter → function that converts the argument's tensor
CONVERTERS: dict[object, Callable] = {
    Tensor: lambda value: value,
    str: lambda value: value,
    int: lambda value: int(value),
    float: lambda value: float(value),
    bool: lambda value: bool(value),
    Ints: lambda value: tuple(value.reshape(-1).tolist()),
    Bools: lambda value: tuple(value.reshape(-1).tolist()),
}
# kind of a parameter without annotation, by its name in coremltools' documentation of the ops; others take a tensor
KINDS: dict[str, object] = {
    **dict.fromkeys(("axis", "downscale_factor", "num_splits", "upscale_factor"), int),
    **dict.fromkeys(("alpha", "beta", "epsilon"), float),
    **dict.fromkeys(("ascending", "keep_dims", "transpose_x", "transpose_y", "validate_indices"), bool),
    **dict.fromkeys(("dtype", "equation", "output_dtype"), str),
    **dict.fromkeys(("axes", "crop_height", "crop_width", "perm", "reps", "shape", "split_sizes"), Ints),
    "values": Tensors,
}


@dataclass(frozen=True)
class Kernel:
    """The implementation of an op on float32, int64 or bool tensors, which it must not change in place.

    ``exact`` says that the op only moves values, so that its results need no rounding.
    """

    function: Callable
    exact: bool = False

    @cached_property
    def converters(self) -> dict[str, Callable]:
        """Return the function that converts each argument, except ``variadic`` ones and ``inner``."""
        return {name: CONVERTERS[kind] for name, kind in self.kinds.items() if kind in CONVERTERS}

    @cached_property
    def variadic(self) -> frozenset[str]:
        """Return the parameters that take several tensors (``Tensors``)."""
        return frozenset(name for name, kind in self.kinds.items() if kind == Tensors)

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Return the parameters that are single numbers, such as the epsilon of a norm."""
        return frozenset(name for name, kind in self.kinds.items() if kind is float)

    @cached_property
    def kinds(self) -> dict[str, object]:
        """Return each parameter's annotation without None, or the kind that ``KINDS`` has for its name."""
        kinds = {}
        for name, parameter in inspect.signature(self.function).parameters.items():
            bare = parameter.annotation is inspect.Parameter.empty
            kind = KINDS.get(name, Tensor) if bare else parameter.annotation
            if isinstance(kind, types.UnionType):
                kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
            kinds[name] = kind
        return kinds


OPS: dict[str, Kernel] = {}


def rows(
    functions: Mapping[str, Callable],
    wrap: Callable[[Callable], Callable] = lambda function: function,
    exact: bool = False,
) -> dict[str, Kernel]:
    """Return the implementations of ops by name. ``wrap`` gives a function the parameters of its op."""
    return {name: Kernel(wrap(function), exact) for name, function in functions.items()}


def op(function: Callable | None = None, *, exact: bool = False) -> Callable:
    """Register a function as the implementation of the op with its name."""

    def register(function: Callable) -> Callable:
        OPS[function.__name__] = Kernel(function, exact)
        return function

    return register if function is None else register(function)
