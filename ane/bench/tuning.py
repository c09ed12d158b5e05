"""The settings of a backend that `ane bench` compares, and the flags of `ane say` that choose them."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tuning:
    """Settings of a backend.

    Attributes:
        backend: a name of ``ane.backends.NAMES`` except "auto". precision, cache: see ``load_backend``.
        compute_units: where Core ML runs each network; empty for other backends.
        lanes: candidates sampled at a time. threads: of the CPU. None: the default.
        measured: the figures it was chosen by, for display.
    """

    backend: str
    precision: str = "auto"
    compute_units: dict[str, str] = field(default_factory=dict)
    cache: str = "auto"
    lanes: int | None = None
    threads: int | None = None
    measured: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [self.backend, *([] if self.precision == "auto" else [self.precision])]
        parts += [f"{name} {value}" for name, value in (("cache", self.cache if self.cache != "auto" else None),
                                                        ("lanes", self.lanes), ("threads", self.threads)) if value]
        by_units: dict[str, list[str]] = defaultdict(list)
        for network, units in self.compute_units.items():
            by_units[units].append(network)
        parts += [f"{units}: {' '.join(networks)}" for units, networks in by_units.items()]
        return ", ".join(parts)

    @property
    def flags(self) -> str:
        """The flags of `ane say` for these settings; compute units only where all networks have the same."""
        units = set(self.compute_units.values())
        values = {"backend": self.backend, "precision": self.precision, "cache": self.cache, "lanes": self.lanes,
                  "threads": self.threads, "compute-units": units.pop() if len(units) == 1 else None}
        return " ".join(f"--{name} {value}" for name, value in values.items() if value not in (None, "auto"))
