"""Read a saved .mlpackage, with its functions as Python objects and its constants as torch tensors."""

import importlib
import json
import sys
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ane.backends.mil.values import (
    EXPRESSIONS,
    Blob,
    Constant,
    Expression,
    Immediate,
    InputRange,
    TensorType,
    from_bytes,
    from_immediate,
)
from ane.system.errors import UserError

ALIAS = f"{__name__}_of_coremltools"


@cache
def model_messages() -> ModuleType:
    """Import the module with the messages of Model.proto from coremltools, without importing coremltools itself.

    ``import coremltools.proto`` would first run ``coremltools/__init__.py``. This takes 1 s in addition to torch, and
    prints eight warnings on other systems than macOS. Importing the folder under another name takes 0.06 s. A process
    may import both, in either order, because protobuf creates each message class only once.

    Raises:
        UserError: coremltools is not installed.
    """
    coremltools = PathFinder.find_spec("coremltools")
    if coremltools is None or not coremltools.submodule_search_locations:
        raise UserError("reading a Core ML package needs coremltools: install it with: pip install coremltools==9.0")
    spec = ModuleSpec(ALIAS, None, is_package=True)
    spec.submodule_search_locations = [str(Path(coremltools.submodule_search_locations[0]) / "proto")]
    sys.modules[ALIAS] = module_from_spec(spec)
    return importlib.import_module(f"{ALIAS}.Model_pb2")


# A weight file is a header, and then pairs of a metadata record and the bytes that this record describes.
METADATA = np.dtype(
    [
        ("sentinel", "<u4"),
        ("type", "<u4"),
        ("bytes", "<u8"),
        ("offset", "<u8"),
        ("padding", "<u8"),
        ("reserved", "<u8", (4,)),
    ]
)
SENTINEL = 0xDEADBEEF

DTYPE_NAMES = {"FLOAT16": "fp16", "FLOAT32": "fp32", "FLOAT64": "fp64"}


