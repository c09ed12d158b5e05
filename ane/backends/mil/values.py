"""Types and constants of a program, as a package stores them."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DTYPES = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64, "bool": np.bool_, "int8": np.int8,
          "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8, "uint16": np.uint16,
          "uint32": np.uint32, "uint64": np.uint64}

# packed type → bits of each number
PACKED = {"uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "int4": 4, "uint6": 6}


@dataclass(frozen=True)
class TensorType:
    """Shape, with −1 for a dynamic dimension, and dtype: fp16, fp32, int32, bool, uint4, string …"""

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
            declared in (-1, size) for declared, size in zip(self.shape, shape, strict=True))

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True)
class Immediate:
    """A constant inside the program; ``values`` are bytes, a sequence or a string."""

    type: TensorType
    values: Any = field(repr=False)

    @property
    def key(self) -> Hashable:
        return self.type, self.values if isinstance(self.values, bytes | str) else tuple(self.values)


@dataclass(frozen=True)
class Blob:
    """A constant in a weight file, described by the metadata at ``offset``."""

    type: TensorType
    file: str
    offset: int

    @property
    def key(self) -> Hashable:
        return self.file, self.offset, self.type.dtype


@dataclass(frozen=True)
class Expression:
    """Output ``index`` of a constexpr op: a weight that is stored compressed."""

    type: TensorType
    op: str
    arguments: dict[str, "Constant"] = field(repr=False)
    index: int
    key: Hashable = field(repr=False)


Constant = Immediate | Blob | Expression


def unpack(data: np.ndarray, bits: int, count: int, signed: bool = False) -> np.ndarray:
    """The first ``count`` numbers of ``bits`` bits each, lowest bit first: (bytes,) uint8 → (count,) uint8 or int8."""
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
    """Convert raw bytes (uint8) to an array of the type's shape; packed types become uint8 or int8."""
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
