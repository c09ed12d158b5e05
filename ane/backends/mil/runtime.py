"""Loads functions of packages into the interpreter."""

from pathlib import Path

from ane.backends.mil.interpreter import Arithmetic, Interpreter
from ane.backends.mil.package import Package


class MilRuntime:
    """The counterpart of ``CoreMLRuntime`` on any machine. It ignores compute units.

    A package is read once and its weights are decoded once, however many of its functions are loaded.
    """

    def __init__(self, arithmetic: Arithmetic | None = None):
        self.arithmetic = arithmetic or Arithmetic()
        self.name = "mil:fp16" if self.arithmetic.fp16 else "mil"
        self._packages: dict[Path, Package] = {}

    def load(self, package: Path, function: str, compute_units: str) -> Interpreter:
        if package not in self._packages:
            self._packages[package] = Package(package)
        return Interpreter(self._packages[package], function, self.arithmetic)

    def unload(self, package: Path) -> None:
        self._packages.pop(package, None)
