"""Open a backend by the name that you pass to ``--backend``, or choose the backend if the name is "auto"."""

import logging
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.backends.coreml.tools import OLDEST_MACOS, crash_advice
from ane.backends.engines import (
    EngineOptions,
    has_published_graphs,
    load_graph,
    load_mlx,
    load_onnx,
    load_packages,
    load_torch,
)
from ane.backends.forwarding import DeferredBackend, PhasedBackend
from ane.bundles.opening import is_embedded
from ane.system.errors import NotFoundError, UserError
from ane.system.machine import macos_at_least, macos_version

if TYPE_CHECKING:
    from ane.backends.base import Backend
    from ane.backends.mlx.backend import MlxBackend
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
LOGGER = logging.getLogger(__name__)


def core_ml_runs() -> bool:
    """Return whether this is a Mac whose Core ML supports multifunction packages and states (macOS 15 or later)."""
    return sys.platform == "darwin" and macos_at_least(OLDEST_MACOS)


def core_ml_is_chosen() -> bool:
    """Return whether the backend "auto" may choose Core ML on this machine.

    The result is false if ``core_ml_runs`` is false. It is also false on versions of macOS for which users report that
    Core ML crashes with any compute units.
    """
    return core_ml_runs() and "any compute units" not in (crash_advice(macos_version()) or "")


def mlx_is_chosen(model: "Bundle") -> bool:
    """Return whether "auto" may choose MLX.

    "auto" may choose MLX on a Mac with Apple silicon, if MLX is installed. The model must have a diffusion network, and
    must not be one of the models that come with this Python package.
    """
    installed = sys.platform == "darwin" and platform.machine() == "arm64" and find_spec("mlx") is not None
    return installed and model.family.stages.denoiser is not None and not is_embedded(model.path)


def resolve(spec: str, model: "Bundle") -> tuple[str, str]:
    """Split a backend name such as "torch:cuda" into the kind of backend and its device.

    "auto" means ONNX Runtime on the CPU if the model ``has_published_graphs``. Otherwise it means Core ML if the model
    has packages and ``core_ml_is_chosen``. In all other cases it means torch.

    Raises:
        UserError: No backend has this name.
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


def load_backend(
    spec: str,
    model: "Bundle",
    precision: str = "auto",
    threads: int | None = None,
    keep: bool | None = None,
    **others: Any,
) -> "Backend":
    """Open a backend for the networks of a model.

    The function logs a line before slow work, and a line if it cannot use the NVIDIA GPU or Core ML.

    * "auto" uses the engines that `ane bench` found fastest for this bundle on this machine. If nobody has run
      `ane bench`, ``resolve`` chooses. MLX replaces torch if ``mlx_is_chosen``, and if MLX's decoder returns the same
      results as torch's decoder.
    * "torch" is PyTorch on CUDA. Without CUDA it uses MPS, and without MPS the CPU. "torch:cuda:N" chooses a GPU.
    * "mlx" runs Tortoise's decoder and denoiser on MLX, and the other networks on torch.
    * "coreml" is Core ML. A network that Core ML cannot run moves to other compute units or to torch.
    * "coreai" runs Core ML packages on Apple's Core AI, in float32.
    * "mil" runs Core ML packages in an interpreter, on any machine. "mil:fp16" rounds to fp16 after every operation.
    * "onnx" runs ONNX packages on CUDA if CUDA loads, and otherwise on the CPU. "onnx:tensorrt" is the only name that
      uses TensorRT.

    Args:
        spec: One of ``NAMES``, or "torch:cuda:N".
        model: Bundle whose networks the backend runs.
        precision: Field of ``EngineOptions``.
        threads: Field of ``EngineOptions``.
        keep: Field of ``EngineOptions``.
        **others: Other fields of ``EngineOptions``.

    Raises:
        UserError: No backend has this name. Or this machine lacks the device, the precision or the number of cores. Or
            the model lacks the packages that the backend needs. Or the backend ignores an option.
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
    """Open torch on the device that "auto" means. If this is MPS, keep Tortoise's decoder on the CPU.

    A decoder step is too short for a GPU. On an M2, somebody measured another model's decoder: 118 s on MPS and 19 s on
    the CPU (OpenMOSS/MOSS-TTS-Nano#55).
    """
    backend = load_torch(model, "auto", precision, options)
    if backend.device.type != "mps" or backend.stages.decoder is None or backend.stages.denoiser is None:  # type: ignore[attr-defined]
        return backend
    decoding = load_torch(model, "cpu", precision, options)
    return PhasedBackend(backend.stages.decoder.network, decoding, backend)  # type: ignore[attr-defined]


def load_kind(kind: str, device: str, model: "Bundle", options: EngineOptions, automatic: bool = False) -> "Backend":
    """Open a backend whose kind and device are known.

    Args:
        kind, device: Kind of backend and its device, as ``resolve`` returns them.
        model: Bundle whose networks the backend runs.
        options: Options of the engine.
        automatic: Whether "auto" chose the backend. ``False`` means that the user named it.
    """
    if kind == "torch":
        return load_torch(model, device, options.precision, options)
    if kind == "mlx":
        return load_mlx(model, options)
    # torch runs the networks that have no package
    fallback = DeferredBackend(partial(load_torch, model, "cpu", "auto", options))
    load = load_onnx if kind == "onnx" else partial(load_packages, kind, automatic=automatic)
    return load(device, model, fallback, options)


def load_measured(model: "Bundle", options: EngineOptions) -> "Backend | None":
    """Open the engines that `ane bench` found fastest for this bundle on this machine.

    Returns:
        A backend on these engines. ``None`` means that `ane bench` has not measured this bundle on this machine.

    Raises:
        UserError: One of the engines no longer runs.
    """
    from ane.backends.measured import measured_engines

    if (measured := measured_engines(model)) is None:
        return None
    loaded = {}
    for choice in dict.fromkeys((measured.decoder, measured.others)):
        chosen = replace(options, **{name: value for name, value in vars(choice).items() if name != "backend"})
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
    """Open the backend on MLX, and compare its decoder with torch's decoder.

    Raises:
        UserError: ``load_mlx`` fails, or the outputs of the two decoders differ.
    """
    mlx = load_mlx(model, options)
    mlx.prove()
    return mlx


def read_graph(
    graph: Path | bytes, path: Path, title: str, extra: str
) -> tuple[dict[str, tuple[str, list[int | str | None]]], dict[str, str]]:
    """Load an ONNX graph to inspect it. For arguments and errors, see ``ane.backends.onnx.graph_file.load_graph_file``.

    Returns:
        The type and shape of each input, by name, and the metadata of the graph.
    """
    from ane.backends.onnx.graph_file import load_graph_file

    loaded = load_graph_file(graph, path, title, extra)
    return loaded.inputs, loaded.metadata
