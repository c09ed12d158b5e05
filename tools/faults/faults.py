"""Make faults in saved Core ML packages. Each fault changes one operation of one function, and the program still runs.

A fault changes the protobuf message of a function, as if a converter with a bug had written the function.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.mil.package import Package, ProgramFunction, ProgramOp, model_messages
from ane.backends.mil.values import DTYPES, Blob, Constant
from ane.system.files import link_or_copy

MODEL_FOLDER = Path("Data") / "com.apple.CoreML"
LEAST_EPSILON = 1e-12  # smaller epsilons change no number, even if they are multiplied by 1000
MASKS = ("mask", "inside")  # inputs that tell a function which positions to read
SQUARE_ENOUGH = 16  # minimum number of rows in a weight that is transposed


@dataclass(frozen=True)
class Fault:
    """A change of one operation.

    Attributes:
        kind: A kind of ``KINDS``.
        value: Name of the operation's first output, or of the state that the operation writes.
        change: Description of the change.
        apply: Function that changes the protobuf message of a function's block.
    """

    kind: str
    function: str
    value: str
    change: str
    apply: Callable[[Any], None] = field(repr=False, compare=False)


class FaultFinder:
    """A finder of all faults of every kind that a function of a package can have."""

    def __init__(self, package: Package, function: str):
        self.package = package
        self.function: ProgramFunction = package.function(function)
        self.types = dict(self.function.inputs)
        for op in self.function.ops:
            self.types |= op.outputs

    def find(self) -> dict[str, list[Fault]]:
        return {kind: [self._fault(kind, *found) for found in finder(self)] for kind, finder in KINDS.items()}

    def _fault(self, kind: str, value: str, change: str, apply: Callable[[Any], None]) -> Fault:
        return Fault(kind, self.function.name, value, change, apply)

    def constant(self, op: ProgramOp, key: str) -> Constant | None:
        part = op.arguments.get(key, (None,))[0]
        return self.function.constants.get(part) if isinstance(part, str) else part

    def array(self, op: ProgramOp, key: str) -> np.ndarray | None:
        constant = self.constant(op, key)
        return None if constant is None else self.package.tensor(constant).numpy()

    def read(self, *names: str) -> bool:
        """Return whether an operation reads one of these values."""
        return any(name in part for op in self.function.ops for part in op.arguments.values() for name in names)


Found = Iterator[tuple[str, str, Callable[[Any], None]]]


def wrong_axes(finder: FaultFinder) -> Found:
    """Yield softmax operations with another axis, whose length is above 1."""
    for op in finder.function.ops:
        if op.type == "softmax":
            shape = finder.types[op.name].shape
            axis = int(finder.array(op, "axis"))
            for other in range(len(shape)):
                if other != axis % len(shape) and shape[other] > 1:
                    yield op.name, f"axis {axis} → {other}", _immediate(op.name, "axis", np.array(other, np.int32))


def dropped_cache_writes(finder: FaultFinder) -> Found:
    """Yield states that are not written, and outputs for the host in which a layer has another layer's keys."""
    for op in finder.function.ops:
        if op.type == "write_state":
            name = op.written_state

            def apply(block: Any, name: str = name) -> None:
                index = next(
                    index
                    for index, message in enumerate(block.operations)
                    if message.type == "write_state" and message.inputs["input"].arguments[0].name == name
                )
                del block.operations[index]

            yield name, "not written", apply
        if op.type == "concat" and op.name in ("new_keys", "new_values"):
            for layer in range(1, len(op.arguments["values"])):

                def repeat(block: Any, name: str = op.name, layer: int = layer) -> None:
                    values = _message(block, name).inputs["values"].arguments
                    values[layer].CopyFrom(values[layer - 1])

                yield op.name, f"layer {layer} has those of layer {layer - 1}", repeat


def transposed_weights(finder: FaultFinder) -> Found:
    """Yield convolutions of width 1 whose square weight is transposed."""
    for op in finder.function.ops:
        weight = finder.array(op, "weight") if op.type == "conv" else None
        if weight is not None and weight.shape[2:] == (1, 1) and weight.shape[0] == weight.shape[1] >= SQUARE_ENOUGH:
            dtype = DTYPES[finder.constant(op, "weight").type.dtype]
            yield op.name, "weight transposed", _immediate(op.name, "weight", weight.swapaxes(0, 1).astype(dtype))


def scaled_weights(finder: FaultFinder) -> Found:
    """Yield convolutions whose weight is 1 % too large."""
    for op in finder.function.ops:
        weight = finder.array(op, "weight") if op.type == "conv" else None
        if weight is not None:
            dtype = DTYPES[finder.constant(op, "weight").type.dtype]
            yield op.name, "weight × 1.01", _immediate(op.name, "weight", (weight * 1.01).astype(dtype))


