"""Open a backend by its name, such as the one you pass to ``--backend``."""

import logging
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ane.backends.base import DeferredBackend
from ane.backends.coreml.tools import OLDEST_MACOS, crash_advice
from ane.backends.onnx.engines import TensorRTOptions
from ane.bundles.opening import is_embedded
from ane.bundles.package_records import PUBLISHED
from ane.system.checked import validated
from ane.system.errors import NotFoundError, UserError
from ane.system.machine import macos_at_least, macos_version, memory_bytes, usable_cores

if TYPE_CHECKING:
    from ane.backends.base import Backend
    from ane.backends.mlx.backend import MlxBackend
    from ane.backends.packaged.functions import Runtime
    from ane.bundles import Bundle

NAMES = (
    "auto",
    "torch",
    "torch:cpu",
    "torch:cuda",
    "torch:mps",
    "mlx",
    "coreml",
    "coreai",
    "mil",
    "mil:fp16",
    "onnx",
    "onnx:cpu",
    "onnx:cuda",
    "onnx:tensorrt",
)
PACKAGED = ("coreml", "coreai", "mil")  # backends that run Core ML packages
MLX_KEEPS_FROM = 12e9  # bytes of memory from which MLX keeps networks; Tortoise's two take 1.2 GB in fp16 at full size
TENSORRT = tuple(field.name for field in fields(TensorRTOptions))
LOGGER = logging.getLogger(__name__)


def core_ml_runs() -> bool:
    """Return whether this is a Mac whose Core ML supports multifunction packages and states (macOS 15 or later)."""
    return sys.platform == "darwin" and macos_at_least(OLDEST_MACOS)


def core_ml_is_chosen() -> bool:
    """Return whether "auto" may choose Core ML: if it runs here, and is not reported to crash on all compute units."""
    return core_ml_runs() and "any compute units" not in (crash_advice(macos_version()) or "")


def has_published_graphs(model: "Bundle") -> bool:
    """Return whether "auto" means ONNX Runtime for this bundle.

    It does if the bundle has the graphs that the voice's author published, and nothing converted for Core ML.
    """
    return not model.packages and any(PUBLISHED in package.source for package in model.onnx_packages)


def mlx_is_chosen(model: "Bundle") -> bool:
    """Return whether "auto" may choose MLX: if it is installed on Apple silicon and the model is a Tortoise bundle."""
    installed = sys.platform == "darwin" and platform.machine() == "arm64" and find_spec("mlx") is not None
    return installed and model.family.stages.denoiser is not None and not is_embedded(model.path)


def resolve(spec: str, model: "Bundle") -> tuple[str, str]:
    """Return the kind of backend and the device that ``spec`` names.

    "auto" means ONNX Runtime on the CPU if the model ``has_published_graphs``, or Core ML if the model has packages and
    ``core_ml_is_chosen``, or torch otherwise.

    Raises:
        UserError: There is no such backend.
    """
    kind, colon, device = spec.partition(":")
    if spec == "auto" and has_published_graphs(model):
        return "onnx", "cpu"
    if spec == "auto":
        return ("coreml" if core_ml_is_chosen() and model.packages else "torch"), "auto"
    if kind == "torch" and (device or not colon):  # TorchBackend checks whether torch has the device
        return kind, device or "auto"
    if spec not in NAMES:
        raise NotFoundError(f"no backend is named {spec!r}: choose one of {', '.join(NAMES)}")
    return kind, device


