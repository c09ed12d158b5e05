"""Weights in a GPU's memory that all sessions of a package use; ONNX Runtime alone uploads them for each session.

A session uses a value given with ``SessionOptions.add_initializer`` as it is, without a copy, where that lies in the
memory that the session would copy the weight to (onnxruntime 1.25 to 1.30, SaveInitializedTensors in
core/framework/session_state_utils.cc). Else it makes its own copy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from ane.backends.onnx.providers import CPU, CUDA, OnnxDevice, identity_graph, make_session, onnxruntime_module

# Operators whose weights, inputs 1 and later, are shared. ONNX Runtime's optimizers transpose weights of others under
# the same name, for which the shared value would be wrong (onnxruntime 1.30, TransposeInitializer in
# core/optimizer/transpose_optimization/ort_optimizer_api_impl.cc, and the operators that call it).
OPERATORS = frozenset({"Conv", "Gemm", "MatMul", "MatMulNBits"})


@dataclass(frozen=True)
class StoredWeight:
    """A tensor in a file of weights; graphs that share it may have other names for it."""

    file: Path
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    def read(self) -> np.ndarray:
        return np.memmap(self.file, self.dtype, "r", self.offset, self.shape)


class SharedWeights:
    """Uploads weights when the first session needs them; they are freed with the last session that does."""

    def __init__(self, device: OnnxDevice):
        self.device = device
        self._values: WeakValueDictionary[StoredWeight, Any] = WeakValueDictionary()
        self._users: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()

    def initializers(self, graph: Path) -> dict[str, Any]:
        """The graph's weights that can be shared: name → OrtValue on the device. Raises ONNX Runtime's errors."""
        weights = shareable_weights(graph)
        found = {weight: self._values.get(weight) for weight in weights.values()}
        missing = [weight for weight, value in found.items() if value is None]
        found |= dict(zip(missing, upload(self.device, [weight.read() for weight in missing]), strict=True))
        self._values.update(found)
        return {name: found[weight] for name, weight in weights.items()}

    def keep(self, session: Any, initializers: Mapping[str, Any]) -> None:
        """Keep these values as long as the session exists."""
        if initializers:
            self._users[session] = list(initializers.values())

    def __len__(self) -> int:
        return len(self._values)


def shareable_weights(graph: Path) -> dict[str, StoredWeight]:
    """The weights in files, by name, that only ``OPERATORS`` use."""
    import onnx

    content = onnx.load(graph, load_external_data=False).graph
    uses = [(name, node.op_type in OPERATORS and index > 0) for node in content.node
            for index, name in enumerate(node.input)]
    others = {name for name, fits in uses if not fits} | {output.name for output in content.output}
    weights = {}
    for tensor in content.initializer:
        if tensor.external_data and tensor.name not in others:
            stored = {entry.key: entry.value for entry in tensor.external_data}
            weights[tensor.name] = StoredWeight(graph.parent / stored["location"], int(stored.get("offset", 0)),
                                                onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type),
                                                tuple(tensor.dims))
    return weights


def upload(device: OnnxDevice, arrays: Iterable[np.ndarray]) -> list[Any]:
    """The arrays as OrtValues in the device's memory, which is freed with them.

    They are outputs of a session, whose memory is freed once nothing uses it; that of ``OrtValue.ortvalue_from_numpy``
    stays with the process. ``add_initializer`` refuses values that own their memory, so they refer to it by DLPack.
    """
    ort = onnxruntime_module()
    own = {"arena_extend_strategy": "kSameAsRequested"}      # the default takes up to twice the bytes
    providers = [(CUDA, own), CPU] if device.provider == CUDA else [device.provider]
    sessions: dict[np.dtype, Any] = {}
    values = []
    for array in arrays:
        if array.dtype not in sessions:
            sessions[array.dtype] = make_session(identity_graph(array.dtype), providers)
        binding = sessions[array.dtype].io_binding()
        binding.bind_cpu_input("x", array)
        binding.bind_output("y", device.memory)
        sessions[array.dtype].run_with_iobinding(binding)
        value = binding.get_outputs()[0]._ortvalue
        values.append(ort.OrtValue(type(value).from_dlpack(value.to_dlpack())))
    return values
