"""The engines that ``benchmarks.backends`` holds side by side: which run here, in which precisions, on what model."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ane.backends import load_backend
from ane.backends.base import Backend
from ane.backends.onnx.providers import choose
from ane.backends.onnx.selection import PRECISIONS as PACKAGED
from ane.backends.onnx.selection import stored
from ane.backends.torch.backend import DTYPES, HALVED, PRECISIONS
from ane.backends.torch.device import cuda_trouble
from ane.bundles import Model
from ane.bundles.bundle import Bundle
from ane.system.errors import UserError
from benchmarks.decode import gigabytes
from benchmarks.eager import EagerBackend
from benchmarks.peaks import cached

COMPUTED = {"eager": tuple(DTYPES), "torch": tuple(PRECISIONS), "onnx": PACKAGED}
KNOWN = tuple(dict.fromkeys(name for names in COMPUTED.values() for name in names))


@dataclass(frozen=True)
class Engine:
    """A way to run the stages.

    Attributes:
        kind: "eager", "torch" or "onnx". runs_on: what follows it in ``name``: a device, or a provider of ONNX Runtime.
    """

    kind: str
    runs_on: str

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.runs_on}"

    @property
    def device(self) -> str:
        """Whose bandwidth and whose products are its limits."""
        return "cpu" if self.runs_on == "cpu" else "cuda"

    def lacks(self) -> str | None:
        """Why it does not run here; None: it does."""
        if self.device == "cuda" and no_cuda():
            return no_cuda()
        if self.kind == "onnx":
            try:
                choose(self.runs_on)
            except UserError as error:
                return str(error)
        return None

    def computed(self, network: str, precision: str) -> str:
        """The precision that a network really has where this one is asked for."""
        if self.kind == "onnx":
            return stored(network, precision)
        halved = network in HALVED and (precision != "int8" or network == "autoregressive")
        return precision if halved else "fp32"

    def opened(self, model: Model, precision: str, threads: int | None) -> Backend:
        """Raises UserError where the engine does not compute in that precision, or the model has no such packages."""
        if self.kind == "eager":
            return EagerBackend(model, self.runs_on, precision, threads)
        return load_backend(self.name, model, precision, threads, keep=True)


ENGINES = {engine.name: engine for engine in (
    Engine("eager", "cpu"), Engine("torch", "cpu"), Engine("onnx", "cpu"), Engine("eager", "cuda"),
    Engine("torch", "cuda"), Engine("onnx", "cuda"), Engine("onnx", "tensorrt"))}


@cache
def no_cuda() -> str | None:
    """Why CUDA, and TensorRT which needs it, are not run here; None: they are."""
    trouble = cuda_trouble()
    return trouble.says if trouble else None


def present(names: Sequence[str] | None) -> tuple[list[Engine], dict[str, str]]:
    """The engines of these names that run here, and why the others of all (None) do not.

    Raises:
        UserError: there is no such engine, or one that was named does not run here.
    """
    unknown = [name for name in names or () if name not in ENGINES]
    if unknown:
        raise UserError(f"--engines {unknown[0]}: there are {', '.join(ENGINES)}")
    lacking = {name: ENGINES[name].lacks() for name in names or ENGINES}
    left_out = {name: why for name, why in lacking.items() if why}
    if names and left_out:
        name, why = next(iter(left_out.items()))
        raise UserError(f"--engines {name}: {why}")
    return [ENGINES[name] for name in lacking if name not in left_out], left_out


@dataclass
class Contestant:
    """An engine in a precision, as one network is run."""

    engine: Engine
    precision: str
    backend: Backend

    def step_gigabytes(self, lanes: int, prefix: int, own: float) -> float:
        """What a step reads at least once: the decoder's weights, and keys and values of a prefix and the lanes' own
        positions. The weights of packages are the bytes of their file, scales and all; eager lanes have a prefix each.
        """
        model = self.backend.model
        if self.engine.kind == "onnx":
            package = self.backend.packages["autoregressive"]
            weights = sum(file.bytes for file in package.files if not file.file.endswith(".onnx"))
            return (weights + cached(model, prefix + lanes * own) * (2 if self.precision == "fp16" else 4)) / 1e9
        if self.engine.kind == "eager":
            return gigabytes(model, self.precision, lanes * (prefix + own), "eager")
        return gigabytes(model, self.precision, prefix + lanes * own, self.engine.device)


def contestants(engines: Sequence[Engine], model: Model, networks: Sequence[str], precisions: Sequence[str],
                threads: int | None, left_out: dict[str, str]) -> list[Contestant]:
    """Every engine in every one of the precisions; for one network, in those that it really has there.

    Where an engine refuses a precision, or has no package of a network, ``left_out`` is told.
    """
    found: list[Contestant] = []
    for engine in engines:
        there: set[str] = set()
        for precision in precisions:
            computed = engine.computed(networks[0], precision) if len(networks) == 1 else precision
            if precision not in COMPUTED[engine.kind] or computed in there:
                continue
            try:
                backend = engine.opened(model, precision, threads)
            except UserError as error:
                left_out[f"{engine.name} {precision}"] = str(error)
                continue
            missing = [name for name in networks if engine.kind == "onnx" and name not in backend.packages]
            if missing:
                left_out[f"{engine.name}, {', '.join(networks)}"] = f"the bundle has no ONNX package of {missing[0]}"
                break
            there.add(computed)
            found.append(Contestant(engine, computed, backend))
    return found


@contextmanager
def with_packages(model: Model, wanted: bool, kept: Path | None, precisions: Sequence[str],
                  networks: Sequence[str]) -> Iterator[Model]:
    """``model`` where it has ONNX packages or none are ``wanted``; else a bundle with them, for all engines to run.

    Args:
        kept: where that bundle lies, or is made if it does not (None: in a folder that is gone afterwards).

    Raises:
        UserError: what lies there is another model, has no ONNX packages, or a conversion fails.
    """
    if not wanted or getattr(model, "onnx_packages", None):
        yield model
        return
    if kept and kept.exists():
        bundle = Bundle(kept)
        if not bundle.onnx_packages or (isinstance(model, Bundle) and bundle.identity != model.identity):
            raise UserError(f"--onnx-bundle {kept}: it holds no ONNX packages of {model.name}; name a new folder, or "
                            "the model that they are of with --bundle")
        yield bundle
        return
    with tempfile.TemporaryDirectory() as folder:
        yield converted(model, kept or Path(folder) / "onnx", precisions, networks)


def converted(model: Model, destination: Path, precisions: Sequence[str], networks: Sequence[str]) -> Bundle:
    from converters.conversion import convert
    from converters.onnx.package import OnnxTarget, OnnxOptions

    def say(network: str, doing: str) -> None:
        print(f"{network}: {doing}", file=sys.stderr)

    options = [OnnxOptions(precision) for precision in precisions if precision in PACKAGED] or [OnnxOptions()]
    return convert(model, destination, options, networks, progress=say, target=OnnxTarget())
