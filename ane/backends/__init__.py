"""Engines that run the stages. `load_backend` turns the text of ``--backend`` into one."""

import os
import platform
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.backends.base import Backend
    from ane.bundles import Model

NAMES = ("auto", "torch", "torch:cpu", "torch:cuda", "torch:mps", "coreml", "mil", "mil:fp16", "onnx", "onnx:cpu",
         "onnx:cuda", "onnx:tensorrt", "onnx:coreml")
MEASURED = tuple(name for name in NAMES[1:] if not name.startswith("onnx"))        # what `ane bench` knows
PACKAGED = ("coreml", "mil")        # engines that run Core ML packages


def core_ml_runs() -> bool:
    """Whether this is a Mac whose Core ML knows functions and states: macOS 15 or later."""
    return sys.platform == "darwin" and int(platform.mac_ver()[0].partition(".")[0] or 0) >= 15


def resolve(spec: str, model: "Model") -> tuple[str, str]:
    """Engine and device that ``--backend`` means; "auto" is Core ML where it runs, for a model with packages.

    Raises:
        UserError: no such backend.
    """
    engine, _, device = spec.partition(":")
    if spec == "auto":
        return ("coreml" if core_ml_runs() and getattr(model, "packages", None) else "torch"), "auto"
    if engine == "torch":
        return engine, device or "auto"
    if spec not in NAMES:
        raise UserError(f"no backend is named {spec!r}; there are {', '.join(NAMES)}")
    return engine, device


def load_backend(spec: str, model: "Model", precision: str = "auto", threads: int | None = None,
                 keep: bool | None = None, cache: str = "auto", units: str | Mapping[str, str] | None = None,
                 memory: float | None = None, afresh: bool = False,
                 notice: Callable[[str], None] = lambda line: None) -> "Backend":
    """An engine over the networks of ``model``.

    Args:
        spec: one of ``NAMES``; "torch" takes the best device there is; "onnx" runs ONNX packages on CUDA where that
            loads, else on the CPU, and on TensorRT or Core ML only when asked; "mil" interprets Core ML packages
            anywhere, "mil:fp16" with the rounding of fp16 after every operation; "auto" takes what `ane bench`
            found fastest for this model on this machine, the other arguments over it, and where nothing was found what
            ``resolve`` says.
        precision: "auto"; what torch computes in ("fp32", "bf16", "fp16", on the CPU "int8"); which packages are taken.
        threads: CPU threads of the whole process (None: the engine's own choice).
        keep: keep networks that a step has released (None: on CUDA, TensorRT, MPS and Core ML only).
        cache: kind of kv-cache of Core ML packages: "io", "state" or "auto".
        units: where Core ML may run every network, or each by name (None: what the bundle says of each).
        memory: GB that ONNX graphs may take at a time (None: what there is); the least recently used go first.
        afresh: build TensorRT's engines anew.
        notice: told in one line what takes long, before it begins, that remembered settings cannot be used, and that
            an NVIDIA GPU cannot.

    Raises:
        UserError: unknown backend, a device or precision that this machine lacks, more threads than it has cores, a
            model without packages for an engine that runs nothing else, an option without effect.
    """
    from ane.backends import tuning

    tuned = tuning.applying(spec, model, precision, threads, cache, units, notice)
    if tuned:
        spec, precision, threads, cache = tuned.backend, tuned.precision, tuned.threads, tuned.cache
        units = tuned.units or None
    engine, device = resolve(spec, model)
    cores = os.cpu_count() or 1
    if threads is not None and threads > cores:
        raise UserError(f"--threads {threads}: this machine has {cores} cores; more threads only wait")
    if engine in ("torch", "onnx"):
        for flag, given in (("--cache", cache != "auto"), ("--compute-units", units is not None)):
            if given:
                raise UserError(f"{flag} has no effect on --backend {engine}: it is for Core ML packages")
    if memory is not None and engine != "onnx":
        raise UserError(f"--memory has no effect on --backend {engine}: it is for onnx")
    if afresh and (engine, device) != ("onnx", "tensorrt"):
        raise UserError(f"--force-build has no effect on --backend {spec}: it is for onnx:tensorrt")
    from ane.backends.torch.backend import TorchBackend

    if engine == "torch":
        return TorchBackend(model, device, precision, threads, keep, notice)
    if engine == "onnx":
        return _onnx(model, device, precision, threads, keep, memory, afresh, notice)
    from ane.backends.packaged.backend import PackagedBackend

    if engine == "mil" and units is not None:
        raise UserError("--compute-units has no effect on --backend mil, which interprets: it is for coreml")
    rest = TorchBackend(model, "cpu", "auto", threads, keep)
    everywhere = dict.fromkeys(model.networks, units) if isinstance(units, str) else units
    return PackagedBackend(model, _engine(engine, device, notice), rest, precision, cache, everywhere,
                           keep=engine == "coreml" if keep is None else keep)


def _onnx(model: "Model", device: str, precision: str, threads: int | None, keep: bool | None, memory: float | None,
          afresh: bool, notice: Callable[[str], None]) -> "Backend":
    from ane.backends.onnx.backend import OrtBackend
    from ane.backends.onnx.providers import choose
    from ane.backends.onnx.tensorrt import TensorRtEngines
    from ane.backends.torch.backend import TorchBackend

    chosen = choose(device, notice)
    rest = TorchBackend(model, "cpu", "auto", threads, keep)
    return OrtBackend(model, chosen, rest, precision, threads, keep=chosen.memory != "cpu" if keep is None else keep,
                      budget=None if memory is None else round(memory * 1e9), engines=TensorRtEngines(rebuild=afresh),
                      notice=notice)


def _engine(engine: str, device: str, notice: Callable[[str], None]):
    if engine == "mil":
        from ane.backends.mil import Arithmetic, MilRuntime

        return MilRuntime(Arithmetic(fp16=device == "fp16"))
    from ane.backends.coreml.runtime import CoreMLRuntime

    return CoreMLRuntime(notice=notice)
