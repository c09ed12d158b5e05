"""Running one function of a package, op by op, in torch on the CPU."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ane.backends.mil import ops_elementwise, ops_index, ops_linear, ops_norm, ops_shape  # noqa: F401  fill KERNELS
from ane.backends.mil.package import Op, Package
from ane.backends.mil.registry import KERNELS, Kernel, Rounding
from ane.backends.mil.values import DTYPES, Constant, TensorType
from ane.system.errors import UserError

# coremltools' own coreml_update_state is saved as a write_state and a read_state.
STATE_OPS = ("read_state", "write_state")


@dataclass(frozen=True)
class Arithmetic:
    """How numbers are rounded.

    fp16=False: all maths in float32 with the weights as stored. fp16=True: what an op gives is rounded to the dtype
    that the program declares for it (fp16 where it says fp16), at every op boundary.

    narrow_norms=True: additionally rounds to fp16 after every inner step of layer_norm, batch_norm, instance_norm,
    l2_norm and softmax, of those whose result is fp16 (mean, centred, square, mean of squares, rsqrt …): the worst
    engine there could be. Only with fp16=True.

    A state is kept in its declared dtype, whatever the arithmetic.
    """

    fp16: bool = False
    narrow_norms: bool = False

    def __post_init__(self):
        if self.narrow_norms and not self.fp16:
            raise ValueError("narrow_norms needs fp16")


class State(dict[str, np.ndarray]):
    """The states of a function by name, in their declared dtype. ``predict`` writes into the arrays."""


class Interpreter:
    """Runs one function. Constants are decoded when an op first needs them, values freed after their last use."""

    def __init__(self, package: Package, function: str | None = None, arithmetic: Arithmetic = Arithmetic()):
        """UserError when there is no such function, or when it has an op or an argument that is not known here."""
        self.package = package
        self.function = package.function(function)
        self.arithmetic = arithmetic
        self.name = f"function {self.function.name!r} of {package.path}"
        self._steps = [self._step(op) for op in self.function.ops]
        self._plan_frees()

    def make_state(self) -> State:
        """Zeros."""
        return State({name: np.zeros(type.shape, DTYPES[type.dtype]) for name, type in self.function.states.items()})

    def predict(self, inputs: Mapping[str, np.ndarray], state: State | None = None) -> dict[str, np.ndarray]:
        """Run the function; its state, if it has one, is updated in place.

        inputs: by name, in the declared shapes; floats of any width for fp16 and fp32, integers for int32. Outputs
        come as float32 or int32. TypeError when names, shapes, kinds or the state are not what the function takes.
        """
        values = self._accept(inputs, state)
        for _ in self._run(values, state):
            pass
        return {name: self._output(values, name, type) for name, type in self.function.outputs.items()}

    def activations(self, inputs: Mapping[str, np.ndarray],
                    state: State | None = None) -> Iterator[tuple[str, str, np.ndarray]]:
        """(value name, op type, float32 array) of every op result in program order, constants left out, as they come.

        Takes and raises what ``predict`` does.
        """
        values = self._accept(inputs, state)
        for op in self._run(values, state):
            for name in op.outputs:
                yield name, op.type, values[name].float().numpy().copy()

    @torch.inference_mode()
    def _run(self, values: dict[str, Tensor], state: State | None) -> Iterator[Op]:
        """Yield each op when its results stand in ``values``; they leave it after their last use."""
        for step in self._steps:
            results = step.access(values, state) if step.op.type in STATE_OPS else step.call(values)
            for (name, type), result in zip(step.op.outputs.items(), results, strict=True):
                if not type.fits(tuple(result.shape)):
                    raise RuntimeError(f"op {step.op.type} ({name}) in {self.name} gave the shape "
                                       f"{tuple(result.shape)}, the program says {type.shape}")
                values[name] = settle(result, type.dtype, self.arithmetic.fp16 and not step.exact)
            yield step.op
            for name in step.dead:
                del values[name]

    def _step(self, op: Op) -> "Step":
        if op.type in STATE_OPS:
            return Step(op, self.function.constants, self.package)
        kernel = KERNELS.get(op.type)
        where = f"op {op.type} ({op.name}) in {self.name}"
        if kernel is None:
            raise UserError(f"the interpreter does not know the {where}")
        unknown = set(op.arguments) - set(kernel.converters) - kernel.variadic
        if unknown:
            raise UserError(f"the interpreter does not know the argument {', '.join(sorted(unknown))} of the {where}")
        narrow = self.arithmetic.narrow_norms and any(type.dtype == "fp16" for type in op.outputs.values())
        return Step(op, self.function.constants, self.package, kernel, half if narrow else as_it_is)

    def _plan_frees(self) -> None:
        kept = set(self.function.outputs) | set(self.function.states)
        for step in reversed(self._steps):
            step.dead = tuple((step.names | set(step.op.outputs)) - kept)
            kept.update(step.dead)

    def _accept(self, inputs: Mapping[str, np.ndarray], state: State | None) -> dict[str, Tensor]:
        declared = self.function.inputs
        if set(inputs) != set(declared):
            raise TypeError(f"{self.name} takes {sorted(declared)}, got {sorted(inputs)}")
        got = {name: (array.dtype, array.shape) for name, array in (state or {}).items()}
        if got != {name: (DTYPES[type.dtype], type.shape) for name, type in self.function.states.items()}:
            wanted = ", ".join(f"{name} {type}" for name, type in self.function.states.items())
            raise TypeError(f"{self.name} has {'the state ' + wanted if wanted else 'no state'}, got {got or 'none'}")
        values = {}
        for name, type in declared.items():
            array = np.asarray(inputs[name])
            kinds = "f" if type.dtype in ("fp16", "fp32") else "iub"
            if array.dtype.kind not in kinds or not type.fits(array.shape):
                raise TypeError(f"input {name} of {self.name} is {type}, got {array.dtype} {array.shape}")
            working = {"f": np.float32, "b": np.bool_}.get(array.dtype.kind, np.int64)
            tensor = torch.from_numpy(np.require(array, working, requirements=("C", "W")))
            values[name] = settle(tensor, type.dtype, self.arithmetic.fp16)
        return values

    def _output(self, values: dict[str, Tensor], name: str, type: TensorType) -> np.ndarray:
        tensor = values[name] if name in values else self.package.tensor(self.function.constants[name])
        if tensor.dtype == torch.int64:
            return tensor.numpy().astype(np.int32)
        return tensor.numpy().copy()


class Step:
    """An op with its kernel, its arguments sorted into constants and values that the run computes."""

    def __init__(self, op: Op, constants: Mapping[str, Constant], package: Package, kernel: Kernel | None = None,
                 inner: Rounding | None = None):
        self.op = op
        self.exact = kernel is not None and kernel.exact
        self.dead: tuple[str, ...] = ()
        self.names = frozenset(part for argument in op.arguments.values() for part in argument
                               if isinstance(part, str) and part not in constants)
        self._kernel, self._package = kernel, package
        # Argument → its parts: names of values, or constants.
        self._parts = {key: tuple(constants.get(part, part) if isinstance(part, str) else part for part in argument)
                       for key, argument in op.arguments.items()}
        self._moving = tuple(key for key, parts in self._parts.items() if any(isinstance(part, str) for part in parts))
        self._extra = {"inner": inner} if kernel is not None and kernel.has_inner else {}
        self._fixed: dict | None = None

    def call(self, values: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The results of the op, not yet rounded."""
        if self._fixed is None:
            self._fixed = self._extra | {key: self._argument(key, {}) for key in self._parts if key not in self._moving}
        results = self._kernel.function(**self._fixed, **{key: self._argument(key, values) for key in self._moving})
        return results if isinstance(results, tuple) else (results,)

    def access(self, values: dict[str, Tensor], state: State) -> tuple[Tensor, ...]:
        """Read a state into a value of its own, or write one, which gives nothing."""
        stored = torch.from_numpy(state[self._parts["input"][0]])
        if self.op.type == "read_state":
            return (stored.to(torch.float32, copy=True),)
        stored.copy_(self._part(self._parts["data"][0], values))
        return ()

    def _argument(self, key: str, values: dict[str, Tensor]) -> object:
        parts = [self._part(part, values) for part in self._parts[key]]
        return tuple(parts) if key in self._kernel.variadic else self._kernel.converters[key](parts[0])

    def _part(self, part: str | Constant, values: dict[str, Tensor]) -> Tensor | str:
        return values[part] if isinstance(part, str) else self._package.tensor(part)


def settle(tensor: Tensor, dtype: str, rounded: bool) -> Tensor:
    """A result in the working form of its declared dtype (float32, int64 or bool), rounded to fp16 where asked."""
    if dtype == "bool":
        return tensor.bool()
    if dtype not in ("fp16", "fp32"):
        return tensor.long()
    tensor = tensor.float()
    return half(tensor) if rounded and dtype == "fp16" else tensor


def half(tensor: Tensor) -> Tensor:
    return tensor.half().float()


def as_it_is(tensor: Tensor) -> Tensor:
    return tensor
