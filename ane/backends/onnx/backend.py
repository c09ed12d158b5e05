"""The engine on the ONNX packages of a bundle."""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import Backend, Stage
from ane.backends.denoising import Denoiser
from ane.backends.onnx.engines import ENGINE_FOLDER, USUAL, TensorRTOptions, engine_options, input_axes, this_machine
from ane.backends.onnx.providers import OnnxDevice, onnx_errors
from ane.backends.onnx.sessions import BoundCall, SessionCache, SessionKey, session_loader, zeros
from ane.backends.packaged.backend import PackagedEngine
from ane.backends.packaged.selection import select_onnx_packages
from ane.bundles.packages import PackageFolder

if TYPE_CHECKING:       # torch takes a second to import, and the default voice computes without it
    import torch

    from ane.backends.onnx.decoder import OnnxDecoder
    from ane.bundles.bundle import Bundle

# stages that split what exceeds the largest engine, with the axis; vocoders take any length in windows of their own
LIMITED = {("text", "symbols"), ("mel", "frames")}
DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


class OnnxBackend(PackagedEngine):
    """Runs the stages on the graphs of a bundle's ONNX packages.

    Args:
        fallback: runs the networks that have no package.
        precision: of the packages to use; "auto": the first that the bundle has of each network.
        threads: of the CPU (None: ONNX Runtime's own choice).
        keep: keep sessions of released networks loaded.
        load: makes a session (default: ONNX Runtime).
        machine: what TensorRT's engines are built for (default: this machine).
        options: how they are built.
        unpublished: Packages of the model to use in place of those in its bundle.

    Raises:
        UserError: the bundle has no ONNX packages, or none of that precision.
    """

    def __init__(self, model: "Bundle", device: OnnxDevice, fallback: Backend, precision: str = "auto",
                 threads: int | None = None, keep: bool = False, load: Callable[[SessionKey], Any] | None = None,
                 machine: str | None = None, options: TensorRTOptions = USUAL,
                 unpublished: PackageFolder | None = None):
        chosen = select_onnx_packages(model, precision, device, unpublished and unpublished.packages)
        super().__init__(model, chosen, f"onnx:{device.name}", fallback, keep, unpublished)
        self.device = device
        self.engines_for = (machine or this_machine()) if device.name == "tensorrt" else None
        self.options, self.rebuilt = options, set[str]()
        self.sessions = SessionCache(load or session_loader(device, threads))

    def longest(self, stage: str, length: str) -> int | None:
        asked = getattr(self.options, f"engine_{length}", ()) if (stage, length) in LIMITED else ()
        return max(asked, default=None)

    def _run(self, declared: Stage, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return self.run_graph(declared.network, stage, inputs)

    def _decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int | None) -> "OnnxDecoder":
        from ane.backends.onnx.decoder import OnnxDecoder

        return OnnxDecoder(self, lanes, capacity, prefixes, max_prefix_length)

    def _denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        return OnnxDenoiser(self, latents, conditioning, frames)

    def _load(self, network: str) -> None:
        """Not on TensorRT: its engines depend on shapes that only a call has."""
        for kind in self.packages[network].functions if self.engines_for is None else ():
            if kind != "step_prefixes":         # few calls need it
                self.sessions.get(self.session_key(network, kind, {}))

    def _unload(self, network: str) -> None:
        self.sessions.unload(self.folder / self.packages[network].path)

    def dtype(self, network: str) -> "torch.dtype":
        """The dtype of a network's caches and of its graphs' floating-point inputs that are not looked up."""
        import torch

        return torch.float16 if self.packages[network].precision == "fp16" else torch.float32

    def run_graph(self, network: str, kind: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Run a graph with one output; returns it as float32."""
        key = self.session_key(network, kind, {name: array.shape for name, array in inputs.items()})
        with self.sessions.of(key).lend() as session, onnx_errors(f"run {kind} of {self.packages[network].path}"):
            kinds = {each.name: DTYPES[each.type] for each in session.get_inputs()}
            feeds = {name: np.ascontiguousarray(array, kinds[name]) for name, array in inputs.items()}
            return session.run(None, feeds)[0].astype(np.float32, copy=False)

    def session_key(self, network: str, kind: str, shapes: dict[str, tuple[int, ...]],
                    lane_lengths: tuple[int, int] | None = None) -> SessionKey:
        """The session for a graph with inputs of these shapes; ``lane_lengths``: see ``shape_profile``.

        Raises:
            UserError: the package is damaged.
        """
        package = self.checked(network)
        path: Path = self.folder / package.path / f"{kind}.onnx"
        if self.engines_for is None:
            return SessionKey(path)
        content = hashlib.sha256("".join(file.sha256 for file in package.files).encode()).hexdigest()
        options = engine_options(self.engines_for, path.name, content, package.precision, input_axes(path), shapes,
                                 lane_lengths, self.options)
        folder = options[ENGINE_FOLDER]
        if self.options.rebuild_engines and folder not in self.rebuilt:
            self.rebuilt.add(folder)
            for file in Path(folder).iterdir():
                file.unlink(missing_ok=True)
        return SessionKey(path, tuple(options.items()))


class OnnxDenoiser(Denoiser):
    """One utterance: the conditioning is computed once and stays in the tensor that steps read.

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
        return [call.output("prediction").astype(np.float32, copy=False)]

    def _bind(self, batch: int, channels: int, frames: int) -> BoundCall:
        import torch

        backend, network = self.backend, self.stage.network
        make = partial(zeros, backend.device)
        dtype, out = backend.dtype(network), self.stage.out_channels(backend.model.config(network))
        inputs = {"x": make((batch, channels, frames), dtype), "timesteps": make((batch,), torch.int64),
                  "code": make(self.codes[:batch].shape, dtype)}
        inputs["code"].copy_(torch.from_numpy(self.codes[:batch]))
        key = backend.session_key(network, "denoise", {name: tuple(tensor.shape) for name, tensor in inputs.items()})
        return BoundCall(backend.sessions, key, inputs, {"prediction": make((batch, out, frames), dtype)})