def wrong_epsilons(finder: FaultFinder, factor: float = 1e3) -> Found:
    for op in finder.function.ops:
        epsilon = finder.array(op, "epsilon")
        if epsilon is not None and epsilon.item() >= LEAST_EPSILON:
            wrong = (epsilon * factor).astype(DTYPES[finder.constant(op, "epsilon").type.dtype])
            yield (op.name, f"epsilon {epsilon.item():.1e} → {wrong.item():.1e}", _immediate(op.name, "epsilon", wrong))


def other_gelus(finder: FaultFinder) -> Found:
    """Yield GELU operations with the exact function instead of its approximation by tanh, or the reverse."""
    for op in finder.function.ops:
        if op.type == "gelu":

            def apply(block: Any, name: str = op.name) -> None:
                modes = _constant(
                    block, _message(block, name).inputs["mode"].arguments[0]
                ).immediateValue.tensor.strings.values
                modes[0] = "EXACT" if modes[0] != "EXACT" else "TANH_APPROXIMATION"

            yield op.name, "exact ↔ tanh", apply


def reversed_groups(finder: FaultFinder) -> Found:
    """Yield concatenations that join the results of groups of heads in reverse order."""
    for op in finder.function.ops:
        values = op.arguments.get("values", ())
        if (
            op.type == "concat"
            and len(values) == 2
            and finder.array(op, "axis") == 1
            and (finder.types.get(values[0]) == finder.types.get(values[1]))
        ):
            yield (
                op.name,
                "groups joined in reverse",
                _exchanged(op.name, lambda message: message.inputs["values"].arguments[:2]),
            )


def shifted_masks(finder: FaultFinder) -> Found:
    """Yield operations that read a mask which is shifted by one position along its last axis."""
    for op in finder.function.ops:
        for key, (part, *_) in op.arguments.items():
            if part in MASKS and op.type in ("add", "mul") and finder.types[part].shape[-1] > 1:
                yield op.name, f"{part} moved by one", _rolled(op.name, key, part, finder.types[part])


def swapped_pairs(finder: FaultFinder) -> Found:
    """Yield operations with swapped operands, splits with swapped outputs, and concats with swapped inputs."""
    for op in finder.function.ops:
        x, y = (op.arguments.get(key, (None,))[0] for key in ("x", "y"))
        if op.type in ("sub", "real_div") and isinstance(x, str) and isinstance(y, str):
            yield (
                op.name,
                "x and y exchanged",
                _exchanged(op.name, lambda message: [message.inputs[key].arguments[0] for key in ("x", "y")]),
            )
        outputs = list(op.outputs.items())
        if op.type == "split" and outputs[0][1] == outputs[1][1] and finder.read(outputs[0][0], outputs[1][0]):
            yield op.name, "the first two results exchanged", _exchanged(op.name, lambda message: message.outputs[:2])
        values = op.arguments.get("values", ())
        if op.type == "concat" and len(values) > 1 and finder.types.get(values[0]) == finder.types.get(values[1]):
            yield (
                op.name,
                "the first two values exchanged",
                _exchanged(op.name, lambda message: message.inputs["values"].arguments[:2]),
            )


def stale_constants(finder: FaultFinder) -> Found:
    """Yield operations with the weight or bias of another operation, which has the same shape."""
    known: dict[Any, list[str]] = {}
    for op in finder.function.ops:
        for key in ("weight", "bias", "gamma", "beta"):
            part, constant = op.arguments.get(key, (None,))[0], finder.constant(op, key)
            if not isinstance(constant, Blob) or not isinstance(part, str):
                continue
            others = known.setdefault((key, constant.type), [])
            different = [name for name in others if finder.function.constants[name].key != constant.key]
            if different:
                yield op.name, f"{key} {part} → {different[-1]}", _rebound(op.name, key, different[-1])
            others.append(part)


KINDS: dict[str, Callable[[FaultFinder], Found]] = {
    "wrong axis": wrong_axes,
    "dropped cache write": dropped_cache_writes,
    "transposed weight": transposed_weights,
    "scaled weight": scaled_weights,
    "other GELU": other_gelus,
    "reversed groups": reversed_groups,
    "epsilon × 10": partial(wrong_epsilons, factor=10.0),
    "wrong epsilon": wrong_epsilons,
    "mask off by one": shifted_masks,
    "swapped pair": swapped_pairs,
    "stale constant": stale_constants,
}


def draw(faults: dict[str, list[Fault]], seed: int, count: int) -> list[Fault]:
    """Draw ``count`` faults. The kinds take turns. Each draws at random from the functions that it had least often."""
    generator, chosen = random.Random(seed), []
    left = {kind: list(found) for kind, found in faults.items() if found}
    while len(chosen) < count and any(left.values()):
        for kind in [kind for kind in left if left[kind]]:
            drawn = [fault.function for fault in chosen if fault.kind == kind]
            least = min(drawn.count(fault.function) for fault in left[kind])
            candidates = [fault for fault in left[kind] if drawn.count(fault.function) == least]
            chosen.append(candidates[generator.randrange(len(candidates))])
            left[kind].remove(chosen[-1])
    return chosen[:count]