@validated
class EngineOptions(TensorRTOptions):
    """Options of an engine.

    ``cache`` and ``compute_units`` apply to Core ML packages, and the options of ``TensorRTOptions`` to onnx:tensorrt.

    Attributes:
        precision: Number format to compute in: "auto", or for torch "fp32", "bf16", "fp16" or (on the CPU) "int8". For
            packages it is the format of those to use: "fp32", "fp16", "8bit", "6bit" or "4bit" for Core ML, and "fp32",
            "fp16", "int8" or "int4" for ONNX.
        threads: Number of CPU threads for the whole process. ``None`` means the backend's own choice.
        keep: Whether released networks stay loaded. ``None`` means that they do on CUDA, TensorRT, MPS and Core AI, for
            small models, and on Core ML if this machine has enough memory.
        cache: Kind of kv-cache of Core ML packages: "io", "state" or "auto".
        compute_units: Compute units for all networks on Core ML, such as "CPU_AND_NE". ``None`` means the
            units that the bundle states.
        shared: Whether requests of several users share the engine. Then every network uses a fixed number of threads,
            so that concurrent requests do not change a request's bytes, and a text makes one call at once.
    """

    precision: str = "auto"
    threads: int | None = Field(None, ge=1)
    keep: bool | None = None
    cache: Literal["auto", "io", "state"] = "auto"
    compute_units: str | None = None
    shared: bool = False

    def requested(self) -> list[str]:
        """List the options that differ from the default. ``keep=True`` and ``shared=True`` do not count."""
        usual = vars(EngineOptions())
        return [
            name
            for name, value in vars(self).items()
            if value != usual[name] and not (name in ("keep", "shared") and value)
        ]

    def check(self, spec: str, kind: str) -> None:
        """Raise UserError for more threads than the machine has cores, or for an option that the backend ignores."""
        cores = os.cpu_count() or 1
        if self.threads is not None and self.threads > cores:
            raise UserError(
                f"threads must be at most {cores}, the cores of this machine, got {self.threads}", "threads"
            )
        uses = {
            "cache": (kind in PACKAGED, "for Core ML packages"),
            "compute_units": (kind == "coreml", "for Core ML"),
            **dict.fromkeys(TENSORRT, (spec == "onnx:tensorrt", "for onnx:tensorrt")),
        }
        for name in self.requested():
            used, purpose = uses.get(name, (True, ""))
            if not used:
                raise UserError(f"{name} has no effect on the backend {spec}: it is {purpose}", name)


def load_backend(
    spec: str,
    model: "Bundle",
    precision: str = "auto",
    threads: int | None = None,
    keep: bool | None = None,
    **others: Any,
) -> "Backend":
    """Open a backend for the networks of a model.

    It logs a line before a slow step, and if it cannot use an NVIDIA GPU or Core ML.

    * "auto": the engines that `ane bench` found fastest for this bundle on this machine, or else ``resolve``'s choice.
      MLX replaces torch if ``mlx_is_chosen`` and its decoder passes a comparison with torch.
    * "torch": PyTorch on CUDA, or MPS if there is no CUDA, or the CPU. "torch:cuda:N" chooses a GPU.
    * "mlx": Tortoise's decoder and denoiser on MLX, the other networks on torch.
    * "coreml": Core ML. A network that Core ML rejects runs on other compute units, or on torch.
    * "coreai": Core ML packages on Apple's Core AI, in float32.
    * "mil": Core ML packages in an interpreter, on any machine. "mil:fp16" rounds to fp16 after every operation.
    * "onnx": ONNX packages on CUDA if it loads, or else on the CPU. TensorRT runs only as "onnx:tensorrt".

    Args:
        spec: One of ``NAMES``, or "torch:cuda:N".
        model: Bundle whose networks run.
        precision, threads, keep, others: Fields of ``EngineOptions``.

    Raises:
        UserError: There is no such backend, this machine lacks the device or precision or has fewer cores than
            ``threads``, the model lacks the packages that the backend needs, or the backend ignores an option.
    """
    options = EngineOptions(precision=precision, threads=threads, keep=keep, **others)
    if "graph" in model.manifest.files:
        return load_graph(spec, model, options)
    kind, device = resolve(spec, model)
    if spec == "auto" and kind == "onnx" and precision not in ("auto", "int8"):
        kind, device = "torch", "auto"  # the published graphs are in int8
    options.check(spec, kind)
    if spec != "auto":
        return load_kind(kind, device, model, options)
    if model.packages and core_ml_runs() and not core_ml_is_chosen():
        LOGGER.info(
            "Core ML is reported to crash programs on macOS %s, so this runs on torch. To use Core ML anyway, "
            "add --backend coreml",
            macos_version(),
        )
    first: list[Callable[[], Backend]] = []
    if kind in ("torch", "coreml") and not is_embedded(model.path) and not options.requested():
        first.append(partial(load_measured, model, options))
    if kind == "torch" and precision == "auto" and mlx_is_chosen(model):
        first.append(partial(load_proven_mlx, model, options))
    if kind != "torch":
        first.append(partial(load_kind, kind, device, model, options, automatic=True))
    for load in first:
        try:
            if backend := load():
                return backend
        except UserError as error:
            LOGGER.info("%s. Running on %s instead.", error, "torch" if load is first[-1] else "another engine")
    return load_torch_here(model, precision if kind == "torch" else "auto", options)


