"""Run a model on the ONNX packages in its bundle."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import Backend, RowLimit, Stage
from ane.backends.denoising import Denoiser
from ane.backends.onnx.engines import USUAL, TensorRTOptions
from ane.backends.onnx.providers import OnnxDevice, onnx_errors
from ane.backends.onnx.sessions import BoundCall, PackageGraphs, SessionCache, SessionKey, session_loader
from ane.backends.packaged.backend import PackagedEngine
from ane.backends.packaged.selection import select_packages
from ane.bundles.package_records import PackageFolder

if TYPE_CHECKING:
    from ane.backends.onnx.decoder import OnnxDecoder
    from ane.bundles.bundle import Bundle

LIMITED = {"text", "mel"}  # stages that cannot run in windows: if an input is longer than any engine, the text is split
DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


class OnnxBackend(PackagedEngine):
    """Runs networks on the graphs in ONNX packages.

    Args:
        model: Bundle whose networks the backend runs.
        device: Device on which ONNX Runtime computes.
        fallback: Backend that runs the networks without a package.
        precision: Precision of the packages to use. "auto" means a network's first package, except that a package is
            preferred if the device itself, and not the CPU, computes its precision.
        threads: Number of CPU threads. ``None`` means ONNX Runtime's choice.
        keep: Whether sessions stay loaded after ``release``.
        load: Function that makes a session. ``None`` means ``session_loader``.
        machine: Machine for which TensorRT builds engines. ``None`` means this machine.
        options: Options with which TensorRT builds engines.
        unpublished: Packages to use instead of the bundle's packages.
        calls: Number of calls that you may make in parallel for one text, from any threads. ``None`` means that only
            one thread may call the backend.

    Raises:
        UserError: The bundle has no ONNX packages, or no package of this precision.
    """

    def __init__(
        self,
        model: "Bundle",
        device: OnnxDevice,
        fallback: Backend,
        precision: str = "auto",
        threads: int | None = None,
        keep: bool = False,
        load: Callable[[SessionKey], Any] | None = None,
        machine: str | None = None,
        options: TensorRTOptions = USUAL,
        unpublished: PackageFolder | None = None,
        calls: int | None = None,
    ):
        chosen = select_packages(model, precision, unpublished and unpublished.packages, "onnx", device.name)
        super().__init__(model, chosen, f"onnx:{device.name}", fallback, keep, unpublished)
        self.any_thread, self.calls_at_once = calls is not None, calls or 1
        self.options, self.sessions = options, SessionCache(load or session_loader(device, threads))
        self.graphs = PackageGraphs(self.folder, self.verified_package, device, self.sessions, machine, options)

    def row_limit(self, stage: str) -> RowLimit:
        ends = getattr(self.options, f"engine_{self.stages.calls[stage].unit}", ()) if stage in LIMITED else ()
        return RowLimit(max(ends, default=None))

    def _call(self, declared: Stage, stage: str) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
        return partial(self.run_graph, declared.network, stage)

    def _decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int | None) -> "OnnxDecoder":
        from ane.backends.onnx.decoder import OnnxDecoder  # imports torch

        network = self.stages.decoder.network
        return OnnxDecoder(
            self.graphs, network, self.model.config(network).decoder_shape, lanes, capacity, prefixes, max_prefix_length
        )

    def _denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        return OnnxDenoiser(self, latents, conditioning, frames)

    def _load(self, network: str) -> None:
        """Load the graphs of a network.

        On TensorRT, load nothing yet, because an engine depends on the shapes of a call.
        """
        for kind in self.packages[network].functions if self.graphs.engines_for is None else ():
            if kind != "step_prefixes":  # only a step on lanes with different prefixes needs this kind
                self.sessions.get(self.graphs.key(network, kind, {}))

    def _unload(self, network: str) -> None:
        super()._unload(network)
        self.sessions.unload(self.folder / self.packages[network].path)

    def run_graph(self, network: str, kind: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Run a graph that has one output, and return this output as float32."""
        key = self.graphs.key(network, kind, {name: array.shape for name, array in inputs.items()})
        with self.sessions.of(key).lend() as session, onnx_errors(f"run {kind} of {self.packages[network].path}"):
            kinds = {declared.name: DTYPES[declared.type] for declared in session.get_inputs()}
            feeds = {name: np.ascontiguousarray(array, kinds[name]) for name, array in inputs.items()}
            return session.run(None, feeds)[0].astype(np.float32, copy=False)


class OnnxDenoiser(Denoiser):
    """A denoiser that is bound to one utterance. It computes the conditioning once, into a tensor that all steps read.

    A guided step is a batch of two rows. The first row is computed with conditioning, the second without conditioning.
    """

    def __init__(self, backend: OnnxBackend, latents: np.ndarray, conditioning: np.ndarray, frames: int):
        self.backend, self.stage = backend, backend.stages.denoiser
        network = self.stage.network
        self.codes = self.stage.conditioning(
            lambda graph, inputs: backend.run_graph(network, graph, inputs),
            partial(backend.table, network),
            latents,
            conditioning,
            frames,
        )
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

        network, graphs = self.stage.network, self.backend.graphs
        make, dtype = graphs.zeros, graphs.dtype(network)
        out = self.stage.out_channels(self.backend.model.config(network))
        inputs = {
            "x": make((batch, channels, frames), dtype),
            "timesteps": make((batch,), torch.int64),
            "code": make(self.codes[:batch].shape, dtype),
        }
        inputs["code"].copy_(torch.from_numpy(self.codes[:batch]))
        return graphs.call(network, "denoise", inputs, {"prediction": make((batch, out, frames), dtype)})
