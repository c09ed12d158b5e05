"""Sessions of ONNX Runtime, loaded when first used, and calls of them on torch's tensors.

ONNX Runtime is given the tensors' addresses, so a contiguous part of a cache is an input without a copy, and on a GPU
nothing of a cache is moved to the host.
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

if TYPE_CHECKING:  # torch takes a second to import, and the default voice computes without it
    import torch
    from torch import Tensor

PROVIDER_OPTIONS = {CUDA: {"use_tf32": "0"}}  # ONNX Runtime's default computes float32 with a 10-bit mantissa
NUMPY_DTYPES = {"torch.float32": np.float32, "torch.float16": np.float16, "torch.int64": np.int64}


@dataclass(frozen=True)
class SessionKey:
    """Identifies a session: the path of a graph, and options of the provider as (name, value) pairs (for TensorRT the
    shapes that its engine takes).
    """

    path: Path
    options: tuple[tuple[str, str], ...] = ()


class GraphSessions:
    """The sessions of one graph, each lent to one thread at a time, and the bindings of calls that use the first one.

    Threads in one session wait for each other's memory at every operation, which makes them as slow as one thread. So a
    thread waits for a session, and another one is loaded as soon as threads have waited for longer than loading takes.
    """

    def __init__(self, load: Callable[[], Any]):
        self._load, began = load, perf_counter()
        self.first = load()
        self._loading, self._waited = perf_counter() - began, 0.0  # seconds
        self._unused, self._returned = [self.first], Condition()
        self.bindings: WeakKeyDictionary[BoundCall, Any] = WeakKeyDictionary()

    @contextmanager
    def lend(self) -> Iterator[Any]:
        """Lend a session within the block. Raises UserError when it cannot be loaded."""
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
    """Loads sessions by ``load`` and caches them. Several threads may use it."""

    def __init__(self, load: Callable[[SessionKey], Any]):
        self._load, self._loading = load, Lock()
        self._loaded: dict[SessionKey, GraphSessions] = {}

    def of(self, key: SessionKey) -> GraphSessions:
        """The sessions of a graph, the first of them loaded. Raises UserError when it cannot be loaded."""
        with self._loading:
            if key not in self._loaded:
                self._loaded[key] = GraphSessions(partial(self._load, key))
            return self._loaded[key]

    def get(self, key: SessionKey) -> Any:
        """The session, for a backend that one thread calls. Errors: ``of``."""
        return self.of(key).first

    def binding(self, call: "BoundCall") -> Any:
        """The binding of a call, made once for each time that its session is loaded."""
        loaded = self.of(call.key)
        if call not in loaded.bindings:
            loaded.bindings[call] = call.bound(loaded.first)
        return loaded.bindings[call]

    def unload(self, folder: Path | None = None) -> None:
        """Unload the sessions of the package in ``folder``, or all."""
        for key in list(self._loaded):
            if folder in (None, key.path.parent):
                self._loaded.pop(key, None)


class BoundCall:
    """A call of a graph with tensors of fixed shapes and addresses.

    It holds no reference to the session, so that an unloaded session is really freed. ``run`` loads it again.
    """

    def __init__(
        self, sessions: SessionCache, key: SessionKey, inputs: "Mapping[str, Tensor]", outputs: "Mapping[str, Tensor]"
    ):
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
                torch.cuda.synchronize()  # ONNX Runtime computes on another stream than torch writes on
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


class PackageGraphs:
    """The graphs of the packages in a folder.

    Args:
        package: Returns the package of a network, checked.
        machine, options: TensorRT builds its engines for this machine (None: the present one) and with these options.
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
        """Return zeros on the device, float32 by default. Raises UserError when memory does not suffice."""
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
        """Return a call of a graph with these tensors. Raises UserError as ``key`` does."""
        shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
        return BoundCall(self.sessions, self.key(network, kind, shapes, lane_lengths), inputs, outputs)

    def key(
        self, network: str, kind: str, shapes: dict[str, tuple[int, ...]], lane_lengths: tuple[int, int] | None = None
    ) -> SessionKey:
        """Return the key of the session for a graph with inputs of these shapes; ``lane_lengths``: see
        ``shape_profile``. Raises UserError when the package is damaged.
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
    """A function that loads sessions on a device; UserError where ONNX Runtime would fall back to the CPU."""

    def load(key: SessionKey) -> Any:
        own = {**PROVIDER_OPTIONS.get(device.provider, {}), **dict(key.options)}
        providers = [(device.provider, own)] if own else [device.provider]
        if device.name == "tensorrt":
            providers.append((CUDA, PROVIDER_OPTIONS[CUDA]))  # for operations that TensorRT lacks
        if device.provider != CPU:
            providers.append(CPU)  # for operations on shapes
        with onnx_errors(f"load {key.path} on {device.short_name}"):
            session = make_session(key.path, providers, threads)
        if device.provider not in session.get_providers():
            raise UserError(
                f"the provider {device.short_name} did not load for {key.path.name}, and ONNX Runtime "
                f"would compute on the CPU instead; it needs {device.requirements}. Or use "
                "backend=onnx:cpu"
            )
        return session

    return load