def load_torch_here(model: "Bundle", precision: str, options: EngineOptions) -> "Backend":
    """Open torch on the device that "auto" means. If that is MPS, Tortoise's decoder runs on the CPU.

    Decoder steps are too short to be faster on MPS (118 s instead of 19 s on an M2, OpenMOSS/MOSS-TTS-Nano#55).
    """
    backend = load_torch(model, "auto", precision, options)
    if backend.device.type != "mps" or backend.stages.decoder is None or backend.stages.denoiser is None:  # type: ignore[attr-defined]
        return backend
    from ane.backends.measured import PhasedBackend

    decoding = load_torch(model, "cpu", precision, options)
    return PhasedBackend(backend.stages.decoder.network, decoding, backend)  # type: ignore[attr-defined]


def load_kind(kind: str, device: str, model: "Bundle", options: EngineOptions, automatic: bool = False) -> "Backend":
    """Open the backend of this kind on this device.

    Args:
        kind, device: As ``resolve`` returns them.
        model: Bundle whose networks run.
        options: Options of the engine.
        automatic: Whether the user did not name the backend.
    """
    if kind == "torch":
        return load_torch(model, device, options.precision, options)
    if kind == "mlx":
        return load_mlx(model, options)
    # runs the networks that have no packages
    fallback = DeferredBackend(partial(load_torch, model, "cpu", "auto", options))
    load = load_onnx if kind == "onnx" else partial(load_packages, kind, automatic=automatic)
    return load(device, model, fallback, options)


def load_measured(model: "Bundle", options: EngineOptions) -> "Backend | None":
    """Open the engines that `ane bench` found fastest for this bundle on this machine.

    Returns:
        The backend, or ``None`` if there is no measurement.

    Raises:
        UserError: A measured engine no longer runs.
    """
    from ane.backends.measured import PhasedBackend, measured_engines

    if (measured := measured_engines(model)) is None:
        return None
    loaded = {}
    for choice in dict.fromkeys((measured.decoder, measured.others)):
        chosen = replace(options, compute_units=choice.compute_units, threads=choice.threads)
        kind, device = resolve(choice.backend, model)
        chosen.check(choice.backend, kind)
        loaded[choice] = (
            load_proven_mlx(model, chosen) if kind == "mlx" else load_kind(kind, device, model, chosen, True)
        )
    LOGGER.info("`ane bench` found %s fastest here on %s (--backend chooses another)", measured, measured.date[:10])
    if measured.decoder == measured.others:
        return loaded[measured.decoder]
    return PhasedBackend(model.family.stages.decoder.network, loaded[measured.decoder], loaded[measured.others])


def load_proven_mlx(model: "Bundle", options: EngineOptions) -> "MlxBackend":
    """Open the backend on MLX after comparing its decoder with torch's.

    Raises:
        UserError: ``load_mlx`` fails, or the decoder's results differ from torch's.
    """
    mlx = load_mlx(model, options)
    mlx.prove()
    return mlx


def load_torch(model: "Bundle", device: str, precision: str, options: EngineOptions) -> "Backend":
    from ane.backends.torch.backend import TorchBackend  # takes a second to import

    return TorchBackend(model, device, precision, options.threads, options.keep, fixed_thread_count=options.shared)


