"""A stand-in for what only macOS does, packages to try it on, and the fixtures that both tests of Core ML share."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb  # noqa: N813  its name everywhere

from ane.backends.coreml.compiled import Machine
from ane.backends.coreml.engine import CoreMLEngine
from ane.backends.mil import Arithmetic, Interpreter, Package
from ane.system.errors import UserError
from converters.coreml.graph import CoreMLGraph, Style

M2 = Machine("Apple M2", "24F74")
X = np.array([[1, 2, 3, 4]], np.float32)


def write_package(path: Path, factor: float = 2.0, dtype: str = "fp16") -> Path:
    """A package of one function: y = factor · x, and the sum of all x so far kept in a state."""

    def body(style, x, total):
        total_now = mb.add(x=mb.cast(x=x, dtype="fp16"), y=mb.read_state(input=total))
        return {"y": mb.mul(x=x, y=style.dtype(factor)),
                "sum": mb.coreml_update_state(state=total, value=total_now)}

    graph = CoreMLGraph("scale", {"length": 4}, {"x": (1, 4)}, body, {"total": (1, 4)})
    graph.build(Style(dtype)).save(str(path))
    return path


class StandIn:
    """Compiling copies the package, loading interprets it. ``log`` is what was asked, one line each."""

    def __init__(self, log: Path, machine: Machine = M2, delay: float = 0.0):
        self.log, self._machine, self.delay, self.opened = log, machine, delay, []

    def machine(self) -> Machine:
        return self._machine

    def compile(self, package: Path, destination: Path) -> None:
        assert not destination.exists()         # shutil.move would put the model inside
        self._note(f"compile {package.name}")
        time.sleep(self.delay)
        shutil.copytree(package, destination)

    def open(self, compiled: Path, function: str, units: str) -> "Spy":
        self._note(f"open {compiled.name} {units}")
        try:
            self.opened.append(Spy(Interpreter(Package(compiled), function, Arithmetic(fp16=True))))
        except UserError as error:
            raise RuntimeError(str(error)) from error
        return self.opened[-1]

    def _note(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(line + "\n")

    @property
    def compiled(self) -> int:
        return self.log.read_text().count("compile ") if self.log.exists() else 0


class Spy:
    """A loaded function that remembers what it was given."""

    def __init__(self, interpreter: Interpreter):
        self.interpreter, self.given = interpreter, []
        self.make_state = interpreter.make_state

    def predict(self, data, state=None):
        self.given.append(dict(data))
        outputs = self.interpreter.predict(data, state)
        data.clear()                # coremltools changes the dict as well
        return {name: array.astype(np.float64) for name, array in outputs.items()}      # so it does with doubles


@pytest.fixture(scope="session")
def packages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    write_package(folder / "two.mlpackage")
    write_package(folder / "three.mlpackage", 3.0)
    write_package(folder / "wide.mlpackage", dtype="fp32")
    return folder


@pytest.fixture
def package(packages, tmp_path, monkeypatch) -> Path:
    """A package of one's own, and a cache too."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    shutil.copytree(packages / "two.mlpackage", tmp_path / "model.mlpackage")
    return tmp_path / "model.mlpackage"


@pytest.fixture
def toolkit(tmp_path) -> StandIn:
    return StandIn(tmp_path / "log")


def run(toolkit: StandIn, package: Path) -> np.ndarray:
    """y of a new engine, as a new start of the program has it."""
    function = CoreMLEngine(toolkit).load(package, "main", "CPU_ONLY")
    return function.predict({"x": X}, function.make_state())["y"]
