"""Write a function of a saved Core ML package as a Core AI asset."""

from collections.abc import Mapping
from pathlib import Path

import coreai.authoring as ca
import numpy as np
from coreai._compiler.ir import ArrayAttr, DictAttr, StringAttr
from coreai.authoring import Value
from coreai.authoring.constant import constant
from coreai.authoring.graph_builder import GraphOp
from torch import Tensor

from ane.backends.coreai.lowering import LOWERINGS, Values, dtype_of, shape_of
from ane.backends.mil.package import Package, ProgramFunction, ProgramOp
from ane.backends.mil.registry import CONVERTERS, Tensors
from ane.backends.mil.values import DTYPES, Constant, TensorType
from ane.system.errors import UserError

# Attribute of a graph argument that is a state. Its value is the name of the output with the state's next value, and
# with this attribute Core AI passes the state as a handle.
STATE_ATTRIBUTE = "MutableBuffers.buffer_mutation"
INTEGERS = ("bool", "int32")  # integer dtypes that stay as they are: all others become int32


def write_asset(package: Package, function: str, path: Path, values: bool) -> None:
    """Write a function of a package as a Core AI asset.

    Weights, arithmetic and inputs become float32. States keep the dtype that the package declares.

    Args:
        package: The package.
        function: Name of the function.
        path: File to write (.aimodel). An existing file is replaced.
        values: Whether the function also returns the result of every op, by the op's name.

    Raises:
        UserError: An op or one of its arguments is not supported. The message names the op and the function.
    """
    module = ca.Module.create()
    with module:
        GraphWriter(package, package.function(function)).write(values)
    ca.AIProgram(module).save_asset(path)


class GraphWriter:
    """Writes one function into the Core AI module that is being built. It writes every constant only once."""

    def __init__(self, package: Package, function: ProgramFunction):
        self.package, self.function = package, function
        self._values: dict[str, Value] = {}
        self._states: dict[str, Value] = {}
        self._constants: dict[object, Value] = {}

    def write(self, values: bool) -> None:
        function = self.function
        types = {name: ca.TensorType(type.shape, self._dtype(type).type) for name, type in function.inputs.items()}
        types |= {name: ca.TensorType(type.shape, DTYPES[type.dtype]) for name, type in function.states.items()}
        graph = GraphOp(
            function.name,
            input_types=[type._to_mlir() for type in types.values()],
            result_types=[],
            input_names=list(types),
        )
        arguments = dict(zip(types, map(Value._from_mlir, graph.arguments), strict=True))
        self._values = {name: arguments[name] for name in function.inputs}
        self._states = {name: arguments[name] for name in function.states}
        with graph.block:
            for op in function.ops:
                self._write_op(op)
            names = [*function.outputs, *(name for op in function.ops for name in op.outputs if values)]
            results = {name: self._value(name) for name in dict.fromkeys(names)}
        next_states = {name: f"next_{name}" for name in function.states}
        results |= {next_states[name]: value for name, value in self._states.items()}
        graph.set_outputs_spec_from_dict({name: value._to_mlir() for name, value in results.items()})
        graph.arg_attrs = _with_states(graph.arg_attrs, list(types), next_states)

    def _write_op(self, op: ProgramOp) -> None:
        if op.type == "read_state":
            results = [self._states[op.arguments["input"][0]]]
        elif op.type == "write_state":
            name = op.arguments["input"][0]
            data = self._value(op.arguments["data"][0])
            self._states[name] = ca.cast(data, DTYPES[self.function.states[name].dtype])
            return
        else:
            try:
                results = LOWERINGS[op.type].function(**self._arguments(op)) if op.type in LOWERINGS else None
            except (NotImplementedError, ValueError, TypeError) as error:
                raise UserError(f"Core AI: {self._where(op)} is not supported: {error}") from error
            if results is None:
                raise UserError(f"Core AI: {self._where(op)} is not supported")
        for (name, type), result in zip(
            op.outputs.items(), results if isinstance(results, list) else [results], strict=True
        ):
            if not type.fits(shape_of(result)):
                raise RuntimeError(
                    f"{self._where(op)} has the shape {shape_of(result)}, but the program declares {type.shape}"
                )
            self._values[name] = self._as(result, type)

    def _where(self, op: ProgramOp) -> str:
        return f"op {op.type} ({op.name}) in function {self.function.name!r} of {self.package.path}"

    def _arguments(self, op: ProgramOp) -> dict[str, object]:
        """Return the arguments for the function that translates an op.

        Raises:
            TypeError: The function does not take one of the op's arguments.
        """
        kinds = LOWERINGS[op.type].kinds
        arguments: dict[str, object] = {}
        for key, parts in op.arguments.items():
            if key not in kinds:
                raise TypeError(f"its argument {key}")
            if kinds[key] in (Values, Tensors):
                arguments[key] = tuple(map(self._value, parts))
            elif kinds[key] in (Value, Tensor):
                arguments[key] = self._value(parts[0])
            else:
                part = self.function.constants.get(parts[0]) if isinstance(parts[0], str) else parts[0]
                if part is None:
                    raise TypeError(f"its argument {key} is not a constant")
                arguments[key] = CONVERTERS[kinds[key]](self.package.tensor(part))
        return arguments

    def _value(self, part: str | Constant) -> Value:
        """Return a value of the graph.

        If ``part`` is a name, this is the result of an earlier op. Otherwise, it is a constant.
        """
        if isinstance(part, str):
            if part in self._values:
                return self._values[part]
            part = self.function.constants[part]
        if part.key not in self._constants:
            tensor = self.package.tensor(part)
            self._constants[part.key] = constant(np.ascontiguousarray(tensor.numpy().astype(self._dtype(part.type))))
        return self._constants[part.key]

    def _as(self, value: Value, type: TensorType) -> Value:
        dtype = self._dtype(type)
        return value if dtype_of(value) == dtype else ca.cast(value, dtype.type)

    def _dtype(self, type: TensorType) -> np.dtype:
        """Return the dtype that values of this type have in the graph."""
        if type.dtype in ("fp16", "fp32"):
            return np.dtype(np.float32)
        return np.dtype(DTYPES[type.dtype if type.dtype in INTEGERS else "int32"])


def _with_states(attributes: ArrayAttr, names: list[str], states: Mapping[str, str]) -> ArrayAttr:
    """Add ``STATE_ATTRIBUTE`` to the attributes of those graph arguments that are states.

    Args:
        attributes: Attributes of all arguments of the graph.
        names: Names of these arguments.
        states: Name of the output with the next value of each state, by state name.
    """
    rows = []
    for name, row in zip(names, attributes, strict=True):
        entries = {item.name: item.attr for item in row}
        if name in states:
            entries[STATE_ATTRIBUTE] = StringAttr.get(states[name])
        rows.append(DictAttr.get(entries))
    return ArrayAttr.get(rows)
