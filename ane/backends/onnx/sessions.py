"""Sessions of ONNX Runtime, loaded when first used, and calls of them on torch's tensors.

ONNX Runtime is given the tensors' addresses, so a contiguous part of a cache is an input without a copy, and on a GPU
nothing of a cache is moved to the host.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from ane.backends.onnx.providers import CPU, CUDA, OnnxDevice, make_session, onnx_errors
from ane.system.errors import UserError

if TYPE_CHECKING:       # torch takes a second to import, and the default voice computes without it
    import torch
    from torch import Tensor

PROVIDER_OPTIONS = {CUDA: {"use_tf32": "0"}}    # ONNX Runtime's default computes float32 with a 10-bit mantissa
NUMPY_DTYPES = {"torch.float32": np.float32, "torch.float16": np.float16, "torch.int64": np.int64}


@dataclass(frozen=True)
class SessionKey:
    """Identifies a session: the path of a graph, and options of the provider as (name, value) pairs (for TensorRT the
    shapes that its engine takes)."""

    path: Path
    options: tuple[tuple[str, str], ...] = ()


class SessionCache:
    """Loads sessions by ``load`` and caches them, each with the bindings of the calls that use it."""

    def __init__(self, load: Callable[[SessionKey], Any]):
        self._load = load
        self._loaded: dict[SessionKey, tuple[Any, WeakKeyDictionary[BoundCall, Any]]] = {}

    def get(self, key: SessionKey) -> Any:
        """The session, loaded if it is not. Raises UserError when it cannot be loaded."""
        if key not in self._loaded:
            self._loaded[key] = self._load(key), WeakKeyDictionary()
        return self._loaded[key][0]

    def binding(self, call: "BoundCall") -> Any:
        """The binding of a call, made once for each time that its session is loaded."""
        session, bindings = self.get(call.key), self._loaded[call.key][1]
        if call not in bindings:
            bindings[call] = call.bound(session)
        return bindings[call]

    def unload(self, folder: Path | None = None) -> None:
        """Unload the sessions of the package in ``folder``, or all."""
        for key in list(self._loaded):
            if folder in (None, key.path.parent):
                del self._loaded[key]


class BoundCall:
    """A call of a graph with tensors of fixed shapes and addresses.

    It holds no reference to the session, so that an unloaded session is really freed. ``run`` loads it again.
    """

    def __init__(self, sessions: SessionCache, key: SessionKey, inputs: "Mapping[str, Tensor]",
                 outputs: "Mapping[str, Tensor]"):
        self.sessions, self.key, self.inputs, self.outputs = sessions, key, inputs, outputs

    def run(self, action: str, **inputs: np.ndarray) -> None:
        """Copy the given inputs into their tensors and run the graph. Other inputs keep their values.

        Raises:
            UserError: ONNX Runtime fails; ``action`` completes "ONNX Runtime cannot …".
        """
        import torch

        for name, array in inputs.items():
            self.inputs[name].copy_(torch.from_numpy(np.require(array, requirements=("C", "W"))))
        session = self.sessions.get(self.key)
        with onnx_errors(action):
            binding = self.sessions.binding(self)
            if next(iter(self.inputs.values())).is_cuda:
                torch.cuda.synchronize()            # ONNX Runtime computes on another stream than torch writes on
            session.run_with_iobinding(binding)

    def bound(self, session: Any) -> Any:
        binding = session.io_binding()
        for bind, tensors in ((binding.bind_input, self.inputs), (binding.bind_output, self.outputs)):
            for name, tensor in tensors.items():
                dtype = NUMPY_DTYPES[str(tensor.dtype)]
                bind(name, tensor.device.type, 0, dtype, list(tensor.shape), tensor.data_ptr())
        return binding

    def output(self, name: str) -> np.ndarray:
        """A copy on the host."""
        return self.outputs[name].cpu().numpy().copy()


def zeros(device: OnnxDevice, shape: tuple[int, ...], dtype: "torch.dtype | None" = None) -> "Tensor":
    """Return a tensor in the memory of a device, float32 by default. Raises UserError when memory does not suffice."""
    import torch

    with onnx_errors("allocate a buffer"):
        return torch.zeros(shape, dtype=dtype, device=device.memory)


def session_loader(device: OnnxDevice, threads: int | None = None) -> Callable[[SessionKey], Any]:
    """A function that loads sessions on a device; UserError where ONNX Runtime would fall back to the CPU."""
    def load(key: SessionKey) -> Any:
        own = {**PROVIDER_OPTIONS.get(device.provider, {}), **dict(key.options)}
        providers = [(device.provider, own)] if own else [device.provider]
        if device.name == "tensorrt":
            providers.append((CUDA, PROVIDER_OPTIONS[CUDA]))    # for operations that TensorRT lacks
        if device.provider != CPU:
            providers.append(CPU)                               # for operations on shapes
        with onnx_errors(f"load {key.path} on {device.short_name}"):
            session = make_session(key.path, providers, threads)
        if device.provider not in session.get_providers():
            raise UserError(f"the provider {device.short_name} did not load for {key.path.name}, and ONNX Runtime "
                            f"would compute on the CPU instead; it needs {device.requirements}. Or use "
                            "backend=onnx:cpu")
        return session

    return load
