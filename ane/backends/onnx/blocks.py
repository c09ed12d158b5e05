"""Memory that a graph reads and writes where it lies: on the host as NumPy arrays, on a device as OrtValues.

ONNX Runtime is given addresses, so a part of a block that lies in one piece is an input without being copied.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from ane.backends.onnx.providers import Device, OutOfMemoryError, engine_errors, quiet_options, runtime
from ane.backends.onnx.sessions import Sessions, Wanted

Shape = tuple[int, ...]
OPSET, IR_VERSION = 18, 8           # of the graph that writes rows
NO_RECORDING = -1                   # ONNX Runtime's word for a run that is not recorded


class Block(Protocol):
    """An array of a fixed place."""

    shape: Shape
    dtype: np.dtype

    @property
    def address(self) -> int: ...

    def fill(self, array: np.ndarray) -> None:
        """Copy an array of the block's shape into it; its dtype is changed where it differs."""

    def numpy(self) -> np.ndarray:
        """A copy on the host."""


class HostBlock:
    def __init__(self, shape: Shape, dtype: Any):
        self.array = np.zeros(shape, dtype)
        self.shape, self.dtype = shape, self.array.dtype

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    def fill(self, array: np.ndarray) -> None:
        np.copyto(self.array, array, casting="same_kind")

    def numpy(self) -> np.ndarray:
        return self.array.copy()


class DeviceBlock:
    def __init__(self, shape: Shape, dtype: Any, memory: str):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.value = runtime().OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype), memory, 0)

    @property
    def address(self) -> int:
        return self.value.data_ptr()

    def fill(self, array: np.ndarray) -> None:
        self.value.update_inplace(np.ascontiguousarray(array, self.dtype))

    def numpy(self) -> np.ndarray:
        return np.array(self.value.numpy())


class Memory:
    """Where blocks lie: ``where`` is "cpu" or "cuda".

    ``written``: rows of caches are written by a graph on the device, which is the one way there is on a GPU; on the
    host NumPy does it in place, unless a test asks for the graph. ``make_room`` is called when memory runs out.
    """

    def __init__(self, device: Device, written: bool | None = None, make_room: Callable[[], None] = lambda: None):
        self.device, self.where, self._make_room = device, device.memory, make_room
        self.written = device.memory != "cpu" if written is None else written
        self._writers: dict[np.dtype, Any] = {}

    def block(self, shape: Sequence[int], dtype: Any) -> Block:
        """Zeros. Raises OutOfMemoryError when there is no room, not even with ``make_room``."""
        return self._with_room(lambda: self._zeros(tuple(shape), dtype))

    def _with_room(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except OutOfMemoryError:
            self._make_room()
            return call()

    def _zeros(self, shape: Shape, dtype: Any) -> Block:
        with engine_errors("keep a cache"):
            return DeviceBlock(shape, dtype, self.where) if self.where != "cpu" else HostBlock(shape, dtype)

    def bind(self, binding: Any, name: str, block: Block, output: bool = False, offset: int = 0,
             shape: Shape | None = None) -> None:
        """Make a block, or the part of ``shape`` that begins ``offset`` numbers into it, an input or an output."""
        bind = binding.bind_output if output else binding.bind_input
        bind(name, self.where, 0, block.dtype, list(block.shape if shape is None else shape),
             block.address + offset * block.dtype.itemsize)

    def write_rows(self, target: Block, rows: np.ndarray, source: Block) -> None:
        """Row i of ``source`` to row ``rows[i]`` of ``target``, in place; rows are of the last axis."""
        self._with_room(lambda: self._write_rows(target, rows, source))

    def _write_rows(self, target: Block, rows: np.ndarray, source: Block) -> None:
        width = target.shape[-1]
        session = self._writer(target.dtype)
        binding = session.io_binding()
        whole = (prod(target.shape[:-1]), width)
        self.bind(binding, "target", target, shape=whole)
        self.bind(binding, "source", source, shape=(prod(source.shape[:-1]), width))
        binding.bind_cpu_input("rows", np.ascontiguousarray(rows.reshape(-1, 1), np.int64))
        self.bind(binding, "written", target, output=True, shape=whole)
        with engine_errors("write the cache"):
            session.run_with_iobinding(binding)

    def _writer(self, dtype: np.dtype) -> Any:
        if dtype not in self._writers:
            providers = list(dict.fromkeys(["CUDAExecutionProvider"] * (self.where == "cuda")
                                           + ["CPUExecutionProvider"]))
            with engine_errors("load the graph that writes the cache"):
                self._writers[dtype] = runtime().InferenceSession(writer(dtype), quiet_options(), providers=providers)
        return self._writers[dtype]


@dataclass(frozen=True)
class Part:
    """A part of a block that lies in one piece: of ``shape``, ``offset`` numbers into it."""

    block: Block
    offset: int
    shape: Shape


class Bound:
    """A call of one shape: its buffers, bound to the session that is loaded for it when it is run.

    The call itself keeps no session, so that one that makes room for others is really gone.

    Args:
        inputs, outputs: shapes of buffers that are the call's own. kinds: dtypes of those that are not float32.
        parts: inputs that lie in buffers of others.
        recorded: as a CUDA graph; None: by a session that records none.
    """

    def __init__(self, memory: "Memory", sessions: Sessions, wanted: Wanted, inputs: Mapping[str, Shape],
                 outputs: Mapping[str, Shape], kinds: Mapping[str, Any], parts: Mapping[str, Part] | None = None,
                 recorded: bool | None = None):
        self.memory, self.sessions, self.wanted, self.recorded = memory, sessions, wanted, recorded
        self.inputs, self.outputs = ({name: memory.block(shape, kinds.get(name, np.float32))
                                      for name, shape in those.items()} for those in (inputs, outputs))
        self.parts = dict(parts or {})

    def run(self, doing: str, **inputs: np.ndarray) -> None:
        """Inputs that are not given are what they were.

        Raises:
            OutOfMemoryError: not even with all other sessions gone is there room for it. UserError: ONNX Runtime fails.
        """
        for name, array in inputs.items():
            self.inputs[name].fill(array)

        def call(session: Any) -> None:
            with engine_errors(doing):
                session.run_with_iobinding(*self.sessions.binding(self.wanted, self, self._bind))

        self.sessions.relieved(self.wanted, call)

    def _bind(self, session: Any) -> tuple[Any, Any]:
        """The binding, and options of the run."""
        binding = session.io_binding()
        for those, output in ((self.inputs, False), (self.outputs, True)):
            for name, block in those.items():
                self.memory.bind(binding, name, block, output=output)
        for name, part in self.parts.items():
            self.memory.bind(binding, name, part.block, offset=part.offset, shape=part.shape)
        if self.recorded is None:
            return binding, None
        options = runtime().RunOptions()
        number = self.sessions.recording(self.wanted) if self.recorded else NO_RECORDING
        options.add_run_config_entry("gpu_graph_id", str(number))
        return binding, options


def writer(dtype: np.dtype) -> bytes:
    """A graph that writes rows; with its output where its input is, nothing else is touched (ScatterND copies only
    what lies elsewhere)."""
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
