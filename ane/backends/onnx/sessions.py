"""Load sessions of ONNX Runtime on first use, and run them on torch's tensors.

ONNX Runtime receives the tensors' addresses. So a contiguous part of a cache is an input without a copy, and on a GPU
no part of a cache moves to the host.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition, Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from ane.backends.onnx.engines import ENGINE_FOLDER, TensorRTOptions, engine_options, input_axes, this_machine
from ane.backends.onnx.providers import CPU, CUDA, OnnxDevice, make_session, onnx_errors
from ane.bundles.package_records import PackageRecord
from ane.system.errors import UserError

if TYPE_CHECKING:  # because torch takes a second to import, and the default voice computes without it
    import torch
    from torch import Tensor

PROVIDER_OPTIONS = {CUDA: {"use_tf32": "0"}}  # ONNX Runtime's default computes float32 with a 10-bit mantissa
NUMPY_DTYPES = {"torch.float32": np.float32, "torch.float16": np.float16, "torch.int64": np.int64}


@dataclass(frozen=True)
class SessionKey:
    """Identifies a session by the path of its graph and the options of its provider.

    Attributes:
        path: Path of the graph.
        options: (name, value) pairs, for TensorRT with the shapes that its engine takes.
    """

    path: Path
    options: tuple[tuple[str, str], ...] = ()


class GraphSessions:
    """The sessions of one graph. Each is lent to one thread at once. Bound calls use the first session.

    Threads in one session wait for each other's memory at every operation, which makes them as slow as one thread. So a
    thread waits for a session. Once threads have waited longer than loading takes, another session is loaded.
    """

    def __init__(self, load: Callable[[], Any]):
        self._load, began = load, perf_counter()
        self.first = load()
        self._loading, self._waited = perf_counter() - began, 0.0  # seconds
        self._unused, self._returned = [self.first], Condition()
        self.bindings: WeakKeyDictionary[BoundCall, Any] = WeakKeyDictionary()

    @contextmanager
    def lend(self) -> Iterator[Any]:
        """Lend a session within the block. Raises UserError if it cannot be loaded."""
        session = self._take()
        try:
            yield session
        finally:
            with self._returned:
                self._unused.append(session)
                self._returned.notify()

    def _take(self) -> Any:
        with self._returned:
            began = perf_counter()
            if not self._unused:
                self._returned.wait_for(lambda: self._unused, max(self._loading - self._waited, 0))
                self._waited += perf_counter() - began
            if self._unused:
                return self._unused.pop()
            self._waited = 0.0
        return self._load()


class SessionCache:
    """Loads sessions with ``load``, and caches them. Several threads may use it."""

    def __init__(self, load: Callable[[SessionKey], Any]):
        self._load, self._loading = load, Lock()
        self._loaded: dict[SessionKey, GraphSessions] = {}

    def of(self, key: SessionKey) -> GraphSessions:
        """Return the sessions of a graph, with the first one loaded. Raises UserError if it cannot be loaded."""
        with self._loading:
            if key not in self._loaded:
                self._loaded[key] = GraphSessions(partial(self._load, key))
            return self._loaded[key]

    def get(self, key: SessionKey) -> Any:
        """Return the session, for a backend that only one thread calls. Errors: ``of``."""
        return self.of(key).first

    def binding(self, call: "BoundCall") -> Any:
        """Return the binding of a call. It is made once each time the call's session is loaded."""
        loaded = self.of(call.key)
        if call not in loaded.bindings:
            loaded.bindings[call] = call.bound(loaded.first)
        return loaded.bindings[call]

    def unload(self, folder: Path | None = None) -> None:
        """Unload the sessions of the package in ``folder``, or all sessions."""
        for key in list(self._loaded):
            if folder in (None, key.path.parent):
                self._loaded.pop(key, None)


class BoundCall:
    """A call of a graph with tensors of fixed shapes and addresses.

    It holds no reference to the session, so that an unloaded session is really freed. ``run`` loads it again.

    Args:
        sessions: Cache of the session.
        key: Key of the session.
        inputs: Tensors of the inputs, by name.
        outputs: Tensors of the outputs, by name.
    """

    def __init__(
        self, sessions: SessionCache, key: SessionKey, inputs: "Mapping[str, Tensor]", outputs: "Mapping[str, Tensor]"
    ):
        self.sessions, self.key, self.inputs, self.outputs = sessions, key, inputs, outputs

    def run(self, action: str, **inputs: np.ndarray) -> None:
        """Copy these inputs into their tensors, and run the graph. Other inputs keep their values.

        Raises:
            UserError: ONNX Runtime fails. ``action`` completes "ONNX Runtime cannot …".
        """
        import torch

        for name, array in inputs.items():
            self.inputs[name].copy_(torch.from_numpy(np.require(array, requirements=("C", "W"))))
        session = self.sessions.get(self.key)
        with onnx_errors(action):
            binding = self.sessions.binding(self)
            if next(iter(self.inputs.values())).is_cuda:
                torch.cuda.synchronize()  # because ONNX Runtime computes on another stream than torch
            session.run_with_iobinding(binding)

    def bound(self, session: Any) -> Any:
        binding = session.io_binding()
        for bind, tensors in ((binding.bind_input, self.inputs), (binding.bind_output, self.outputs)):
            for name, tensor in tensors.items():
                dtype = NUMPY_DTYPES[str(tensor.dtype)]
                bind(name, tensor.device.type, 0, dtype, list(tensor.shape), tensor.data_ptr())
        return binding

    def output(self, name: str) -> np.ndarray:
        """Return a copy of an output on the host."""
        return self.outputs[name].cpu().numpy().copy()


