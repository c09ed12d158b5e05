"""``ane.backends.base.Backend`` on the ONNX packages of a bundle."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import STAGES, Backend, Decoder, Denoiser, check
from ane.backends.onnx.buffers import BoundCall, BufferAllocator
from ane.backends.onnx.decoder import DecoderDimensions, DecoderGraphs, OnnxDecoder
from ane.backends.onnx.providers import CudaGraphError, OnnxDevice, onnx_errors
from ane.backends.onnx.selection import choose
from ane.backends.onnx.sessions import SessionCache, SessionKey, session_loader
from ane.backends.onnx.tensorrt import LENGTHS, TensorRtEngines, bucket_range, input_axes, shape_profile
from ane.backends.packaged.backend import SPEAKING
from ane.bundles.hashes import check_hash
from ane.bundles.packages import PackageRecord
from ane.models.tortoise.packaged.denoiser import upsampled

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}
CUDA_GRAPH = (("enable_cuda_graph", "1"),)
RECORDINGS = 64         # that a session makes before it is loaded anew: it frees none by itself


class OrtBackend:
    """Runs the stages on the graphs of a bundle's ONNX packages.

    A step on CUDA is recorded as a CUDA graph and replayed, where ONNX Runtime can; that, and all else that needs an
    NVIDIA GPU, is tested by ``pytest tests/cuda`` on a machine with one.

    Args:
        rest: the engine of networks that have no package, and of the decoder's tables.
        precision: of the packages to use; "auto": the first that the bundle holds of each network.
        threads: of the CPU (None: ONNX Runtime's own choice).
        keep: keep sessions that a step has released.
        budget: bytes that loaded graphs may take (None: what there is); the least recently used go first.
        engines: where TensorRT keeps what it builds.
        load: makes a session (default: ONNX Runtime).
        notice: told in one line what is not done as asked.

    Raises:
        UserError: the bundle has no ONNX packages, or none of that precision.
    """

    def __init__(self, model: "Bundle", device: OnnxDevice, rest: Backend, precision: str = "auto",
                 threads: int | None = None, keep: bool = False, budget: int | None = None,
                 engines: TensorRtEngines | None = None, load: Callable[[SessionKey], Any] | None = None,
                 notice: Callable[[str], None] = lambda line: None):
        self.model, self.device, self.rest, self.keep, self.notice = model, device, rest, keep, notice
        self.packages = choose(model, precision)
        self.engines = (engines or TensorRtEngines()) if device.name == "tensorrt" else None
        self.sessions = SessionCache(load or session_loader(device, threads), budget)
        self.memory = BufferAllocator(device, free_memory=self.sessions.unload)
        self.name = named(device, self.packages, model)
        self._checked: set[str] = set()
        self._replays = device.name == "cuda"

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        check(stage, inputs)
        if STAGES[stage].network not in self.packages:
            return self.rest.run(stage, **inputs)
        return self.called(STAGES[stage].network, stage, inputs)

    def embeddings(self) -> dict[str, np.ndarray]:
        return self.rest.embeddings()

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, longest: int | None = None) -> Decoder:
        if "autoregressive" not in self.packages:
            return self.rest.decoder(lanes, capacity, prefixes, longest)
        config = self.model.config("autoregressive")
        halved = self.packages["autoregressive"].precision == "fp16"
        geometry = DecoderDimensions(config.layers, config.heads, config.model_dim // config.heads, config.model_dim,
                            config.number_mel_codes, np.dtype(np.float16 if halved else np.float32))
        graphs = DecoderGraphs(self.sessions,
                        lambda P: self.wanted("autoregressive", "prefill", {"columns": (1, P, config.model_dim)}),
                        self._step, self._unrecorded)
        if self.engines is not None:        # a step's engine takes its shapes alone
            graphs = replace(graphs, padded_length=lambda positions: bucket_range(positions, LENGTHS)[1])
        return OnnxDecoder(graphs, geometry, self.memory, lanes, capacity, prefixes, longest)

    def denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        if "diffusion" not in self.packages:
            return self.rest.denoiser(latents, conditioning, frames)
        return OrtDenoiser(self, latents, conditioning, frames)

    def load(self, *networks: str) -> None:
        """Make these networks ready. TensorRT's engines are for shapes, which only a call has: they are not loaded."""
        for network in networks:
            if network in self.packages and self.engines is None:
                for kind in self.packages[network].functions:
                    if kind == "step":
                        self.sessions.get(self._step(kind, {})[0])
                    elif kind != "step_places":         # what few calls need
                        self.session(network, kind, {})

    def release(self, *networks: str) -> None:
        self.rest.release(*networks)
        if self.keep:
            return
        for network in networks or tuple(self.packages):
            if network in self.packages:
                self.sessions.unload(self.model.path / self.packages[network].path)

    def called(self, network: str, kind: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """The one output of a graph, float32."""
        wanted = self.wanted(network, kind, {name: array.shape for name, array in inputs.items()})

        def call(session: Any) -> np.ndarray:
            kinds = {each.name: DTYPES[each.type] for each in session.get_inputs()}
            feeds = {name: np.ascontiguousarray(array, kinds[name]) for name, array in inputs.items()}
            with onnx_errors(f"run {kind} of {self.packages[network].path}"):
                return session.run(None, feeds)[0].astype(np.float32, copy=False)

        return self.sessions.run_or_free_memory(wanted, call)

    def session(self, network: str, kind: str, shapes: dict[str, tuple[int, ...]],
                options: tuple[tuple[str, str], ...] = (), fixed: bool = False) -> Any:
        return self.sessions.get(self.wanted(network, kind, shapes, options, fixed))

    def _step(self, kind: str, shapes: dict[str, tuple[int, ...]]) -> tuple[SessionKey, bool]:
        """What serves steps of these shapes, and whether it records CUDA graphs: where it can."""
        if self._replays:
            wanted = self.wanted("autoregressive", kind, shapes, CUDA_GRAPH)
            self.sessions.unload_after(wanted, RECORDINGS)
            try:
                self.sessions.get(wanted)
                return wanted, True
            except CudaGraphError as error:
                self._unrecorded(error)
        return self.wanted("autoregressive", kind, shapes, fixed=True), False

    def _unrecorded(self, error: CudaGraphError) -> None:
        """Record no more CUDA graphs, and say so once."""
        if self._replays:
            self._replays = False
            self.sessions.unload(self.model.path / self.packages["autoregressive"].path)
            self.notice(f"Steps are not recorded as CUDA graphs: {error}")

    def wanted(self, network: str, kind: str, shapes: dict[str, tuple[int, ...]],
               options: tuple[tuple[str, str], ...] = (), fixed: bool = False) -> SessionKey:
        """What serves a graph for inputs of these shapes; ``fixed``: for no others.

        Raises:
            UserError: the package is damaged.
        """
        package = self.packages[network]
        if package.path not in self._checked:
            for file in package.files:
                check_hash(self.model.path, file)
            self._checked.add(package.path)
        path: Path = self.model.path / package.path / f"{kind}.onnx"
        if self.engines is not None:
            content = hashlib.sha256("".join(file.sha256 for file in package.files).encode()).hexdigest()
            own = self.engines.options(path, content, package.precision, shape_profile(input_axes(path), shapes, fixed))
            options = (*options, *own.items())
        return SessionKey(path, sum(file.bytes for file in package.files), options)


class OrtDenoiser:
    """``ane.backends.base.Denoiser``: the conditioning is computed once and stays where steps read it.

    A guided step is a batch of two.
    """

    def __init__(self, backend: OrtBackend, latents: np.ndarray, conditioning: np.ndarray, frames: int):
        self.backend = backend
        code = backend.called("diffusion", "condition", {"latents": latents, "voice": conditioning})
        unconditioned = backend.model.tensors("diffusion")["unconditioned_embedding"].float().numpy()
        self.codes = np.concatenate((upsampled(code, frames), np.repeat(unconditioned, frames, axis=-1)))
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
        out = self.backend.model.config("diffusion").out_channels
        dtype = np.float16 if self.backend.packages["diffusion"].precision == "fp16" else np.float32
        call = BoundCall(self.backend.memory, self.backend.sessions, self.backend.wanted("diffusion", "denoise", shapes),
                     shapes, {"prediction": (batch, out, frames)},
                     {"x": dtype, "code": dtype, "prediction": dtype, "timesteps": np.int64})
        call.inputs["code"].fill(self.codes[:batch])
        return call


def named(device: OnnxDevice, packages: dict[str, PackageRecord], model: "Bundle") -> str:
    """What is told of a backend: where it computes, the precisions of its packages, and what stays on torch."""
    precisions = "+".join(sorted({package.precision for package in packages.values()}))
    missing = sorted(SPEAKING & set(model.networks) - set(packages))
    return f"onnx:{device.name} {precisions}" + (f", on torch: {', '.join(missing)}" if missing else "")
