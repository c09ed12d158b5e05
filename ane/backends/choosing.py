"""Load a backend by its name, as given to ``--backend``."""

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
from ane.bundles.packages import PUBLISHED
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
PACKAGED = ("coreml", "coreai", "mil")  # these run Core ML packages
MLX_KEEPS_FROM = 12e9  # bytes of memory; decoder and denoiser take 1.2 GB in fp16 at the official size
TENSORRT = tuple(field.name for field in fields(TensorRTOptions))
LOGGER = logging.getLogger(__name__)


def core_ml_runs() -> bool:
    """Whether this is a Mac whose Core ML supports multifunction packages and states: macOS 15 or later."""
    return sys.platform == "darwin" and macos_at_least(OLDEST_MACOS)


def core_ml_is_chosen() -> bool:
    """Whether "auto" may be Core ML: where it runs, unless it is reported to end processes on any compute units."""
    return core_ml_runs() and "any compute units" not in (crash_advice(macos_version()) or "")


def has_published_graphs(model: "Bundle") -> bool:
    """Whether "auto" is ONNX Runtime: for a voice whose bundle has the graphs that its author published, and nothing
    that was converted for Core ML.
    """
    return not model.packages and any(PUBLISHED in package.source for package in model.onnx_packages)


def mlx_is_chosen(model: "Bundle") -> bool:
    """Whether "auto" may be MLX: where it is installed on Apple silicon, for a Tortoise that is not embedded."""
    installed = sys.platform == "darwin" and platform.machine() == "arm64" and find_spec("mlx") is not None
    return installed and model.family.stages.denoiser is not None and not is_embedded(model.path)


def resolve(spec: str, model: "Bundle") -> tuple[str, str]:
    """Return the kind and the device that ``spec`` means.

    "auto" is ONNX Runtime on the CPU for a model that ``has_published_graphs``, Core ML for a model with packages where
    ``core_ml_is_chosen``, or else torch.

    Raises:
        UserError: no such backend.
    """
    kind, colon, device = spec.partition(":")
    if spec == "auto" and has_published_graphs(model):
        return "onnx", "cpu"
    if spec == "auto":
        return ("coreml" if core_ml_is_chosen() and model.packages else "torch"), "auto"
    if kind == "torch" and (device or not colon):  # TorchBackend checks whether torch has the device
        return kind, device or "auto"
    if spec not in NAMES:
        raise NotFoundError(f"no backend is named {spec!r}; there are {', '.join(NAMES)}")
    return kind, device


