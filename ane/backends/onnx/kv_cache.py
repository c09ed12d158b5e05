"""Keys or values of all layers for a number of lanes (or of prefixes), in one buffer that can grow.

Its shape is (layers, lanes, heads, length, width), so consecutive lanes of a layer are contiguous.
"""

from math import prod

import numpy as np

from ane.backends.onnx.buffers import Buffer, BufferAllocator, BufferSlice, HostBuffer, Shape


class OnnxKvCache:
    def __init__(self, allocator: BufferAllocator, shape: Shape, dtype: np.dtype):
        self.allocator, self.buffer = allocator, allocator.zeros(shape, dtype)

    @property
    def shape(self) -> Shape:
        return self.buffer.shape

    @property
    def length(self) -> int:
        return self.shape[3]

    def offset(self, layer: int, lane: int) -> int:
        """Index of the buffer's element at which a lane of a layer begins."""
        _, lanes, *rest = self.shape
        return (layer * lanes + lane) * prod(rest)

    def rows(self, first: int, position: np.ndarray) -> np.ndarray:
        """Indices (layers, n, heads, T) of the buffer's rows that ``write`` writes."""
        layers, lanes, heads, length, _ = self.shape
        lane = first + np.arange(len(position))
        begin = (np.arange(layers)[:, None, None] * lanes + lane[:, None]) * heads + np.arange(heads)
        return begin[..., None] * length + position[:, None]

    def whole(self) -> BufferSlice:
        """All rows of the buffer."""
        return BufferSlice(self.buffer, 0, (prod(self.shape[:-1]), self.shape[-1]))

    def write(self, first: int, position: np.ndarray, new: Buffer) -> None:
        """Write ``new`` (layers, n, heads, T, width) to positions (n, T) of the lanes ``first`` … ``first + n − 1``."""
        n, columns = position.shape
        if self.allocator.rows_by_graph or not isinstance(self.buffer, HostBuffer):
            self.allocator.write_rows(self.buffer, self.rows(first, position), new)
            return
        array, start = self.buffer.array, int(position[0, 0])
        if (position == start + np.arange(columns)).all():          # the same positions in all lanes
            array[:, first:first + n, :, start:start + columns] = new.array
        else:
            lanes = first + np.arange(n)[:, None]
            array[:, lanes, :, position] = new.array.transpose(1, 3, 0, 2, 4)

    def grow(self, length: int) -> None:
        """Allocate a buffer of more positions and copy the content there."""
        layers, lanes, heads, before, width = self.shape
        old, self.buffer = self.buffer, self.allocator.zeros((layers, lanes, heads, length, width), self.buffer.dtype)
        self.write(0, np.broadcast_to(np.arange(before), (lanes, before)), old)