@dataclass(frozen=True)
class ProgramBlock:
    """The ops inside a cond or while_loop, and the names of the block's inputs and results."""

    inputs: tuple[str, ...]
    ops: "list[ProgramOp]" = field(repr=False)
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ProgramOp:
    """One op of a program.

    An argument is a tuple of constants and names. A name refers to an input, a constant or the result of an earlier op.
    A cond op has two ``blocks``, for true and for false. A while_loop op has two ``blocks``, its condition and its
    body.
    """

    type: str
    arguments: dict[str, tuple[str | Constant, ...]] = field(repr=False)
    outputs: dict[str, TensorType]
    blocks: tuple[ProgramBlock, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """Return the name of the op's first output, or of the state that the op writes if it has no outputs."""
        return next(iter(self.outputs), self.type)

    @property
    def written_state(self) -> str:
        """Return the name of the state that a write_state op writes. For all other ops it is ""."""
        return str(self.arguments["input"][0]) if self.type == "write_state" else ""


@dataclass(frozen=True)
class ProgramFunction:
    """A function of a package.

    Attributes:
        ops: Ops, in the order in which they run.
        constants: Constants by name.
        images: Names of the inputs that Core ML takes as images and converts to tensors.
        ranges: Possible shapes and default shape of each input with a flexible shape, by name.
    """

    name: str
    inputs: dict[str, TensorType]
    outputs: dict[str, TensorType]
    states: dict[str, TensorType]
    ops: list[ProgramOp] = field(repr=False)
    constants: dict[str, Constant] = field(repr=False)
    images: frozenset[str] = frozenset()
    ranges: dict[str, InputRange] = field(default_factory=dict)


class Package:
    """A saved .mlpackage with its functions and weights.

    The constructor reads the program, but no weights. A weight is decoded when an op first uses it. All functions of
    the package and all interpreters that run them share the decoded weight.

    Raises:
        UserError: The package is damaged, incomplete or not an ML program.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self._model = _model_file(self.path)
        self._files: dict[str, np.ndarray] = {}
        self._tensors: dict[Hashable, torch.Tensor] = {}
        messages = model_messages()
        spec = messages.Model()
        try:
            spec.ParseFromString(self._model.read_bytes())
        except (OSError, messages._message.DecodeError) as error:
            raise self.damaged(f"its model cannot be read ({error})") from error
        kind = spec.WhichOneof("Type")
        if kind is None:
            raise self.damaged("its model is empty")
        if kind != "mlProgram":
            raise UserError(f"{self.path} holds a {kind}, not an ML program")
        self.metadata: dict[str, str] = dict(spec.description.metadata.userDefined)
        described = [spec.description, *spec.description.functions]
        self._images = frozenset(
            item.name for one in described for item in one.input if item.type.WhichOneof("Type") == "imageType"
        )
        # ``spec.description`` describes either each function or, if there is only one, this function itself
        self._described = {one.name: one for one in spec.description.functions}
        self._only = spec.description
        self.functions = {
            name: self._function(name, spec.mlProgram.functions[name]) for name in sorted(spec.mlProgram.functions)
        }
        if not self.functions:
            raise self.damaged("its program has no function")
        self.default_function: str = spec.description.defaultFunctionName or "main"

    def function(self, name: str | None = None) -> ProgramFunction:
        """Return the function with this name.

        ``None`` means the default function. Raises UserError if there is no such function.
        """
        name = name or self.default_function
        if name not in self.functions:
            raise UserError(f"{self.path} has no function {name!r}: choose one of {', '.join(sorted(self.functions))}")
        return self.functions[name]

    def damaged(self, what: str) -> UserError:
        """Create the error for a damaged file of the package. ``what`` says what is wrong with the file."""
        return UserError(f"the Core ML package {self.path} is damaged: {what}: convert the model again")

    def tensor(self, constant: Constant) -> torch.Tensor | str:
        """Decode a constant. Return a float32, int64 or bool tensor with the constant's shape, or a string.

        The package caches decoded weights. A weight that is stored in fp32 stays memory-mapped.
        """
        if isinstance(constant, Immediate):
            value = from_immediate(constant)
            return value if isinstance(value, str) else _compute_tensor(value)
        if constant.key not in self._tensors:
            self._tensors[constant.key] = _compute_tensor(self._array(constant))
        return self._tensors[constant.key].reshape(constant.type.shape)

    def _array(self, constant: Constant) -> np.ndarray | str:
        """Return a constant in its stored dtype. Values of a packed type, such as uint4, are unpacked first."""
        if isinstance(constant, Immediate):
            return from_immediate(constant)
        if isinstance(constant, Blob):
            return from_bytes(self._bytes(constant), constant.type)
        result = EXPRESSIONS[constant.op](**{name: self._array(part) for name, part in constant.arguments.items()})
        result = result[constant.index] if isinstance(result, tuple) else result
        return result.astype(np.float16) if constant.type.dtype == "fp16" else result

    def _bytes(self, blob: Blob) -> np.ndarray:
        """Return the memory-mapped bytes of a constant in a weight file.

        Raises:
            UserError: The bytes are missing, or their metadata does not match the type of the constant.
        """
        if blob.file not in self._files:
            path = self._model.parent / "weights" / blob.file
            try:
                if not path.is_file():  # opening a FIFO would block
                    raise FileNotFoundError(path)
                # "c" means copy on write; nobody writes to this memory, but torch would warn about read-only memory
                self._files[blob.file] = np.memmap(path, np.uint8, "c")
            except (OSError, ValueError) as error:
                raise self.damaged(f"the weight file {blob.file} is missing or empty") from error
        data = self._files[blob.file]
        if blob.offset + METADATA.itemsize > len(data):
            raise self.damaged(f"the weight file {blob.file} ends early, at byte {len(data)}")
        record = data[blob.offset : blob.offset + METADATA.itemsize].view(METADATA)[0]
        start, size = int(record["offset"]), int(record["bytes"])
        if record["sentinel"] != SENTINEL or size != blob.type.stored_bytes:
            raise self.damaged(f"the weight file {blob.file} has no {blob.type} at byte {blob.offset}")
        if start + size > len(data):
            raise self.damaged(f"the weight file {blob.file} ends early, at byte {len(data)} of {start + size} or more")
        return data[start : start + size]

    def _function(self, name: str, message: Any) -> ProgramFunction:
        block = message.block_specializations[message.opset]
        inputs = {
            item.name: _tensor_type(item.type)
            for item in message.inputs
            if item.type.WhichOneof("type") == "tensorType"
        }
        states = {
            item.name: _tensor_type(item.type.stateType.wrappedType)
            for item in message.inputs
            if item.type.WhichOneof("type") == "stateType"
        }
        constants: dict[str, Constant] = {}
        ops = self._ops(block.operations, constants)
        types = inputs | {key: constant.type for key, constant in constants.items()}
        for op in ops:
            types |= op.outputs
        outputs = {output: types[output] for output in block.outputs}
        ranges = {
            item.name: _input_range(item.type)
            for item in self._described.get(name, self._only).input
            if item.name in inputs and item.type.WhichOneof("Type") == "multiArrayType"
        }
        return ProgramFunction(name, inputs, outputs, states, ops, constants, self._images & set(inputs), ranges)

    def _ops(self, operations: Any, constants: dict[str, Constant]) -> list[ProgramOp]:
        """Read the ops of a block, and add the block's constants to ``constants``.

        Names are unique within a function.
        """
        ops: list[ProgramOp] = []
        for operation in operations:
            if operation.type == "const":
                constants[operation.outputs[0].name] = self._constant(operation.attributes["val"])
            elif operation.type in EXPRESSIONS:
                constants.update(self._expressions(operation, constants))
            else:
                arguments = {
                    key: tuple(self._binding(binding) for binding in argument.arguments)
                    for key, argument in operation.inputs.items()
                }
                blocks = tuple(
                    ProgramBlock(
                        tuple(item.name for item in block.inputs),
                        self._ops(block.operations, constants),
                        tuple(block.outputs),
                    )
                    for block in operation.blocks
                )
                ops.append(
                    ProgramOp(
                        operation.type,
                        arguments,
                        {item.name: _tensor_type(item.type) for item in operation.outputs},
                        blocks,
                    )
                )
        return ops

    def _binding(self, binding: Any) -> str | Constant:
        return binding.name if binding.WhichOneof("binding") == "name" else self._constant(binding.value)

    def _constant(self, value: Any) -> Constant:
        type = _tensor_type(value.type)
        if value.WhichOneof("value") == "blobFileValue":
            blob = Blob(type, value.blobFileValue.fileName.rpartition("/")[2], value.blobFileValue.offset)
            self._bytes(blob)
            return blob
        kind = value.immediateValue.WhichOneof("value")
        if kind != "tensor":
            raise UserError(f"{self.path} has a constant that is a {kind}, which the interpreter does not support")
        stored = value.immediateValue.tensor
        values = getattr(stored, stored.WhichOneof("value") or "ints").values
        if isinstance(values, bytes):
            return Immediate(type, values)
        return Immediate(type, values[0] if type.dtype == "string" else tuple(values))

    def _expressions(self, operation: Any, constants: dict[str, Constant]) -> dict[str, Expression]:
        """Read the outputs of a constexpr op, which decompresses a weight.

        Programs for iOS 16 store the op's arguments as attributes, and programs for iOS 18 store them as inputs.
        """
        arguments = {key: self._constant(value) for key, value in operation.attributes.items() if key != "name"}
        for key, argument in operation.inputs.items():
            bound = self._binding(argument.arguments[0])
            arguments[key] = constants[bound] if isinstance(bound, str) else bound
        key = operation.type, tuple((name, arguments[name].key) for name in sorted(arguments))
        return {
            item.name: Expression(_tensor_type(item.type), operation.type, arguments, index, (*key, index))
            for index, item in enumerate(operation.outputs)
        }


def _model_file(path: Path) -> Path:
    if not path.is_dir():
        advice = "" if path.suffix == ".mlpackage" else f"; for those of a bundle use bundle={path}"
        raise UserError(f"there is no Core ML package at {path}{advice}")
    try:
        if not (path / "Manifest.json").is_file():  # opening a FIFO would block
            raise FileNotFoundError(path / "Manifest.json")
        manifest = json.loads((path / "Manifest.json").read_text())
        model = path / "Data" / manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not a Core ML package: it has no readable Manifest.json") from error
    if not model.is_file():
        raise UserError(
            f"the Core ML package {path} is damaged: {model.relative_to(path)} is missing: convert the model again"
        )
    return model


def _tensor_type(message: Any) -> TensorType:
    tensor = message.tensorType
    name = tensor.DESCRIPTOR.fields_by_name["dataType"].enum_type.values_by_number[tensor.dataType].name
    shape = tuple(
        dimension.constant.size if dimension.WhichOneof("dimension") == "constant" else -1
        for dimension in tensor.dimensions
    )
    return TensorType(shape, DTYPE_NAMES.get(name, name.lower()))


def _input_range(message: Any) -> InputRange:
    array = message.multiArrayType
    default = array.WhichOneof("defaultOptionalValue")
    number = getattr(array, default) if default else 0.0 if message.isOptional else None
    flexibility = array.WhichOneof("ShapeFlexibility")
    listed = array.enumeratedShapes.shapes if flexibility == "enumeratedShapes" else ()
    if flexibility == "shapeRange":
        bounds = tuple(
            (int(size.lowerBound), int(size.upperBound) if size.upperBound >= 0 else None)
            for size in array.shapeRange.sizeRanges
        )
    else:
        bounds = tuple((size, size) for size in array.shape)
    return InputRange(bounds, tuple(tuple(one.shape) for one in listed), tuple(array.shape), number)


def _compute_tensor(array: np.ndarray) -> torch.Tensor:
    """Convert an array to a float32, int64 or bool tensor. The interpreter's ops compute only in these dtypes."""
    if array.dtype.kind == "f":
        return torch.from_numpy(np.ascontiguousarray(array)).float()
    return torch.from_numpy(array if array.dtype.kind == "b" else array.astype(np.int64))
