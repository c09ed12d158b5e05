"""``ane.backends.base.Backend`` on the ONNX packages of a bundle."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import AlignmentBackend, Decoder, check_inputs
from ane.backends.denoising import Denoiser
from ane.backends.onnx.buffers import BoundCall, BufferAllocator
from ane.backends.onnx.decoder import DecoderGraphs, OnnxDecoder
from ane.backends.onnx.providers import CudaGraphError, OnnxDevice, onnx_errors
from ane.backends.onnx.selection import select_onnx_packages
from ane.backends.onnx.sessions import SessionCache, SessionKey, session_loader
from ane.backends.onnx.tensorrt import LENGTHS, TensorRtEngines, bucket_range, input_axes, shape_profile
from ane.backends.packaged.backend import describe_packages
from ane.bundles.hashes import check_hashes

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}
CUDA_GRAPH = (("enable_cuda_graph", "1"),)
STEPS = ("step", "step_prefixes")       # the decoder's graphs of steps
MAX_RECORDINGS = 64     # CUDA graphs of a session before it is reloaded, which frees them


class OnnxBackend:
    """Runs the stages on the graphs of a bundle's ONNX packages.

    On CUDA a decoder step is recorded as a CUDA graph and replayed where ONNX Runtime supports it
    (``pytest tests/cuda`` tests this on an NVIDIA GPU).

    Args:
        fallback: runs the networks that have no package, and the decoder's tables.
        precision: of the packages to use; "auto": the first that the bundle has of each network.
        threads: of the CPU (None: ONNX Runtime's own choice).
        keep: keep sessions of released networks loaded.
        budget: bytes that loaded graphs may take (None: no limit); the least recently used are unloaded first.
        engines: where TensorRT caches the engines it builds.
        load: makes a session (default: ONNX Runtime).
        notice: called with one line for anything that is not done as requested.
        record: record CUDA graphs; False where values inside a graph are read, which a replay does not compute again.
        as_on_cuda: let a step's graph write the caches, and a package's sessions share its weights; None: on CUDA
            only. Tests do it on the CPU.

    Raises:
        UserError: the bundle has no ONNX packages, or none of that precision.
    """

    def __init__(self, model: "Bundle", device: OnnxDevice, fallback: AlignmentBackend, precision: str = "auto",
                 threads: int | None = None, keep: bool = False, budget: int | None = None,
                 engines: TensorRtEngines | None = None, load: Callable[[SessionKey], Any] | None = None,
                 notice: Callable[[str], None] = lambda line: None, record: bool = True,
                 as_on_cuda: bool | None = None):
        self.model, self.device, self.fallback, self.keep, self.notice = model, device, fallback, keep, notice
        self.stages = model.family.stages
        self.packages = select_onnx_packages(model, precision, device)
        self.engines = (engines or TensorRtEngines()) if device.name == "tensorrt" else None
        self.sessions = SessionCache(load or session_loader(device, threads), budget)
        self.as_on_cuda = device.name == "cuda" if as_on_cuda is None else as_on_cuda
        self.memory = BufferAllocator(device, True if self.as_on_cuda else None, self.sessions.unload)
        self.name = describe_packages(f"onnx:{device.name}", self.packages, model)
        self._checked: set[str] = set()
        self._recording = record and device.name == "cuda"

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        declared = self.stages.calls[stage]
        check_inputs(stage, declared, inputs)
        if declared.network not in self.packages:
            return self.fallback.run(stage, **inputs)
        return self.run_graph(declared.network, stage, inputs)

    def longest(self, stage: str, length: str) -> int | None:
        return None         # every length can be computed

    def embeddings(self) -> dict[str, np.ndarray]:
        return self.fallback.embeddings()

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        network = self.stages.decoder.network
        if network not in self.packages:
            return self.fallback.decoder(lanes, capacity, prefixes, max_prefix_length)
        shape = self.model.config(network).decoder_shape
        half = self.packages[network].precision == "fp16"
        dtype = np.dtype(np.float16 if half else np.float32)
        graphs = DecoderGraphs(self.sessions, partial(self.session_key, network), self._step, self._stop_recording,
                               self.as_on_cuda)
        if self.engines is not None:        # each step shape has its own engine: round lengths up
            graphs = replace(graphs, padded_length=lambda positions: bucket_range(positions, LENGTHS)[1])
        return OnnxDecoder(graphs, shape, dtype, self.memory, lanes, capacity, prefixes, max_prefix_length)

    def align(self, columns: np.ndarray, memory: np.ndarray,
              heads: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """On the fallback: it is one pass a window, and no package returns attention scores."""
        return self.fallback.align(columns, memory, heads)

    def prefix_attention(self, columns: np.ndarray, prefix: int, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        """On the fallback: it is one pass a chunk, and no package returns attention scores."""
        return self.fallback.prefix_attention(columns, prefix, heads)

    def denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        if self.stages.denoiser.network not in self.packages:
            return self.fallback.denoiser(latents, conditioning, frames)
        return OnnxDenoiser(self, latents, conditioning, frames)

    def load(self, *networks: str) -> None:
        """Load these networks, except on TensorRT: its engines depend on shapes that only a call has."""
        for network in networks:
            if network in self.packages and self.engines is None:
                for kind in self.packages[network].functions:
                    if kind == "step":
                        self.sessions.get(self._step(kind, {})[0])
                    elif kind != "step_prefixes":         # few calls need it
                        self.sessions.get(self.session_key(network, kind, {}))

    def release(self, *networks: str) -> None:
        self.fallback.release(*networks)
        if self.keep:
            return
        for network in networks or tuple(self.packages):
            if network in self.packages:
                self.sessions.unload(self.model.path / self.packages[network].path)

    def run_graph(self, network: str, kind: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Run a graph with one output; returns it as float32."""
        key = self.session_key(network, kind, {name: array.shape for name, array in inputs.items()})

        def call(session: Any) -> np.ndarray:
            kinds = {each.name: DTYPES[each.type] for each in session.get_inputs()}
            feeds = {name: np.ascontiguousarray(array, kinds[name]) for name, array in inputs.items()}
            with onnx_errors(f"run {kind} of {self.packages[network].path}"):
                return session.run(None, feeds)[0].astype(np.float32, copy=False)

        return self.sessions.run_or_free_memory(key, call)

    def _step(self, kind: str, shapes: dict[str, tuple[int, ...]]) -> tuple[SessionKey, bool]:
        """The session for steps of these shapes, and whether it records CUDA graphs."""
        if self._recording:
            key = self.session_key(self.stages.decoder.network, kind, shapes, CUDA_GRAPH)
            self.sessions.unload_after(key, MAX_RECORDINGS)
            try:
                self.sessions.get(key)
                return key, True
            except CudaGraphError as error:
                self._stop_recording(error)
        return self.session_key(self.stages.decoder.network, kind, shapes, fixed=True), False

    def _stop_recording(self, error: CudaGraphError) -> None:
        if self._recording:
            self._recording = False
            self.sessions.unload(self.model.path / self.packages[self.stages.decoder.network].path)
            self.notice(f"Steps are not recorded as CUDA graphs: {error}")

    def session_key(self, network: str, kind: str, shapes: dict[str, tuple[int, ...]],
                    options: tuple[tuple[str, str], ...] = (), fixed: bool = False) -> SessionKey:
        """The session for a graph with inputs of these shapes; ``fixed``: for exactly these shapes.

        Raises:
            UserError: the package is damaged.
        """
        package = self.packages[network]
        if package.path not in self._checked:
            check_hashes(self.model.path, package.files)
            self._checked.add(package.path)
        path: Path = self.model.path / package.path / f"{kind}.onnx"
        if self.engines is not None:
            content = hashlib.sha256("".join(file.sha256 for file in package.files).encode()).hexdigest()
            profile = shape_profile(input_axes(path), shapes, fixed)
            options = (*options, *self.engines.options(path, content, package.precision, profile).items())
        size = sum(file.bytes for file in package.files)
        graphs = {Path(file.file).stem: file.bytes for file in package.files if file.file.endswith(".onnx")}
        if not self.as_on_cuda or len(graphs) == 1:         # a single graph shares its weights with none
            return SessionKey(path, size, options)
        return SessionKey(path, graphs[kind], options, kind in STEPS, size - sum(graphs.values()))


class OnnxDenoiser:
    """``ane.backends.denoising.Denoiser``: the conditioning is computed once and stays in the buffer that steps read.

    A guided step is a batch of two.
    """

    def __init__(self, backend: OnnxBackend, latents: np.ndarray, conditioning: np.ndarray, frames: int):
        self.backend, self.stage = backend, backend.stages.denoiser
        network = self.stage.network
        self.codes = self.stage.conditioning(lambda graph, inputs: backend.run_graph(network, graph, inputs),
                                      lambda key: backend.model.tensors(network)[key].float().numpy(),
                                      latents, conditioning, frames)
        self._calls: dict[int, BoundCall] = {}

    def __call__(self, x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        batch = 1 + guided
        if batch not in self._calls:
            self._calls[batch] = self._bind(batch, *x.shape[1:])
        call = self._calls[batch]
        call.run("denoise", x=np.repeat(x, batch, axis=0), timesteps=np.full(batch, timestep, np.int64))
        return call.outputs["prediction"].numpy().astype(np.float32, copy=False)

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
