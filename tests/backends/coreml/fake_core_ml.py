"""A fake of what only macOS can do, small packages, and fixtures for the tests of Core ML."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb  # noqa: N813  its name everywhere

from ane.backends.coreml.compiled import MacMachine
from ane.backends.coreml.runtime import CoreMLRuntime
from ane.backends.mil import Arithmetic, Interpreter, Package
from ane.system.errors import UserError
from converters.coreml.graph import CoreMLGraph, Style

M2 = MacMachine("Apple M2", "24F74")
X = np.array([[1, 2, 3, 4]], np.float32)


def save_scale_package(path: Path, factor: float = 2.0, dtype: str = "fp16") -> Path:
    """Save a package of one function: y = factor · x, and the sum of all x so far in a state."""

    def body(style, x, total):
        total_now = mb.add(x=mb.cast(x=x, dtype="fp16"), y=mb.read_state(input=total))
        return {"y": mb.mul(x=x, y=style.dtype(factor)),
                "sum": mb.coreml_update_state(state=total, value=total_now)}

    graph = CoreMLGraph("scale", {"length": 4}, {"x": (1, 4)}, body, {"total": (1, 4)})
    graph.build(Style(dtype)).save(str(path))
    return path


class FakeCoreML:
    """A ``CoreMLApi`` that compiles by copying and runs functions in the interpreter. Calls are written to ``log``."""

    def __init__(self, log: Path, machine: MacMachine = M2, delay: float = 0.0):
        self.log, self._machine, self.delay, self.opened = log, machine, delay, []

    def machine(self) -> MacMachine:
        return self._machine

    def compile(self, package: Path, destination: Path) -> None:
        assert not destination.exists()         # coremltools moves the model there: into a folder, if there is one
        self._write(f"compile {package.name}")
        time.sleep(self.delay)
        shutil.copytree(package, destination)

    def open(self, compiled: Path, function: str, compute_units: str) -> "RecordingFunction":
        self._write(f"open {compiled.name} {compute_units}")
        try:
            self.opened.append(RecordingFunction(Interpreter(Package(compiled), function, Arithmetic(fp16=True))))
        except UserError as error:
            raise RuntimeError(str(error)) from error
        return self.opened[-1]

    def _write(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(line + "\n")

    @property
    def compiled(self) -> int:
        return self.log.read_text().count("compile ") if self.log.exists() else 0


class RecordingFunction:
    """A function of the interpreter that records its inputs."""

    def __init__(self, interpreter: Interpreter):
        self.interpreter, self.given = interpreter, []
        self.make_state = interpreter.make_state

    def predict(self, data, state=None):
        self.given.append(dict(data))
        outputs = self.interpreter.predict(data, state)
        data.clear()                # coremltools changes the dict too
        return {name: array.astype(np.float64) for name, array in outputs.items()}      # and may return float64


@pytest.fixture(scope="session")
def packages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    save_scale_package(folder / "two.mlpackage")
    save_scale_package(folder / "three.mlpackage", 3.0)
    save_scale_package(folder / "wide.mlpackage", dtype="fp32")
    return folder


@pytest.fixture
def package(packages, tmp_path, monkeypatch) -> Path:
    """A package that the test may change, and an empty cache."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    shutil.copytree(packages / "two.mlpackage", tmp_path / "model.mlpackage")
    return tmp_path / "model.mlpackage"


@pytest.fixture
def api(tmp_path) -> FakeCoreML:
    return FakeCoreML(tmp_path / "log")


def run(api: FakeCoreML, package: Path) -> np.ndarray:
    """Load and call the function in a new runtime, as a new process would; return y."""
    function = CoreMLRuntime(api).load(package, "main", "CPU_ONLY")
    return function.predict({"x": X}, function.make_state())["y"]
