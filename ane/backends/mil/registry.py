"""Define the table of MIL ops, and convert an op's arguments to the arguments of a Python function.

The modules ops_* fill the table ``OPS`` when they are imported, with ``rows`` and the decorator ``op``. The table does
not change after that.
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

# function that rounds the intermediate results of a norm to fp16, or returns them unchanged
Rounding = Callable[[Tensor], Tensor]

# annotation of a function's parameter → function that converts the tensor of the op's argument
CONVERTERS: dict[object, Callable] = {
    Tensor: lambda value: value,
    str: lambda value: value,
    int: lambda value: int(value),
    float: lambda value: float(value),
    bool: lambda value: bool(value),
    Ints: lambda value: tuple(value.reshape(-1).tolist()),
    Bools: lambda value: tuple(value.reshape(-1).tolist()),
}
# The types of lambdas' parameters, which cannot have annotations, by coremltools's name of the op's argument. A
# parameter that is not listed takes a tensor.
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
    """The implementation of an op.

    Attributes:
        function: Function on float32, int64 or bool tensors. It must not change them in place.
        exact: Whether the op only moves values, so that its results need no rounding.
    """

    function: Callable
    exact: bool = False

    @cached_property
    def converters(self) -> dict[str, Callable]:
        """The functions that convert arguments, by parameter name.

        ``variadic`` parameters and ``inner`` have no converter.
        """
        return {name: CONVERTERS[kind] for name, kind in self.kinds.items() if kind in CONVERTERS}

    @cached_property
    def variadic(self) -> frozenset[str]:
        """The names of the parameters that take several tensors (``Tensors``)."""
        return frozenset(name for name, kind in self.kinds.items() if kind == Tensors)

    @cached_property
    def numbers(self) -> frozenset[str]:
        """The names of the parameters that are single floats, such as the epsilon of a norm."""
        return frozenset(name for name, kind in self.kinds.items() if kind is float)

    @cached_property
    def kinds(self) -> dict[str, object]:
        """The annotation of each parameter, without ``None``.

        A parameter without an annotation has the kind in ``KINDS``.
        """
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
    """Make a ``Kernel`` from each function, by op name. ``wrap`` adapts a function to the parameters of its op."""
    return {name: Kernel(wrap(function), exact) for name, function in functions.items()}


def op(function: Callable | None = None, *, exact: bool = False) -> Callable:
    """Register a function as the implementation of the op that has the function's name."""

    def register(function: Callable) -> Callable:
        OPS[function.__name__] = Kernel(function, exact)
        return function

    return register if function is None else register(function)
