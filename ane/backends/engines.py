"""Open one engine for a model, with the options of the user. Each engine's library is imported when it is opened."""

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ane.backends.onnx.engines import TensorRTOptions
from ane.bundles.package_records import PUBLISHED
from ane.system.checked import validated
from ane.system.errors import NoEffectError, UserError
from ane.system.machine import memory_bytes, usable_cores

if TYPE_CHECKING:
    from ane.backends.base import Backend
    from ane.backends.mlx.backend import MlxBackend
    from ane.backends.packaged.functions import Runtime
    from ane.bundles import Bundle

PACKAGED = ("coreml", "coreai", "mil")  # backends that run Core ML packages
# with at least this many bytes of memory, MLX keeps networks loaded; Tortoise's decoder and denoiser take 1.2 GB in
# fp16
MLX_KEEPS_FROM = 12e9
TENSORRT = tuple(field.name for field in fields(TensorRTOptions))


@validated
class EngineOptions(TensorRTOptions):
    """Options with which ``load_backend`` opens an engine, such as torch or Core ML.

    ``cache`` applies to Core ML packages, ``compute_units`` to Core ML, and the options of ``TensorRTOptions`` to
    onnx:tensorrt.

    Attributes:
        precision: Number format. torch computes in "fp32", "bf16", "fp16" or, on the CPU, "int8". For Core ML this
            selects the packages stored in "fp32", "fp16", "8bit", "6bit" or "4bit". For ONNX it selects the packages
            stored in "fp32", "fp16", "int8" or "int4". "auto" means the backend's choice.
        threads: Number of CPU threads for the whole process. ``None`` means the backend's choice.
        keep: Whether networks stay loaded after ``Backend.release``. ``None`` means that they stay on CUDA, TensorRT,
            MPS and Core AI. A small model stays loaded on every engine. On Core ML, a large model stays loaded if this
            machine has enough memory.
        cache: Memory in which Core ML packages keep the kv-cache: "io" (on the host), "state" (inside Core ML) or
            "auto".
        compute_units: Compute units for all networks on Core ML, such as "CPU_AND_NE". ``None`` means the units that
            the bundle names.
        shared: Whether requests from several users share the engine. If so, every network uses a fixed number of
            threads, and a text never makes two calls in parallel, so that other requests do not change a request's
            bytes.
    """

    precision: str = "auto"
    threads: int | None = Field(None, ge=1)
    keep: bool | None = None
    cache: Literal["auto", "io", "state"] = "auto"
    compute_units: str | None = None
    shared: bool = False

    def requested(self) -> list[str]:
        """List the options that differ from their defaults. ``keep=True`` and ``shared=True`` are never listed."""
        usual = vars(EngineOptions())
        return [
            name
            for name, value in vars(self).items()
            if value != usual[name] and not (name in ("keep", "shared") and value)
        ]

    def check(self, spec: str, kind: str) -> None:
        """Check the options for one backend.

        Raises:
            UserError: ``threads`` is larger than the machine's number of cores, or the backend ignores an option.
        """
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
                raise NoEffectError(name, f"on the backend {spec}", f"it is {purpose}", ("backend",))


def has_published_graphs(model: "Bundle") -> bool:
    """Return whether a bundle has ONNX graphs that the voice's author published, and no Core ML package.

    For such a bundle, "auto" means ONNX Runtime.
    """
    return not model.packages and any(PUBLISHED in package.source for package in model.onnx_packages)


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
    # each call gets a single thread, because the outputs of graphs that quantise activations depend on the threads
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
    """Open a backend on a model's Core ML packages. Raises UserError if the engine or the packages cannot be used."""
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
    """Open ONNX Runtime for a model that consists of a single ONNX graph file.

    Raises:
        UserError: ``spec`` names another engine, or ``options`` has an option that does not apply to such a model.
    """
    from ane.backends.onnx.graph_file import GraphBackend

    if spec not in ("auto", "onnx", "onnx:cpu"):
        raise UserError(f"backend must be onnx:cpu for {model.family.title} models, got {spec!r}", "backend")
    for name in options.requested():
        if name != "threads":
            raise NoEffectError(name, f"on {model.family.title} models, and {model.name} is one", "leave it out")
    options.check(spec, "onnx")
    return GraphBackend(model, options.threads)


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
