"""The competitors of every benchmark of speed: upstream, and this package's backends.

- ``upstream``: upstream's own package, in its own environment (``benchmarks.upstream``);
- ``torch``, ``onnx``, ``coreml``, ``mil``: as ``ane say --backend`` runs them; packages come from the bundle.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from ane.backends import load_backend
from ane.backends.base import Backend
from ane.bundles import Model, open_model
from ane.bundles.opening import DEMO
from ane.system.errors import UserError

ENGINES = ("upstream", "torch", "onnx", "coreml", "mil")


@dataclass(frozen=True)
class Competitor:
    """An engine on a device in a precision. ``spec``: ENGINE:DEVICE, the value of ``--backend`` except "upstream"."""

    spec: str
    precision: str

    @property
    def engine(self) -> str:
        return self.spec.partition(":")[0]

    @property
    def name(self) -> str:
        return self.spec if self.precision == "auto" else f"{self.spec} {self.precision}"

    def backend(self, model: Model, threads: int) -> Backend:
        """Raises UserError for a precision that the engine lacks, or a model without its packages."""
        return load_backend(self.spec, model, self.precision, threads, keep=True)


def chosen_competitors(options: argparse.Namespace) -> tuple[Model, list[Competitor]]:
    """The model, and the competitors that the options name, in every precision (upstream: in fp32).

    Raises:
        UserError: an unknown engine, or upstream without its interpreter or official files.
    """
    model = open_model(options.bundle or (None if options.checkpoints else DEMO), options.checkpoints)
    names = options.competitors or [*(["upstream"] if options.upstream_python else []), "torch",
                                    *(["onnx"] if getattr(model, "onnx_packages", None) else [])]
    for name in names:
        if name.partition(":")[0] not in ENGINES:
            raise UserError(f"--competitors {name}: there are {', '.join(ENGINES)}")
    if "upstream" in names and not (options.upstream_python and options.checkpoints):
        raise UserError("upstream needs --upstream-python, and --checkpoints: it reads official files only")
    return model, [Competitor(name if ":" in name or name not in ("torch", "onnx") else f"{name}:cpu", precision)
                   for name in names for precision in (["fp32"] if name == "upstream" else options.precision)]


def of_upstream(row: object) -> bool:
    """Whether a row is one that others are compared with."""
    return row.competitor.startswith("upstream")


def check_names(flag: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise UserError when a name is not known."""
    for name in names:
        if name not in known:
            raise UserError(f"{flag} {name}: there are {', '.join(known)}")