@validated
class EngineOptions(TensorRTOptions):
    """How an engine runs. ``cache`` and ``compute_units`` are for Core ML packages, the options of ``TensorRTOptions``
    for onnx:tensorrt.

    Attributes:
        precision: "auto"; what torch computes in ("fp32", "bf16", "fp16", on the CPU "int8"); or that of the packages
            to use ("fp32", "fp16", "8bit", "6bit", "4bit", for onnx also "int8", "int4").
        threads: CPU threads of the whole process (None: the backend's own choice).
        keep: keep released networks loaded (None: only on CUDA, TensorRT, MPS and Core AI, those of small models, and
            on Core ML where the memory of this machine is large enough).
        cache: kind of kv-cache of Core ML packages: "io", "state" or "auto".
        compute_units: where Core ML may run all networks, such as "CPU_AND_NE" (None: what the bundle states).
        shared: Whether requests of several users share the engine. Then all networks keep their number of threads, so
            that a request has the same bytes whatever runs at the same time, and a text makes one call at a time.
    """

    precision: str = "auto"
    threads: int | None = Field(None, ge=1)
    keep: bool | None = None
    cache: Literal["auto", "io", "state"] = "auto"
    compute_units: str | None = None
    shared: bool = False

    def given(self) -> list[str]:
        """The names of those that have another value than by default; loaded networks and sharing are no demands."""
        usual = vars(EngineOptions())
        return [
            name
            for name, value in vars(self).items()
            if value != usual[name] and not (name in ("keep", "shared") and value)
        ]

    def check(self, spec: str, kind: str) -> None:
        """Raise UserError for more threads than cores, or an option that the backend ignores."""
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
        for name in self.given():
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
    """A backend for the networks of ``model``.

    It logs a line before something slow, and when an NVIDIA GPU or Core ML cannot be used.

    Args:
        spec: one of ``NAMES``, or "torch:cuda:N". "torch" uses CUDA, else MPS, else the CPU; "onnx" runs
            ONNX packages on CUDA where that loads, else on the CPU, and on TensorRT only when it is
            named; "mlx" runs the decoder and the denoiser of Tortoise
            on MLX; "mil" interprets Core ML packages on any machine, "mil:fp16" with fp16 rounding after every
            operation; "coreai" runs them on Apple's Core AI in float32; "auto" is what
            `ane bench` found fastest for this bundle on this machine, or else ``resolve``'s choice, or MLX in place
            of torch where ``mlx_is_chosen`` and its decoder passes a comparison with torch. Networks that Core ML
            refuses run on other compute units, else on torch.
        precision, threads, keep, others: the fields of ``EngineOptions``.

    Raises:
        UserError: unknown backend, a device or precision that this machine lacks, more threads than cores, a model
            without the packages that the backend needs, an option that the backend ignores.
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
            "Core ML of macOS %s is reported to end processes: running on torch (--backend coreml uses it)",
            macos_version(),
        )
    first: list[Callable[[], Backend]] = []
    if kind in ("torch", "coreml") and not is_embedded(model.path) and not options.given():
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
    """Torch on the device that "auto" means. Where that is MPS, a decoder runs on the CPU: its steps are too short for
    MPS to be faster (118 s in place of 19 on an M2, OpenMOSS/MOSS-TTS-Nano#55).
    """
    backend = load_torch(model, "auto", precision, options)
    if backend.device.type != "mps" or backend.stages.decoder is None or backend.stages.denoiser is None:  # type: ignore[attr-defined]
        return backend
    from ane.backends.measured import PhasedBackend

    decoding = load_torch(model, "cpu", precision, options)
    return PhasedBackend(backend.stages.decoder.network, decoding, backend)  # type: ignore[attr-defined]


def load_kind(kind: str, device: str, model: "Bundle", options: EngineOptions, automatic: bool = False) -> "Backend":
    """The backend of this kind on this device. ``automatic``: whether the user did not name it."""
    if kind == "torch":
        return load_torch(model, device, options.precision, options)
    if kind == "mlx":
        return load_mlx(model, options)
    # of networks that have no packages
    fallback = DeferredBackend(partial(load_torch, model, "cpu", "auto", options))
    load = load_onnx if kind == "onnx" else partial(load_packages, kind, automatic=automatic)
    return load(device, model, fallback, options)


def load_measured(model: "Bundle", options: EngineOptions) -> "Backend | None":
    """Return the engines that `ane bench` found fastest for this bundle on this machine, or ``None`` without a
    measurement.

    Raises:
        UserError: a measured engine does not run any more.
    """
    from ane.backends.measured import PhasedBackend, measured_engines

    if (found := measured_engines(model)) is None:
        return None
    loaded = {}
    for choice in dict.fromkeys((found.decoder, found.others)):
        own = replace(options, compute_units=choice.compute_units, threads=choice.threads)
        kind, device = resolve(choice.backend, model)
        own.check(choice.backend, kind)
        loaded[choice] = load_proven_mlx(model, own) if kind == "mlx" else load_kind(kind, device, model, own, True)
    LOGGER.info("`ane bench` found %s fastest here on %s (--backend chooses another)", found, found.date[:10])
    if found.decoder == found.others:
        return loaded[found.decoder]
    return PhasedBackend(model.family.stages.decoder.network, loaded[found.decoder], loaded[found.others])


def load_proven_mlx(model: "Bundle", options: EngineOptions) -> "MlxBackend":
    """Return the backend on MLX.

    Raises:
        UserError: As ``load_mlx``, or the decoder's results differ from those of torch.
    """
    mlx = load_mlx(model, options)
    mlx.prove()
    return mlx


def load_torch(model: "Bundle", device: str, precision: str, options: EngineOptions) -> "Backend":
    from ane.backends.torch.backend import TorchBackend  # a second

    return TorchBackend(model, device, precision, options.threads, options.keep, keeps_threads=options.shared)


def load_mlx(model: "Bundle", options: EngineOptions) -> "MlxBackend":
    """The backend on MLX. Raises UserError where MLX is not installed or runs none of the model's networks."""
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
    # the bits of a graph that quantises activations depend on its number of threads: it has one for each call
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
    """The backend on a model's Core ML packages. Raises UserError when Core ML or the packages are not usable."""
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
        moves_on=automatic,
        prefer_state=kind == "coreml",
    )


def load_graph(spec: str, model: "Bundle", options: EngineOptions) -> "Backend":
    """The engine of a model that is one ONNX graph. Raises UserError for another, or an option without effect on it."""
    from ane.backends.onnx.graph_file import GraphBackend

    if spec not in ("auto", "onnx", "onnx:cpu"):
        raise UserError(f"backend must be onnx:cpu for {model.family.title} models, got {spec!r}", "backend")
    for name in options.given():
        if name != "threads":
            raise UserError(
                f"{name} has no effect on {model.family.title} models, and {model.name} is one; leave it out", name
            )
    options.check(spec, "onnx")
    return GraphBackend(model, options.threads)


def read_graph(
    graph: Path | bytes, path: Path, title: str, extra: str
) -> tuple[dict[str, tuple[str, list[int | str | None]]], dict[str, str]]:
    """Load a graph to look at it, and return type and sizes of its inputs by name, and its metadata. The arguments and
    errors are those of ``ane.backends.onnx.graph_file.load_graph_file``.
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
