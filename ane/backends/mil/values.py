"""Define the types and constants of a MIL program as a package stores them, and decode compressed weights.

A constexpr op decompresses a weight. Each such op has a function here, with the argument names of coremltools'
documentation. The function decodes the op's arguments as programs for iOS 16 store them (flat packed bytes, and the
weight's shape as ``shape``), and as programs for iOS 18 store them (an array in the weight's shape). The function
returns a dense array or, for an op with a sparse result, a mask and the nonzero values.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DTYPES = {
    "fp16": np.float16,
    "fp32": np.float32,
    "fp64": np.float64,
    "bool": np.bool_,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
}

# type that is stored packed → bits per number
PACKED = {"uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "int4": 4, "uint6": 6}


@dataclass(frozen=True)
class TensorType:
    """The shape of a tensor, with −1 for a dynamic dimension, and its dtype, such as fp16, fp32, int32 or bool."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def stored_bytes(self) -> int:
        if self.dtype in PACKED:
            return -(-self.size * PACKED[self.dtype] // 8)
        return self.size * np.dtype(DTYPES[self.dtype]).itemsize

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            declared in (-1, size) for declared, size in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True)
class InputRange:
    """The shapes that an input may have, and its default.

    Attributes:
        bounds: Smallest and largest size of each axis. A largest size of ``None`` means that the axis has no limit.
        listed: Shapes that the input may have. If ``listed`` is empty, ``bounds`` decides.
        shape: Shape of the default.
        default: Number in every element of the default. ``None`` means that the caller must pass the input.
    """

    bounds: tuple[tuple[int, int | None], ...]
    listed: tuple[tuple[int, ...], ...] = ()
    shape: tuple[int, ...] = ()
    default: float | None = None

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Return whether an input may have this shape."""
        if self.listed:
            return shape in self.listed
        return not self.bounds or (
            len(shape) == len(self.bounds)
            and all(
                low <= size and (high is None or size <= high)
                for size, (low, high) in zip(shape, self.bounds, strict=True)
            )
        )

    def __str__(self) -> str:
        if self.listed:
            return "one of " + ", ".join(map(str, self.listed))
        return (
            "("
            + ", ".join(
                f"{low} to {'any' if high is None else high}" if high != low else str(low) for low, high in self.bounds
            )
            + ")"
        )


def validate_inputs(
    function: str, declared: Mapping[str, TensorType], inputs: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Check a function's inputs, and return them in the order in which the function declares them.

    Raises:
        TypeError: An input has another name, shape or kind of numbers than the function declares.
    """
    if set(inputs) != set(declared):
        raise TypeError(f"{function} takes {sorted(declared)}, got {sorted(inputs)}")
    arrays = {name: np.asarray(inputs[name]) for name in declared}
    for name, type in declared.items():
        array = arrays[name]
        if array.dtype.kind not in ("f" if type.dtype in ("fp16", "fp32") else "iub") or not type.fits(array.shape):
            raise TypeError(f"input {name} of {function} is {type}, got {array.dtype} {array.shape}")
    return arrays


@dataclass(frozen=True)
class Immediate:
    """A constant that the program itself contains. ``values`` are bytes, a sequence or a string."""

    type: TensorType
    values: Any = field(repr=False)

    @property
    def key(self) -> Hashable:
        return self.type, self.values if isinstance(self.values, bytes | str) else tuple(self.values)


@dataclass(frozen=True)
class Blob:
    """A constant in a weight file. The file has a metadata record for it at the byte ``offset``."""

    type: TensorType
    file: str
    offset: int

    @property
    def key(self) -> Hashable:
        return self.file, self.offset, self.type.dtype


@dataclass(frozen=True)
class Expression:
    """A compressed weight: the output ``index`` of a constexpr op."""

    type: TensorType
    op: str
    arguments: dict[str, "Constant"] = field(repr=False)
    index: int
    key: Hashable = field(repr=False)


Constant = Immediate | Blob | Expression


def unpack(data: np.ndarray, bits: int, count: int, signed: bool = False) -> np.ndarray:
    """Unpack ``count`` numbers with ``bits`` bits from bytes (n,) uint8. The lowest bit of a number comes first."""
    if bits == 8:
        numbers = data[:count]
    elif bits == 4:
        numbers = np.stack((data & 15, data >> 4), axis=-1).reshape(-1)[:count]
    else:
        rows = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
        numbers = np.packbits(rows, axis=-1, bitorder="little")[:, 0]
    if signed:
        shift = 8 - bits
        return (numbers << shift).view(np.int8) >> shift
    return numbers


def from_bytes(data: np.ndarray, type: TensorType) -> np.ndarray:
    """Convert stored bytes (uint8) to an array with the shape of ``type``. Packed types become uint8 or int8."""
    if type.dtype in PACKED:
        numbers = unpack(data, PACKED[type.dtype], type.size, signed=type.dtype.startswith("int"))
        return numbers.reshape(type.shape)
    return data.view(DTYPES[type.dtype]).reshape(type.shape)


