"""Run a function of a saved Core ML package, op by op, in torch on the CPU."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from ane.backends.mil import ops_elementwise, ops_layers, ops_shape  # noqa: F401  fill OPS
from ane.backends.mil.package import Package, ProgramOp
from ane.backends.mil.registry import OPS, Kernel, Rounding
from ane.backends.mil.values import DTYPES, Constant, TensorType, validate_inputs
from ane.backends.packaged.functions import Runtime
from ane.system.errors import UserError

# coremltools saves coreml_update_state as a write_state and a read_state
STATE_OPS = ("read_state", "write_state")
CONTROL_OPS = ("cond", "while_loop")
SMALLEST_NORMAL = torch.finfo(torch.float16).tiny


@dataclass(frozen=True)
class Arithmetic:
    """Says how the interpreter rounds the results of ops. States always keep the dtype that the package declares.

    Attributes:
        fp16: Whether to round the result of every op to the dtype that the program declares. ``False`` means that the
            interpreter computes everything in float32.
        narrow_norms: Whether layer_norm, batch_norm, instance_norm, l2_norm and softmax also round their intermediate
            results to fp16, such as the mean, the centred values and their squares. The least exact hardware would do
            so. Needs ``fp16``.
        flush: Whether to replace subnormal fp16 numbers (below 6.1e-5) by 0, also in stored weights. The Neural Engine
            of an M1 does so when it multiplies (ane-guide, chapter 3). Needs ``fp16``.
    """

    fp16: bool = False
    narrow_norms: bool = False
    flush: bool = False

    def __post_init__(self) -> None:
        if (self.narrow_norms or self.flush) and not self.fp16:
            raise ValueError("narrow_norms and flush need fp16")

    def rounded(self, tensor: Tensor) -> Tensor:
        """Round float32 numbers to fp16, and return them as float32."""
        tensor = tensor.half().float()
        return flushed(tensor) if self.flush else tensor


def flushed(tensor: Tensor) -> Tensor:
    """Replace subnormal fp16 numbers by 0."""
    return torch.where(tensor.abs() < SMALLEST_NORMAL, 0.0, tensor)


class InterpreterState(dict[str, np.ndarray]):
    """The states of a function, by name, in the dtypes that the function declares.

    ``predict`` updates them in place.
    """

    def copied(self) -> "InterpreterState":
        return InterpreterState({name: array.copy() for name, array in self.items()})


class Interpreter:
    """Runs one function of a package. The interpreter decodes a constant when an op first uses that constant."""

    def __init__(self, package: Package, function: str | None = None, arithmetic: Arithmetic = Arithmetic()):
        """Prepare to run a package's function.

        Args:
            package: Package that contains the function.
            function: Name of the function. ``None`` means the default function.
            arithmetic: Rule for rounding the results of ops.

        Raises:
            UserError: The package has no such function, the function takes an image, or the interpreter does not
                support an op of the function or an argument of such an op.
        """
        self.package = package
        self.function = package.function(function)
        self.arithmetic = arithmetic
        self.name = f"function {self.function.name!r} of {package.path}"
        if self.function.images:
            raise UserError(
                f"{self.name} takes an image ({', '.join(sorted(self.function.images))}), but the "
                "interpreter takes only arrays: convert the model with a TensorType instead of ImageType"
            )
        self._ops = [self._prepare(op) for op in self.function.ops]
        self._plan_frees()

    def make_state(self) -> InterpreterState:
        return InterpreterState(
            {name: np.zeros(type.shape, DTYPES[type.dtype]) for name, type in self.function.states.items()}
        )

    def predict(self, inputs: Mapping[str, np.ndarray], state: InterpreterState | None = None) -> dict[str, np.ndarray]:
        """Run the function and return its outputs as float32 or int32.

        Args:
            inputs: Arrays by name, in the declared shapes. You may pass floats of any width for fp16 and fp32, and
                integers of any width for int32.
            state: State from ``make_state``. This method updates it in place. ``None`` means that the function has no
                state.

        Raises:
            TypeError: An input has another name, shape or kind of numbers than the function declares, or the state
                differs from the declared state.
        """
        values = self._accept(inputs, state)
        for _ in self._run(values, state):
            pass
        return {name: self._output(values, name, type) for name, type in self.function.outputs.items()}

    def activations(
        self, inputs: Mapping[str, np.ndarray], state: InterpreterState | None = None
    ) -> Iterator[tuple[str, str, np.ndarray]]:
        """Run the function, and yield every op's result as soon as it is computed. ``predict`` explains the arguments.

        Yields:
            The name of the result, the type of the op, and the result as a float32 array. For the op write_state, the
            name is the state's name, and the result is the state's new value.
        """
        values = self._accept(inputs, state)
        for op in self._run(values, state):
            for name in op.outputs:
                yield name, op.type, values[name].float().numpy().copy()
            if op.written_state:
                yield op.written_state, op.type, state[op.written_state].astype(np.float32)

    @torch.inference_mode()
    def _run(self, values: dict[str, Tensor], state: InterpreterState | None) -> Iterator[ProgramOp]:
        """Run the ops, and yield each op after storing its results in ``values``.

        Delete results after their last use.
        """
        yield from self._run_ops(self._ops, values, state)

    def _run_ops(
        self, ops: "list[PreparedOp]", values: dict[str, Tensor], state: InterpreterState | None
    ) -> Iterator[ProgramOp]:
        for prepared in ops:
            try:
                results = self._results(prepared, values, state)
            except NotImplementedError as error:
                raise UserError(
                    f"the interpreter does not support {error} in the {self._where(prepared.op)}"
                ) from error
            except (RuntimeError, IndexError, TypeError, ValueError) as error:  # shapes do not fit each other
                raise UserError(
                    f"the {self._where(prepared.op)} cannot be computed: {str(error).partition(chr(10))[0]}"
                ) from error
            for (name, type), result in zip(prepared.op.outputs.items(), results, strict=True):
                if result.numel() == 1 and type.size == 1:
                    result = result.reshape(type.shape)  # coremltools confuses the shapes () and (1,)
                if not type.fits(tuple(result.shape)):
                    raise UserError(
                        f"the {self._where(prepared.op)} returned the shape {tuple(result.shape)} for "
                        f"{name}, but the program declares {type.shape}: the inputs do not fit each other, or "
                        "the package was converted wrongly"
                    )
                values[name] = self._declared(result, type.dtype, exact=prepared.exact)
            yield prepared.op
            for name in prepared.freed:
                values.pop(name, None)

    def _results(
        self, prepared: "PreparedOp", values: dict[str, Tensor], state: InterpreterState | None
    ) -> tuple[Tensor, ...]:
        if prepared.op.type in STATE_OPS:
            return prepared.access_state(values, state)
        if prepared.op.type == "cond":
            (taken,) = prepared.parts("pred", values)
            return self._block(prepared, 0 if taken else 1, (), values, state)
        if prepared.op.type == "while_loop":
            carried = prepared.parts("loop_vars", values)
            while self._block(prepared, 0, carried, values, state)[0]:
                carried = self._block(prepared, 1, carried, values, state)
            return carried
        return prepared.call(values)

    def _block(
        self,
        prepared: "PreparedOp",
        index: int,
        arguments: tuple[Tensor, ...],
        values: dict[str, Tensor],
        state: InterpreterState | None,
    ) -> tuple[Tensor, ...]:
        """Run a block of a cond or while_loop op, and return its results.

        The ops of a block can read all earlier values.
        """
        block = prepared.op.blocks[index]
        values.update(zip(block.inputs, arguments, strict=True))
        for _ in self._run_ops(prepared.blocks[index], values, state):
            pass
        constants = self.function.constants
        return tuple(
            self.package.tensor(constants[name]) if name in constants else values[name] for name in block.outputs
        )

    def _prepare(self, op: ProgramOp) -> "PreparedOp":
        if op.type in STATE_OPS + CONTROL_OPS:
            return PreparedOp(
                op,
                self.function.constants,
                self.package,
                blocks=[[self._prepare(inner) for inner in block.ops] for block in op.blocks],
            )
        kernel = OPS.get(op.type)
        where = self._where(op)
        if kernel is None:
            raise UserError(f"the interpreter does not support the {where}")
        unknown = set(op.arguments) - set(kernel.converters) - kernel.variadic
        if unknown:
            raise UserError(
                f"the interpreter does not support the argument {', '.join(sorted(unknown))} of the {where}"
            )
        narrow = self.arithmetic.narrow_norms and any(type.dtype == "fp16" for type in op.outputs.values())
        inner = self.arithmetic.rounded if narrow else lambda tensor: tensor
        return PreparedOp(op, self.function.constants, self.package, kernel, inner, flush=self.arithmetic.flush)

    def _where(self, op: ProgramOp) -> str:
        return f"op {op.type} ({op.name}) in {self.name}"

    def _plan_frees(self) -> None:
        needed = set(self.function.outputs) | set(self.function.states)
        for prepared in reversed(self._ops):
            # values that the blocks of an op need are freed only after the last block has run
            prepared.freed = tuple((prepared.names | set(prepared.op.outputs)) - needed)
            needed.update(prepared.freed)

    def _accept(self, inputs: Mapping[str, np.ndarray], state: InterpreterState | None) -> dict[str, Tensor]:
        ranges = self.function.ranges
        absent: dict[str, np.ndarray] = {
            name: np.full(ranges[name].shape, ranges[name].default, DTYPES[type.dtype])
            for name, type in self.function.inputs.items()
            if name not in inputs and name in ranges and ranges[name].default is not None
        }
        arrays = validate_inputs(self.name, self.function.inputs, {**inputs, **absent})
        for name, array in arrays.items():
            if name in ranges and not ranges[name].allows(array.shape):
                raise TypeError(f"input {name} of {self.name} takes the shapes {ranges[name]}, got {array.shape}")
        actual = {name: (array.dtype, array.shape) for name, array in (state or {}).items()}
        if actual != {name: (DTYPES[type.dtype], type.shape) for name, type in self.function.states.items()}:
            declared_states = ", ".join(f"{name} {type}" for name, type in self.function.states.items())
            raise TypeError(
                f"{self.name} has {'the state ' + declared_states if declared_states else 'no state'}, "
                f"got {actual or 'none'}"
            )
        values = {}
        for name, array in arrays.items():
            working = {"f": np.float32, "b": np.bool_}.get(array.dtype.kind, np.int64)
            tensor = torch.from_numpy(np.require(array, working, requirements=("C", "W")))
            values[name] = self._declared(tensor, self.function.inputs[name].dtype)
        return values

    def _declared(self, tensor: Tensor, dtype: str, exact: bool = False) -> Tensor:
        """Convert a result to float32, int64 or bool, and round it. Results of exact ops need no rounding.

        Args:
            tensor: The result.
            dtype: Dtype that the program declares for the result.
            exact: Whether the op only moves values.
        """
        if dtype == "bool":
            return tensor.bool()
        if dtype not in ("fp16", "fp32"):
            return tensor.long()
        tensor = tensor.float()
        return self.arithmetic.rounded(tensor) if dtype == "fp16" and self.arithmetic.fp16 and not exact else tensor

    def _output(self, values: dict[str, Tensor], name: str, type: TensorType) -> np.ndarray:
        tensor = values[name] if name in values else self.package.tensor(self.function.constants[name])
        if tensor.dtype == torch.int64:
            return tensor.numpy().astype(np.int32)
        return tensor.numpy().copy()


class PreparedOp:
    """An op with its implementation. It converts constant arguments once, and all other arguments in each run."""

    def __init__(
        self,
        op: ProgramOp,
        constants: Mapping[str, Constant],
        package: Package,
        kernel: Kernel | None = None,
        inner: Rounding | None = None,
        blocks: "list[list[PreparedOp]] | None" = None,
        flush: bool = False,
    ):
        self.op, self.blocks, self.flush = op, blocks or [], flush
        self.exact = kernel is not None and kernel.exact
        self.freed: tuple[str, ...] = ()
        self.names = frozenset(
            part
            for argument in op.arguments.values()
            for part in argument
            if isinstance(part, str) and part not in constants
        )
        for block, ops in zip(op.blocks, self.blocks, strict=True):
            self.names |= {*block.inputs, *block.outputs} - set(constants)
            self.names = self.names.union(*(inner.names | set(inner.op.outputs) for inner in ops))
        self._kernel, self._package = kernel, package
        # argument → tuple whose members are constants, or names of computed values
        self._parts = {
            key: tuple(constants.get(part, part) if isinstance(part, str) else part for part in argument)
            for key, argument in op.arguments.items()
        }
        self._computed = tuple(
            key for key, parts in self._parts.items() if any(isinstance(part, str) for part in parts)
        )
        self._extra = {"inner": inner} if kernel is not None and "inner" in kernel.kinds else {}
        self._constants: dict | None = None

    def call(self, values: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Compute the op, and return its results before rounding."""
        if self._constants is None:
            self._constants = self._extra | {
                key: self._argument(key, {}) for key in self._parts if key not in self._computed
            }
        computed = {key: self._argument(key, values) for key in self._computed}
        results = self._kernel.function(**self._constants, **computed)
        return results if isinstance(results, tuple) else (results,)

    def access_state(self, values: dict[str, Tensor], state: InterpreterState) -> tuple[Tensor, ...]:
        """Read or write a state. A read_state op returns a copy of the state, and a write_state op returns nothing."""
        stored = torch.from_numpy(state[self._parts["input"][0]])
        if self.op.type == "read_state":
            return (stored.to(torch.float32, copy=True),)
        stored.copy_(self._part(self._parts["data"][0], values))
        return ()

    def parts(self, key: str, values: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Return the tensors that a cond or while_loop receives as this argument."""
        return tuple(self._part(part, values) for part in self._parts[key])

    def _argument(self, key: str, values: dict[str, Tensor]) -> object:
        flush = self.flush and key not in self._kernel.numbers
        parts = [self._part(part, values, flush) for part in self._parts[key]]
        return tuple(parts) if key in self._kernel.variadic else self._kernel.converters[key](parts[0])

    def _part(self, part: str | Constant, values: dict[str, Tensor], flush: bool = False) -> Tensor | str:
        if isinstance(part, str):
            return values[part]
        value = self._package.tensor(part)
        return flushed(value) if flush and part.type.dtype == "fp16" else value


class MilRuntime(Runtime):
    """Loads functions of packages into the interpreter. The runtime ignores compute units.

    Each package is read only once, and its weights are decoded only once, even if several of its functions are loaded.
    """

    def __init__(self, arithmetic: Arithmetic | None = None, opened: Mapping[Path, Package] = MappingProxyType({})):
        """Create the runtime.

        Args:
            arithmetic: Rule for rounding the results of ops. ``None`` means float32.
            opened: Packages that somebody has read already, by path.
        """
        self.arithmetic = arithmetic or Arithmetic()
        self.name = "mil:flush" if self.arithmetic.flush else "mil:fp16" if self.arithmetic.fp16 else "mil"
        self._packages = dict(opened)

    def load(self, package: Path, function: str, compute_units: str) -> Interpreter:
        if package not in self._packages:
            self._packages[package] = Package(package)
        return Interpreter(self._packages[package], function, self.arithmetic)

    def unload(self, package: Path) -> None:
        self._packages.pop(package, None)
