"""Keys or values of all layers, for a number of lanes (or of places for prefixes), in one block that grows by buckets.

(layers, lanes, heads, length, width): the part of a layer and of lanes that follow each other lies in one piece.
"""

from math import prod

import numpy as np

from ane.backends.onnx.blocks import Block, HostBlock, Memory, Shape


class Cache:
    def __init__(self, memory: Memory, shape: Shape, dtype: np.dtype):
        self.memory, self.block = memory, memory.block(shape, dtype)

    @property
    def shape(self) -> Shape:
        return self.block.shape

    @property
    def length(self) -> int:
        return self.shape[3]

    def offset(self, layer: int, lane: int) -> int:
        """Where a lane of a layer begins, in numbers."""
        _, lanes, *rest = self.shape
        return (layer * lanes + lane) * prod(rest)

    def write(self, first: int, position: np.ndarray, new: Block) -> None:
        """``new`` (layers, n, heads, T, width) to the positions (n, T) of the lanes ``first`` … ``first + n − 1``."""
        n, columns = position.shape
        if self.memory.written or not isinstance(self.block, HostBlock):
            self.memory.write_rows(self.block, self._rows(first, position), new)
            return
        array, start = self.block.array, int(position[0, 0])
        if (position == start + np.arange(columns)).all():          # lanes that advance together
            array[:, first:first + n, :, start:start + columns] = new.array
        else:
            lanes = first + np.arange(n)[:, None]
            array[:, lanes, :, position] = new.array.transpose(1, 3, 0, 2, 4)

    def grow(self, length: int) -> None:
        """Make room for more positions; what is stored stays."""
        layers, lanes, heads, before, width = self.shape
        old, self.block = self.block, self.memory.block((layers, lanes, heads, length, width), self.block.dtype)
        self.write(0, np.broadcast_to(np.arange(before), (lanes, before)), old)

    def _rows(self, first: int, position: np.ndarray) -> np.ndarray:
        """Rows of the block, in the order of ``new``'s."""
        layers, lanes, heads, length, _ = self.shape
        lane = first + np.arange(len(position))
        begin = (np.arange(layers)[:, None, None] * lanes + lane[:, None]) * heads + np.arange(heads)
        return (begin[..., None] * length + position[:, None]).ravel()
