"""The competitors of every benchmark of speed: upstream, torch eager, and this package's backends.

- ``upstream``: upstream's own package, in its own environment (``benchmarks.upstream``);
- ``eager``: the plain networks of ``ane.models.tortoise.networks`` (``benchmarks.eager``);
- ``torch``, ``onnx``, ``coreml``, ``mil``: as ``ane say --backend`` runs them.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ane.backends import load_backend
from ane.backends.base import Backend
from ane.backends.packaged.selection import ONNX_PRECISIONS
from ane.backends.torch.backend import DTYPES, PRECISIONS
from ane.bundles import Model, open_model
from ane.system.errors import UserError
from benchmarks.eager import EagerBackend
from benchmarks.peaks import cached_numbers, decoder_weights

PACKAGES = ("auto", "fp16", "fp32", "8bit", "6bit", "4bit")
ENGINES = {"upstream": ("fp32",), "eager": tuple(DTYPES), "torch": ("auto", *PRECISIONS),
           "onnx": ("auto", *ONNX_PRECISIONS), "coreml": PACKAGES, "mil": PACKAGES}


@dataclass(frozen=True)
class Competitor:
    """An engine on a device in a precision, compared with others in a benchmark."""

    engine: str
    device: str
    precision: str

    @property
    def spec(self) -> str:
        """ENGINE:DEVICE, the value of ``--backend`` except for "upstream" and "eager"."""
        return f"{self.engine}:{self.device}" if self.device else self.engine

    @property
    def name(self) -> str:
        return self.spec if self.precision == "auto" else f"{self.spec} {self.precision}"

    @property
    def processor(self) -> str:
        """The processor whose bandwidth and throughput limit it: "cpu" or "cuda"."""
        return "cuda" if self.device in ("cuda", "tensorrt") else "cpu"

    def backend(self, model: Model, threads: int) -> Backend:
        """Raises UserError for a precision that the engine lacks, or a model without its packages."""
        if self.engine == "eager":
            return EagerBackend(model, self.device, self.precision, threads)
        return load_backend(self.spec, model, self.precision, threads, keep=True)

    def step_gigabytes(self, backend: Backend, lanes: int, prefix: int, own: float) -> float | None:
        """Least GB that a decoder step reads: weights, keys and values of the prefix and of the lanes' own positions.

        Weights of packages are the bytes of their files; each eager lane has a copy of the prefix. None where unknown.
        """
        model = backend.model
        if self.engine == "onnx":
            package = backend.packages["autoregressive"]
            weights = sum(file.bytes for file in package.files if not file.file.endswith(".onnx"))
            width = 2 if self.precision == "fp16" else 4
            return (weights + cached_numbers(model, prefix + lanes * own) * width) / 1e9
        if self.precision not in PRECISIONS or self.engine not in ("eager", "torch"):
            return None
        positions = lanes * (prefix + own) if self.engine == "eager" else prefix + lanes * own
        cached = 4 if self.device == "cpu" and self.engine == "torch" else PRECISIONS[self.precision]
        return (decoder_weights(model) * PRECISIONS[self.precision] + cached_numbers(model, positions) * cached) / 1e9


def chosen_competitors(options: argparse.Namespace, known: Sequence[str]) -> list[Competitor]:
    """The competitors that the options name, each in the precisions that it has.

    Args:
        known: engines that the benchmark can measure.

    Raises:
        UserError: an unknown engine or precision, or upstream without its interpreter or official files.
    """
    names = options.competitors or [*(["upstream"] if options.upstream_python else []), *default_names(options, known)]
    unknown = [name for name in names if name.partition(":")[0] not in known]
    if unknown:
        raise UserError(f"--competitors {unknown[0]}: there are {', '.join(known)}")
    precisions = {name for engine in ENGINES.values() for name in engine}
    for precision in options.precision:
        if precision not in precisions:
            raise UserError(f"--precision {precision}: there are {', '.join(sorted(precisions))}")
    if "upstream" in names and not (options.upstream_python and options.checkpoints):
        raise UserError("upstream needs --upstream-python, and --checkpoints: it reads official files only")
    found = []
    for name in names:
        engine, _, device = name.partition(":")
        device = device or ("cpu" if engine in ("eager", "torch", "onnx") else "")
        own = [precision for precision in options.precision if precision in ENGINES[engine]] or ENGINES[engine][:1]
        found += [Competitor(engine, device, precision) for precision in own]
    return found


def default_names(options: argparse.Namespace, known: Sequence[str]) -> list[str]:
    """The competitors without --competitors: eager, torch, and onnx if the model has ONNX packages."""
    model = open_model(options.bundle, options.checkpoints)
    packaged = ["onnx"] if getattr(model, "onnx_packages", None) else []
    return [name for name in ("eager", "torch", *packaged) if name in known]


@contextmanager
def opened_model(options: argparse.Namespace, competitors: Sequence[Competitor],
                 networks: Sequence[str] | None = None) -> Iterator[Model]:
    """The model of the options; a copy with ONNX packages, in a temporary folder, if a competitor needs them.

    Args:
        networks: which to convert; None: all.
    """
    model = open_model(options.bundle, options.checkpoints)
    onnx = [competitor for competitor in competitors if competitor.engine == "onnx"]
    if not onnx or getattr(model, "onnx_packages", None):
        yield model
        return
    from converters.conversion import convert
    from converters.onnx.package import OnnxOptions, OnnxTarget

    precisions = dict.fromkeys("fp32" if each.precision == "auto" else each.precision for each in onnx)
    with tempfile.TemporaryDirectory() as folder:
        yield convert(model, Path(folder) / "onnx", [OnnxOptions(precision) for precision in precisions],
                      [network for network in networks or model.networks if network in model.networks],
                       target=OnnxTarget())