def write_faulty(package: Path, fault: Fault, functions: set[str], destination: Path) -> None:
    """Copy a package with only these functions. One of them has the fault."""
    (destination / MODEL_FOLDER / "weights").mkdir(parents=True)
    link_or_copy(package / "Manifest.json", destination / "Manifest.json")
    for file in (package / MODEL_FOLDER / "weights").iterdir():
        link_or_copy(file, destination / MODEL_FOLDER / "weights" / file.name)
    spec = model_messages().Model()
    spec.ParseFromString((package / MODEL_FOLDER / "model.mlmodel").read_bytes())
    for name in set(spec.mlProgram.functions) - functions:
        spec.mlProgram.functions.pop(name)
    function = spec.mlProgram.functions[fault.function]
    fault.apply(function.block_specializations[function.opset])
    (destination / MODEL_FOLDER / "model.mlmodel").write_bytes(spec.SerializeToString())


# Changes of messages


def _message(block: Any, value: str) -> Any:
    return next(message for message in block.operations if any(output.name == value for output in message.outputs))


def _constant(block: Any, binding: Any) -> Any:
    """Return the value of an argument, which is stored in place or under the name of a constant."""
    named = binding.WhichOneof("binding") == "name"
    return next(
        (
            message.attributes["val"]
            for message in block.operations
            if named and message.type == "const" and message.outputs[0].name == binding.name
        ),
        binding.value,
    )


def _immediate(value: str, key: str, array: np.ndarray) -> Callable[[Any], None]:
    """Replace an argument by this array, which is stored in the program itself."""

    def apply(block: Any) -> None:
        binding = _message(block, value).inputs[key].arguments[0]
        type = _constant(block, binding).type
        binding.value.type.CopyFrom(type)
        _set(binding.value.immediateValue.tensor, array)

    return apply


def _set(tensor: Any, array: np.ndarray) -> None:
    if array.dtype == np.float16:
        tensor.bytes.values = array.tobytes()
    elif array.dtype.kind == "f":
        tensor.floats.values[:] = array.reshape(-1).tolist()
    else:
        tensor.ints.values[:] = array.reshape(-1).tolist()


def _rebound(value: str, key: str, name: str) -> Callable[[Any], None]:
    def apply(block: Any) -> None:
        _message(block, value).inputs[key].arguments[0].name = name

    return apply


def _exchanged(value: str, pair: Callable[[Any], Sequence[Any]]) -> Callable[[Any], None]:
    """Swap the names of two parts in an operation's message."""

    def apply(block: Any) -> None:
        first, second = pair(_message(block, value))
        first.name, second.name = second.name, first.name

    return apply


def _rolled(value: str, key: str, mask: str, type: Any) -> Callable[[Any], None]:
    """Let one operation read a mask that is rotated by one: its last position comes before all others."""
    size, rank = type.shape[-1], len(type.shape)

    def apply(block: Any) -> None:
        messages = model_messages()
        target = _message(block, value)
        index = list(block.operations).index(target)
        like = target.outputs[0].type.tensorType.dataType
        parts = [
            ("moved_end", [0] * (rank - 1) + [size - 1], list(type.shape)),
            ("moved_start", [0] * rank, [*type.shape[:-1], size - 1]),
        ]
        new = []
        for name, begin, end in parts:
            message = messages.MIL__pb2.Operation(type="slice_by_index")
            message.inputs["x"].arguments.add().name = mask
            for argument, numbers in (("begin", begin), ("end", end)):
                _typed(message.inputs[argument].arguments.add().value, numbers, [rank])
            _typed_output(message, name, like, [high - low for low, high in zip(begin, end, strict=True)])
            new.append(message)
        message = messages.MIL__pb2.Operation(type="concat")
        for name, *_ in parts:
            message.inputs["values"].arguments.add().name = name
        _typed(message.inputs["axis"].arguments.add().value, [rank - 1], [])
        flag = message.inputs["interleave"].arguments.add().value
        flag.type.tensorType.dataType = messages.MIL__pb2.BOOL
        flag.immediateValue.tensor.bools.values.append(False)
        _typed_output(message, "moved_mask", like, type.shape)
        target.inputs[key].arguments[0].name = "moved_mask"
        for offset, inserted in enumerate([*new, message]):
            block.operations.insert(index + offset, inserted)

    return apply


def _typed(value: Any, numbers: list[int], shape: list[int]) -> None:
    value.type.tensorType.dataType = model_messages().MIL__pb2.INT32
    value.type.tensorType.rank = len(shape)
    for size in shape:
        value.type.tensorType.dimensions.add().constant.size = size
    value.immediateValue.tensor.ints.values[:] = numbers


def _typed_output(message: Any, name: str, dtype: int, shape: Any) -> None:
    output = message.outputs.add()
    output.name, output.type.tensorType.dataType = name, dtype
    output.type.tensorType.rank = len(shape)
    for size in shape:
        output.type.tensorType.dimensions.add().constant.size = size
