"""Arrays that graphs read and write in place: NumPy arrays on the host, OrtValues on a device.

ONNX Runtime is given addresses, so a contiguous part of a buffer can be an input without a copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ane.backends.onnx.providers import OnnxDevice, make_session, onnx_errors, onnxruntime_module
from ane.backends.onnx.sessions import SessionCache, SessionKey

Shape = tuple[int, ...]
OPSET, IR_VERSION = 18, 8            # of the graph that writes rows
NOT_RECORDED = -1                   # gpu_graph_id of a run that is not recorded as a CUDA graph


class HostBuffer:
    """An array at a fixed address on the host."""

    def __init__(self, shape: Shape, dtype: Any):
        self.array = np.zeros(shape, dtype)
        self.shape, self.dtype = shape, self.array.dtype

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    def fill(self, array: np.ndarray) -> None:
        """Copy an array of the buffer's shape into it, converted to its dtype."""
        np.copyto(self.array, array, casting="same_kind")

    def numpy(self) -> np.ndarray:
        """A copy on the host."""
        return self.array.copy()


class DeviceBuffer:
    """As ``HostBuffer``, in an OrtValue in device memory."""

    def __init__(self, shape: Shape, dtype: Any, memory: str):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.value = onnxruntime_module().OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype), memory, 0)

    @property
    def address(self) -> int:
        return self.value.data_ptr()

    def fill(self, array: np.ndarray) -> None:
        self.value.update_inplace(np.ascontiguousarray(array, self.dtype))

    def numpy(self) -> np.ndarray:
        return np.array(self.value.numpy())


Buffer = HostBuffer | DeviceBuffer


class BufferAllocator:
    """Makes buffers in the memory of a device, and binds them to sessions.

    Args:
        rows_by_graph: write cache rows with a graph, the only way on a GPU, instead of with NumPy. None: on a GPU only.

    Attributes:
        where: memory of the buffers: "cpu" or "cuda".
    """

    def __init__(self, device: OnnxDevice, rows_by_graph: bool | None = None):
        self.device, self.where = device, device.memory
        self.rows_by_graph = device.memory != "cpu" if rows_by_graph is None else rows_by_graph
        self._writers: dict[np.dtype, Any] = {}

    def zeros(self, shape: Shape, dtype: Any) -> Buffer:
        """A buffer of zeros. Raises UserError when memory does not suffice."""
        with onnx_errors("allocate a buffer"):
            return DeviceBuffer(shape, dtype, self.where) if self.where != "cpu" else HostBuffer(shape, dtype)

    def bind(self, binding: Any, name: str, buffer: Buffer, output: bool = False, offset: int = 0,
             shape: Shape | None = None) -> None:
        """Bind a buffer as input or output ``name``; with ``shape``, the part that begins at element ``offset``."""
        bind = binding.bind_output if output else binding.bind_input
        bind(name, self.where, 0, buffer.dtype, list(buffer.shape if shape is None else shape),
             buffer.address + offset * buffer.dtype.itemsize)

    def write_rows(self, target: Buffer, rows: np.ndarray, source: Buffer) -> None:
        """Copy row i of ``source`` to row ``rows[i]`` of ``target``, in place. Rows run along the last axis."""
        width = target.shape[-1]
        session = self._writer(target.dtype)
        binding = session.io_binding()
        all_rows = (prod(target.shape[:-1]), width)
        self.bind(binding, "target", target, shape=all_rows)
        self.bind(binding, "source", source, shape=(prod(source.shape[:-1]), width))
        binding.bind_cpu_input("rows", np.ascontiguousarray(rows.reshape(-1, 1), np.int64))
        self.bind(binding, "written", target, output=True, shape=all_rows)
        with onnx_errors("write the cache"):
            session.run_with_iobinding(binding)

    def _writer(self, dtype: np.dtype) -> Any:
        if dtype not in self._writers:
            providers = list(dict.fromkeys(["CUDAExecutionProvider"] * (self.where == "cuda")
                                           + ["CPUExecutionProvider"]))
            with onnx_errors("load the graph that writes the cache"):
                self._writers[dtype] = make_session(row_writer_graph(dtype), providers)
        return self._writers[dtype]


@dataclass(frozen=True)
class BufferSlice:
    """A contiguous part of a buffer: of ``shape``, beginning at element ``offset``."""

    buffer: Buffer
    offset: int
    shape: Shape


class BoundCall:
    """A call of a graph with fixed shapes: its buffers, and their binding to the session.

    It holds no reference to the session, so that an unloaded session is really freed. ``run`` loads it again.

    Args:
        inputs, outputs: shapes of the buffers that the call allocates. dtypes: of buffers that are not float32.
        slices: inputs that are slices of other buffers.
        recorded: whether to record the call as a CUDA graph; None: the session does not support it.
    """

    def __init__(self, allocator: BufferAllocator, sessions: SessionCache, key: SessionKey,
                 inputs: Mapping[str, Shape], outputs: Mapping[str, Shape], dtypes: Mapping[str, Any],
                 slices: Mapping[str, BufferSlice] | None = None, recorded: bool | None = None):
        self.allocator, self.sessions, self.key, self.recorded = allocator, sessions, key, recorded
        self.inputs, self.outputs = ({name: allocator.zeros(shape, dtypes.get(name, np.float32))
                                      for name, shape in shapes.items()} for shapes in (inputs, outputs))
        self.slices = dict(slices or {})

    def run(self, action: str, **inputs: np.ndarray) -> None:
        """Copy the given inputs into their buffers and run the graph. Other inputs keep their values.

        Raises:
            UserError: ONNX Runtime fails; ``action`` completes "ONNX Runtime cannot …".
        """
        for name, array in inputs.items():
            self.inputs[name].fill(array)
        session = self.sessions.get(self.key)
        with onnx_errors(action):
            session.run_with_iobinding(*self.sessions.binding(self.key, self, self._bind))

    def _bind(self, session: Any) -> tuple[Any, Any]:
        """The binding, and the options of runs."""
        binding = session.io_binding()
        for buffers, output in ((self.inputs, False), (self.outputs, True)):
            for name, buffer in buffers.items():
                self.allocator.bind(binding, name, buffer, output=output)
        for name, part in self.slices.items():
            self.allocator.bind(binding, name, part.buffer, offset=part.offset, shape=part.shape)
        if self.recorded is None:
            return binding, None
        options = onnxruntime_module().RunOptions()
        number = self.sessions.next_recording(self.key) if self.recorded else NOT_RECORDED
        options.add_run_config_entry("gpu_graph_id", str(number))
        return binding, options


def row_writer_graph(dtype: np.dtype) -> bytes:
    """A graph that writes the rows ``source`` to the rows ``rows`` of ``target``.

    With its output bound to the memory of its input, ScatterND copies nothing and writes only those rows
    (onnxruntime 1.25 to 1.30: core/providers/cuda/tensor/scatter_nd.cc and core/providers/cpu/tensor/scatter_nd.cc).
    """
    from onnx import TensorProto, helper

    kind = helper.np_dtype_to_tensor_dtype(dtype)
    target, source = (helper.make_tensor_value_info(name, kind, [size, "width"])
                      for name, size in (("target", "rows"), ("source", "count")))
    rows = helper.make_tensor_value_info("rows", TensorProto.INT64, ["count", 1])
    written = helper.make_tensor_value_info("written", kind, ["rows", "width"])
    node = helper.make_node("ScatterND", ["target", "rows", "source"], ["written"])
    graph = helper.make_graph([node], "write", [target, rows, source], [written])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)],
                             ir_version=IR_VERSION).SerializeToString()


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