def from_immediate(constant: Immediate) -> np.ndarray | str:
    if isinstance(constant.values, bytes):
        return from_bytes(np.frombuffer(bytearray(constant.values), np.uint8), constant.type)
    if constant.type.dtype == "string":
        return constant.values
    return np.array(constant.values, DTYPES[constant.type.dtype]).reshape(constant.type.shape)


def affine_dequantize(
    quantized_data: np.ndarray, zero_point: np.ndarray, scale: np.ndarray, axis: np.ndarray
) -> np.ndarray:
    shape = [1] * quantized_data.ndim
    shape[int(axis)] = -1
    scale, zero_point = (part.astype(np.float32).reshape(shape if part.ndim else ()) for part in (scale, zero_point))
    return (quantized_data.astype(np.float32) - zero_point) * scale


def blockwise_shift_scale(data: np.ndarray, scale: np.ndarray, offset: np.ndarray | None = None) -> np.ndarray:
    """Dequantise block by block: (data − offset) · scale.

    ``scale`` and ``offset`` have one number per block, so their size on an axis is the number of blocks along the axis.
    """
    blocks = [axis for size, count in zip(data.shape, scale.shape, strict=True) for axis in (count, size // count)]
    spread = [axis for count in scale.shape for axis in (count, 1)]
    dense = data.astype(np.float32).reshape(blocks)
    if offset is not None:
        dense -= offset.astype(np.float32).reshape(spread)
    dense *= scale.astype(np.float32).reshape(spread)
    return dense.reshape(data.shape)


def lut_to_dense(
    indices: np.ndarray, lut: np.ndarray, shape: np.ndarray | None = None, vector_axis: np.ndarray | None = None
) -> np.ndarray:
    """Look up each index in a palette. A palette entry is a number or, for iOS 18, a vector.

    For iOS 16, ``lut`` is one palette, (entries,). For iOS 18, ``lut`` has a palette per block of the weight, (blocks
    along each axis …, entries, vector).
    """
    if shape is not None:
        bits = int(lut.size).bit_length() - 1
        return lut[unpack(indices, bits, int(np.prod(shape, dtype=np.int64)))].reshape(shape)
    *counts, palette, vector = lut.shape
    rows = indices.astype(np.int64)
    stride = palette
    for axis in reversed(range(indices.ndim)):
        size, count = indices.shape[axis], counts[axis]
        if count > 1:
            block = np.arange(size) // (size // count) * stride
            rows += block.reshape(-1, *[1] * (indices.ndim - 1 - axis))
        stride *= count
    dense = lut.reshape(-1, vector)[rows]
    if vector == 1:
        return dense[..., 0]
    axis = int(vector_axis) % indices.ndim
    shape = [size * vector if i == axis else size for i, size in enumerate(indices.shape)]  # type: ignore[assignment]
    return np.moveaxis(dense, -1, axis + 1).reshape(shape)


def sparse_to_dense(nonzero_data: np.ndarray, mask: np.ndarray, shape: np.ndarray | None = None) -> np.ndarray:
    if shape is not None:
        mask = unpack(mask, 1, int(np.prod(shape, dtype=np.int64))).reshape(shape)
    dense = np.zeros(mask.shape, nonzero_data.dtype)
    dense[mask != 0] = nonzero_data
    return dense


def lut_to_sparse(
    indices_mask: np.ndarray, indices_nonzero_data: np.ndarray, lut: np.ndarray, vector_axis: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    dense = lut_to_dense(sparse_to_dense(indices_nonzero_data, indices_mask), lut, vector_axis=vector_axis)
    mask = indices_mask
    if vector_axis is not None:
        mask = np.repeat(mask, lut.shape[-1], axis=int(vector_axis))
    return mask, dense[mask != 0]


def sparse_blockwise_shift_scale(
    data_mask: np.ndarray, nonzero_data: np.ndarray, scale: np.ndarray, offset: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    dense = blockwise_shift_scale(sparse_to_dense(nonzero_data, data_mask), scale, offset)
    return data_mask, dense[data_mask != 0]


def cast(source_val: np.ndarray, output_dtype: str) -> np.ndarray:
    return source_val.astype({"fp32": np.float32, "fp16": np.float16}[output_dtype])


EXPRESSIONS: dict[str, Callable[..., np.ndarray | tuple[np.ndarray, ...]]] = {
    f"constexpr_{function.__name__}": function
    for function in (
        affine_dequantize,
        blockwise_shift_scale,
        lut_to_dense,
        sparse_to_dense,
        lut_to_sparse,
        sparse_blockwise_shift_scale,
        cast,
    )
}
