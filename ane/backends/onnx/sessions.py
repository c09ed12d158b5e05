"""Load ONNX Runtime sessions (loaded graphs) when they are first used, and run them on torch tensors.

ONNX Runtime gets the addresses of the tensors. It can therefore read a contiguous slice of a kv-cache without a copy.
On a GPU, the caches stay in the GPU's memory.
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

if TYPE_CHECKING:  # importing torch takes a second, and the default voice does not need it
    import torch
    from torch import Tensor

PROVIDER_OPTIONS = {CUDA: {"use_tf32": "0"}}  # by default, ONNX Runtime computes float32 with a mantissa of 10 bits
NUMPY_DTYPES = {"torch.float32": np.float32, "torch.float16": np.float16, "torch.int64": np.int64}


@dataclass(frozen=True)
class SessionKey:
    """Identifies a session by its graph and the options of its provider.

    Attributes:
        path: Path of the graph.
        options: Names and values of the provider options. For TensorRT they include the shapes that the engine takes.
    """

    path: Path
    options: tuple[tuple[str, str], ...] = ()


class GraphSessions:
    """The ONNX Runtime sessions of one graph. Only one thread uses a session at any time.

    If threads share a session, they wait for each other's memory in every op and are as slow as a single thread. A
    thread therefore waits until a session is free. As soon as the total time that threads have waited exceeds the time
    to load a session, the next thread loads another session. Calls with bound inputs and outputs use the first session.
    """

    def __init__(self, load: Callable[[], Any]):
        self._load, began = load, perf_counter()
        self.first = load()
        self._loading, self._waited = perf_counter() - began, 0.0  # seconds
        self._unused, self._returned = [self.first], Condition()
        self.bindings: WeakKeyDictionary[BoundCall, Any] = WeakKeyDictionary()

    @contextmanager
    def lend(self) -> Iterator[Any]:
        """Give the calling thread a session for the duration of the block. Other threads cannot use this session then.

        If threads have waited long enough, the method loads another session first. Raises UserError if loading fails.
        """
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
    """Loads sessions with ``load``, and caches them. Several threads may use the cache at once."""

    def __init__(self, load: Callable[[SessionKey], Any]):
        self._load, self._loading = load, Lock()
        self._loaded: dict[SessionKey, GraphSessions] = {}

    def of(self, key: SessionKey) -> GraphSessions:
        """Return the sessions of a graph, and load its first session if necessary. Raises UserError if that fails."""
        with self._loading:
            if key not in self._loaded:
                self._loaded[key] = GraphSessions(partial(self._load, key))
            return self._loaded[key]

    def get(self, key: SessionKey) -> Any:
        """Return the first session of a graph, for a backend that only one thread calls.

        Raises the errors of ``of``.
        """
        return self.of(key).first

    def binding(self, call: "BoundCall") -> Any:
        """Return ONNX Runtime's binding (inputs and outputs at fixed addresses) for a call.

        A reloaded session gets a new binding.
        """
        loaded = self.of(call.key)
        if call not in loaded.bindings:
            loaded.bindings[call] = call.bound(loaded.first)
        return loaded.bindings[call]

    def unload(self, folder: Path | None = None) -> None:
        """Unload the sessions of the package in ``folder``. ``None`` means all sessions."""
        for key in list(self._loaded):
            if folder in (None, key.path.parent):
                self._loaded.pop(key, None)


class BoundCall:
    """A call of a graph on tensors with fixed shapes and addresses.

    It holds no reference to the session, so that unloading a session frees its memory. ``run`` loads the session again.

    Args:
        sessions: Cache that has the session.
        key: Key of the session.
        inputs: Tensors from which the graph reads its inputs, by name.
        outputs: Tensors to which the graph writes its outputs, by name.
    """

    def __init__(
        self, sessions: SessionCache, key: SessionKey, inputs: "Mapping[str, Tensor]", outputs: "Mapping[str, Tensor]"
    ):
        self.sessions, self.key, self.inputs, self.outputs = sessions, key, inputs, outputs

    def run(self, action: str, **inputs: np.ndarray) -> None:
        """Copy these arrays into the tensors of ``inputs``, and run the graph. All other inputs keep their values.

        Args:
            action: Name of the work, for the message "ONNX Runtime cannot ACTION".
            inputs: Arrays to copy, by name of the input.

        Raises:
            UserError: ONNX Runtime fails.
        """
        import torch

        for name, array in inputs.items():
            self.inputs[name].copy_(torch.from_numpy(np.require(array, requirements=("C", "W"))))
        session = self.sessions.get(self.key)
        with onnx_errors(action):
            binding = self.sessions.binding(self)
            if next(iter(self.inputs.values())).is_cuda:
                torch.cuda.synchronize()  # ONNX Runtime and torch use different streams
            session.run_with_iobinding(binding)

    def bound(self, session: Any) -> Any:
        binding = session.io_binding()
        for bind, tensors in ((binding.bind_input, self.inputs), (binding.bind_output, self.outputs)):
            for name, tensor in tensors.items():
                dtype = NUMPY_DTYPES[str(tensor.dtype)]
                bind(name, tensor.device.type, 0, dtype, list(tensor.shape), tensor.data_ptr())
        return binding

    def output(self, name: str) -> np.ndarray:
        """Copy an output to the host, and return it as a NumPy array."""
        return self.outputs[name].cpu().numpy().copy()


class PackageGraphs:
    """The graphs of all packages in a folder.

    Args:
        folder: Folder of the packages.
        package: Function that takes the name of a network and returns its package, after checking its files.
        device: Device on which ONNX Runtime computes.
        sessions: Cache of the sessions.
        machine: Machine for which TensorRT builds engines. ``None`` means this machine.
        options: Options with which TensorRT builds engines.
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
        """Return the dtype of a network's kv-caches and float inputs. Vectors from embedding tables are float32."""
        import torch

        return torch.float16 if self.package(network).precision == "fp16" else torch.float32

    def zeros(self, shape: tuple[int, ...], dtype: "torch.dtype | None" = None) -> "Tensor":
        """Allocate a tensor of zeros on the device, float32 by default. Raises UserError if memory runs out."""
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
        """Bind a graph to these input and output tensors. See ``key`` for the other arguments and the errors."""
        shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
        return BoundCall(self.sessions, self.key(network, kind, shapes, lane_lengths), inputs, outputs)

    def key(
        self, network: str, kind: str, shapes: dict[str, tuple[int, ...]], lane_lengths: tuple[int, int] | None = None
    ) -> SessionKey:
        """Return the key of the session that runs a graph on inputs of these shapes.

        Args:
            network: Name of the network.
            kind: Name of the graph, such as "step".
            shapes: Shape of each input.
            lane_lengths: See ``ane.backends.onnx.engines.shape_profile``.

        Raises:
            UserError: The package is damaged.
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
    """Return a function that loads a session on a device.

    The returned function raises UserError if ONNX Runtime would use the CPU.

    Args:
        device: Device on which the sessions compute.
        threads: Number of CPU threads. ``None`` means ONNX Runtime's choice.
    """

    def load(key: SessionKey) -> Any:
        provider_options = {**PROVIDER_OPTIONS.get(device.provider, {}), **dict(key.options)}
        providers = [(device.provider, provider_options)] if provider_options else [device.provider]
        if device.name == "tensorrt":
            providers.append((CUDA, PROVIDER_OPTIONS[CUDA]))  # computes the ops that TensorRT lacks
        if device.provider != CPU:
            providers.append(CPU)  # computes ops on shapes
        with onnx_errors(f"load {key.path} on {device.short_name}"):
            session = make_session(key.path, providers, threads)
        if device.provider not in session.get_providers():
            raise UserError(
                f"the provider {device.short_name} did not load for {key.path.name}, and ONNX Runtime "
                f"would compute on the CPU instead: set up {device.requirements}, or use backend=onnx:cpu"
            )
        return session

    return load