class PackageGraphs:
    """The graphs of the packages in a folder.

    Args:
        folder: Folder of the packages.
        package: Returns the verified package of a network.
        device: Device of ONNX Runtime.
        sessions: Cache of the sessions.
        machine: Machine that TensorRT's engines are built for. ``None`` means this machine.
        options: Options with which the engines are built.
    """

    def __init__(
        self,
        folder: Path,
        package: Callable[[str], PackageRecord],
        device: OnnxDevice,
        sessions: SessionCache,
        machine: str | None,
        options: TensorRTOptions,
    ):
        self.folder, self.package, self.device, self.sessions = folder, package, device, sessions
        self.engines_for = (machine or this_machine()) if device.name == "tensorrt" else None
        self.options, self._rebuilt = options, set[str]()

    def dtype(self, network: str) -> "torch.dtype":
        """Return the dtype of a network's caches and of its graphs' floating-point inputs that are not looked up."""
        import torch

        return torch.float16 if self.package(network).precision == "fp16" else torch.float32

    def zeros(self, shape: tuple[int, ...], dtype: "torch.dtype | None" = None) -> "Tensor":
        """Return zeros on the device, float32 by default. Raises UserError if there is not enough memory."""
        import torch

        with onnx_errors("allocate a buffer"):
            return torch.zeros(shape, dtype=dtype, device=self.device.memory)

    def call(
        self,
        network: str,
        kind: str,
        inputs: "Mapping[str, Tensor]",
        outputs: "Mapping[str, Tensor]",
        lane_lengths: tuple[int, int] | None = None,
    ) -> BoundCall:
        """Return a call of a graph with these tensors. Raises the errors of ``key``."""
        shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
        return BoundCall(self.sessions, self.key(network, kind, shapes, lane_lengths), inputs, outputs)

    def key(
        self, network: str, kind: str, shapes: dict[str, tuple[int, ...]], lane_lengths: tuple[int, int] | None = None
    ) -> SessionKey:
        """Return the key of the session for a graph with inputs of these shapes.

        ``lane_lengths`` is explained in ``shape_profile``. Raises UserError if the package is damaged.
        """
        package = self.package(network)
        path = self.folder / package.path / f"{kind}.onnx"
        if self.engines_for is None:
            return SessionKey(path)
        content = hashlib.sha256("".join(file.sha256 for file in package.files).encode()).hexdigest()
        options = engine_options(
            self.engines_for,
            path.name,
            content,
            package.precision,
            input_axes(path),
            shapes,
            lane_lengths,
            self.options,
        )
        folder = options[ENGINE_FOLDER]
        if self.options.rebuild_engines and folder not in self._rebuilt:
            self._rebuilt.add(folder)
            for file in Path(folder).iterdir():
                file.unlink(missing_ok=True)
        return SessionKey(path, tuple(options.items()))


def session_loader(device: OnnxDevice, threads: int | None = None) -> Callable[[SessionKey], Any]:
    """Return a function that loads sessions on a device. It raises UserError instead of falling back to the CPU."""

    def load(key: SessionKey) -> Any:
        provider_options = {**PROVIDER_OPTIONS.get(device.provider, {}), **dict(key.options)}
        providers = [(device.provider, provider_options)] if provider_options else [device.provider]
        if device.name == "tensorrt":
            providers.append((CUDA, PROVIDER_OPTIONS[CUDA]))  # for operations that TensorRT lacks
        if device.provider != CPU:
            providers.append(CPU)  # for operations on shapes
        with onnx_errors(f"load {key.path} on {device.short_name}"):
            session = make_session(key.path, providers, threads)
        if device.provider not in session.get_providers():
            raise UserError(
                f"the provider {device.short_name} did not load for {key.path.name}, and ONNX Runtime "
                f"would compute on the CPU instead: set up {device.requirements}, or use "
            )
        return session

    return load