def load_mlx(model: "Bundle", options: EngineOptions) -> "MlxBackend":
    """Open the backend on MLX. Raises UserError if MLX is not installed or runs none of the model's networks."""
    try:
        from ane.backends.mlx.backend import MlxBackend
    except ImportError as error:
        raise UserError(
            f"the backend mlx needs the library MLX ({error}): install tortoise-ane[mlx], on Apple silicon or Linux",
            "backend",
        ) from error
    fallback = load_torch(model, "cpu", "auto", options)
    keep = (memory_bytes() or 0) >= MLX_KEEPS_FROM if options.keep is None else options.keep
    return MlxBackend(model, fallback, options.precision, keep)


def load_onnx(device: str, model: "Bundle", fallback: "Backend", options: EngineOptions) -> "Backend":
    from ane.backends.onnx.backend import OnnxBackend
    from ane.backends.onnx.providers import choose_onnx_device
    from ane.backends.packaged.selection import refuse_cpu_precision

    chosen = choose_onnx_device(device)
    small = has_published_graphs(model)
    usual = small or chosen.memory != "cpu"
    # the results of a graph that quantises activations depend on its number of threads, so each call has one thread
    calls = 1 if options.shared else options.threads or usable_cores()
    onnx = OnnxBackend(
        model,
        chosen,
        fallback,
        options.precision,
        1 if small else options.threads,
        keep=usual if options.keep is None else options.keep,
        options=options,
        calls=calls if small else None,
    )
    refuse_cpu_precision(onnx.packages, chosen)
    return onnx


def load_packages(
    kind: str, device: str, model: "Bundle", fallback: "Backend", options: EngineOptions, automatic: bool
) -> "Backend":
    """Open the backend on a model's Core ML packages. Raises UserError if Core ML or the packages cannot be used."""
    from ane.backends.packaged.backend import PackagedBackend
    from ane.backends.packaged.selection import fits_in_memory, select_packages

    runtime = package_runtime(kind, device)
    usual = kind == "coreai" or (kind == "coreml" and fits_in_memory(select_packages(model, options.precision)))
    return PackagedBackend(
        model,
        runtime,
        fallback,
        options.precision,
        options.cache,
        options.compute_units,
        keep=usual if options.keep is None else options.keep,
        auto_fallback=automatic,
        prefer_state=kind == "coreml",
    )


def load_graph(spec: str, model: "Bundle", options: EngineOptions) -> "Backend":
    """Open the engine of a model that is one ONNX graph.

    Raises:
        UserError: ``spec`` names another backend, or an option has no effect on such models.
    """
    from ane.backends.onnx.graph_file import GraphBackend

    if spec not in ("auto", "onnx", "onnx:cpu"):
        raise UserError(f"backend must be onnx:cpu for {model.family.title} models, got {spec!r}", "backend")
    for name in options.requested():
        if name != "threads":
            raise UserError(
                f"{name} has no effect on {model.family.title} models, and {model.name} is one: leave it out", name
            )
    options.check(spec, "onnx")
    return GraphBackend(model, options.threads)


def read_graph(
    graph: Path | bytes, path: Path, title: str, extra: str
) -> tuple[dict[str, tuple[str, list[int | str | None]]], dict[str, str]]:
    """Load an ONNX graph to inspect it. See ``ane.backends.onnx.graph_file.load_graph_file`` for arguments and errors.

    Returns:
        Type and sizes of each input, by name, and the metadata.
    """
    from ane.backends.onnx.graph_file import load_graph_file

    loaded = load_graph_file(graph, path, title, extra)
    return loaded.inputs, loaded.metadata


def package_runtime(kind: str, device: str) -> "Runtime":
    if kind == "mil":
        from ane.backends.mil import Arithmetic, MilRuntime

        return MilRuntime(Arithmetic(fp16=device == "fp16"))
    if kind == "coreai":
        from ane.backends.coreai.runtime import CoreAIRuntime

        return CoreAIRuntime()
    from ane.backends.coreml.runtime import CoreMLRuntime
    from ane.backends.coreml.trial import CoreMLTrial

    return CoreMLRuntime(trial=CoreMLTrial())
