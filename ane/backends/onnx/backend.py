"""The engine on the ONNX packages of a bundle."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import Backend, Stage
from ane.backends.denoising import Denoiser
from ane.backends.onnx.buffers import BoundCall, BufferAllocator
from ane.backends.onnx.decoder import OnnxDecoder
from ane.backends.onnx.providers import CudaGraphError, OnnxDevice, onnx_errors
from ane.backends.onnx.sessions import SessionCache, SessionKey, session_loader
from ane.backends.onnx.tensorrt import LENGTHS, TensorRtEngines, bucket_range, input_axes, shape_profile
from ane.backends.packaged.engine import PackagedEngine
from ane.backends.packaged.selection import select_onnx_packages

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

LOGGER = logging.getLogger(__name__)
DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}
CUDA_GRAPH = (("enable_cuda_graph", "1"),)
MAX_RECORDINGS = 64     # CUDA graphs of a session before it is reloaded, which frees them


class OnnxBackend(PackagedEngine):
    """Runs the stages on the graphs of a bundle's ONNX packages.

    On CUDA a decoder step is recorded as a CUDA graph and replayed where ONNX Runtime supports it
    (``pytest tests/cuda`` tests this on an NVIDIA GPU).

    Args:
        fallback: runs the networks that have no package.
        precision: of the packages to use; "auto": the first that the bundle has of each network.
        threads: of the CPU (None: ONNX Runtime's own choice).
        keep: keep sessions of released networks loaded.
        budget: bytes that loaded graphs may take (None: no limit); the least recently used are unloaded first.
        engines: where TensorRT caches the engines it builds.
        load: makes a session (default: ONNX Runtime).
        record: record CUDA graphs; False where values inside a graph are read, which a replay does not compute again.

    Raises:
        UserError: the bundle has no ONNX packages, or none of that precision.
    """

    def __init__(self, model: "Bundle", device: OnnxDevice, fallback: Backend, precision: str = "auto",
                 threads: int | None = None, keep: bool = False, budget: int | None = None,
                 engines: TensorRtEngines | None = None, load: Callable[[SessionKey], Any] | None = None,
                 record: bool = True):
        super().__init__(model, select_onnx_packages(model, precision, device), f"onnx:{device.name}", fallback, keep)
        self.device = device
        self.engines = (engines or TensorRtEngines()) if device.name == "tensorrt" else None
        self.sessions = SessionCache(load or session_loader(device, threads), budget)
        self.memory = BufferAllocator(device)
        self._recording = record and device.name == "cuda"

    def _run(self, declared: Stage, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return self.run_graph(declared.network, stage, inputs)

    def _decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int | None) -> OnnxDecoder:
        return OnnxDecoder(self, lanes, capacity, prefixes, max_prefix_length)

    def _denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        return OnnxDenoiser(self, latents, conditioning, frames)

    def _load(self, network: str) -> None:
        """Not on TensorRT: its engines depend on shapes that only a call has."""
        for kind in self.packages[network].functions if self.engines is None else ():
            if kind == "step":
                self.sessions.get(self.step_session(kind, {})[0])
            elif kind != "step_prefixes":         # few calls need it
                self.sessions.get(self.session_key(network, kind, {}))

    def _unload(self, network: str) -> None:
        self.sessions.unload(self.model.path / self.packages[network].path)

    def run_graph(self, network: str, kind: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Run a graph with one output; returns it as float32."""
        key = self.session_key(network, kind, {name: array.shape for name, array in inputs.items()})
        session = self.sessions.get(key)
        kinds = {each.name: DTYPES[each.type] for each in session.get_inputs()}
        feeds = {name: np.ascontiguousarray(array, kinds[name]) for name, array in inputs.items()}
        with onnx_errors(f"run {kind} of {self.packages[network].path}"):
            return session.run(None, feeds)[0].astype(np.float32, copy=False)

    def step_session(self, kind: str, shapes: dict[str, tuple[int, ...]]) -> tuple[SessionKey, bool]:
        """The session for steps of these shapes, and whether it records CUDA graphs."""
        if self._recording:
            key = self.session_key(self.stages.decoder.network, kind, shapes, CUDA_GRAPH)
            self.sessions.unload_after(key, MAX_RECORDINGS)
            try:
                self.sessions.get(key)
                return key, True
            except CudaGraphError as error:
                self.stop_recording(error)
        return self.session_key(self.stages.decoder.network, kind, shapes, fixed=True), False

    def padded_prefix(self, positions: int) -> int:
        """Positions to allocate for a prefix of so many; a mask hides the rest. Each shape of a TensorRT step has an
        engine, which takes minutes to build."""
        return positions if self.engines is None else bucket_range(positions, LENGTHS)[1]

    def stop_recording(self, error: CudaGraphError) -> None:
        """Record no more steps, as one could not be."""
        if self._recording:
            self._recording = False
            self._unload(self.stages.decoder.network)
            LOGGER.info("Steps are not recorded as CUDA graphs: %s", error)

    def session_key(self, network: str, kind: str, shapes: dict[str, tuple[int, ...]],
                    options: tuple[tuple[str, str], ...] = (), fixed: bool = False) -> SessionKey:
        """The session for a graph with inputs of these shapes; ``fixed``: for exactly these shapes.

        Raises:
            UserError: the package is damaged.
        """
        package = self.checked(network)
        path: Path = self.model.path / package.path / f"{kind}.onnx"
        if self.engines is not None:
            content = hashlib.sha256("".join(file.sha256 for file in package.files).encode()).hexdigest()
            profile = shape_profile(input_axes(path), shapes, fixed)
            options = (*options, *self.engines.options(path, content, package.precision, profile).items())
        return SessionKey(path, sum(file.bytes for file in package.files), options)


class OnnxDenoiser(Denoiser):
    """One utterance: the conditioning is computed once and stays in the buffer that steps read.

    A guided step is a batch of two.
    """

    def __init__(self, backend: OnnxBackend, latents: np.ndarray, conditioning: np.ndarray, frames: int):
        self.backend, self.stage = backend, backend.stages.denoiser
        network = self.stage.network
        self.codes = self.stage.conditioning(lambda graph, inputs: backend.run_graph(network, graph, inputs),
                                             partial(backend.table, network), latents, conditioning, frames)
        self._calls: dict[int, BoundCall] = {}

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        [mel], batch = x, 1 + guided
        if batch not in self._calls:
            self._calls[batch] = self._bind(batch, *mel.shape[1:])
        call = self._calls[batch]
        call.run("denoise", x=np.repeat(mel, batch, axis=0), timesteps=np.full(batch, timestep, np.int64))
        return [call.outputs["prediction"].numpy().astype(np.float32, copy=False)]

    def _bind(self, batch: int, channels: int, frames: int) -> BoundCall:
        shapes = {"x": (batch, channels, frames), "timesteps": (batch,), "code": self.codes[:batch].shape}
        network = self.stage.network
        out = self.stage.out_channels(self.backend.model.config(network))
        dtype = np.float16 if self.backend.packages[network].precision == "fp16" else np.float32
        key = self.backend.session_key(network, "denoise", shapes)
        call = BoundCall(self.backend.memory, self.backend.sessions, key, shapes, {"prediction": (batch, out, frames)},
                     {"x": dtype, "code": dtype, "prediction": dtype, "timesteps": np.int64})
        call.inputs["code"].fill(self.codes[:batch])
        return call
