"""Provide fixtures that turn this process into a Mac whose Core ML is the stand-in of ``native``."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ane.backends.coreml import trial
from ane.backends.coreml.runtime import CoreMLRuntime
from ane.backends.coreml.tools import CoreMLTools, MacMachine
from ane.system.machine import macos_version
from tests.backends.coreml import native
from tests.backends.coreml.orders import FOLDER, StandIn
from tests.backends.coreml.packages import X, save_scale_package

M2 = MacMachine("Apple M2", "24F74")  # the Mac that the stand-in reports
CHECKOUT = Path(__file__).parents[3]


class TrialInThisProcess(trial.CoreMLTrial):
    """``CoreMLTrial`` without the process, which takes seconds to start."""

    def _ask(self, request) -> dict:
        answer = trial.answer(request)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


# the program that CoreMLTrial starts, as a command of the preloaded server
TRIAL = (
    "from tests.backends.coreml.native import install_in_process\ninstall_in_process()\n"
    "from ane.backends.coreml.trial import ready\nfrom ane.system.json_process import answer_requests\n"
    "answer_requests(ready)"
)


def mac_environment(folder: Path, patch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in, which this process and its children use instead of Core ML; with an empty cache in ``folder``."""
    import coremltools  # noqa: F401  imported before the platform changes, as the others: their files depend on it
    import miniaudio  # noqa: F401
    import soundfile  # noqa: F401

    stand_in = native.machine_folder(folder / "mac")
    patch.setenv(FOLDER, str(stand_in.folder))
    patch.setenv("ANE_HOME", str(folder / "home"))
    patch.setenv("PATH", f"{stand_in.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    paths = [CHECKOUT / "tests" / "backends" / "coreml" / "mac", CHECKOUT, *os.environ.get("PYTHONPATH", "").split(":")]
    patch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    patch.syspath_prepend(str(paths[0]))  # child processes import the same modules as this process
    native.install_in_process(patch.setattr, patch.setitem)
    patch.setattr(trial, "clock", native.clock)
    return stand_in


@pytest.fixture
def unguarded_mac(tmp_path, monkeypatch) -> Iterator[StandIn]:
    import coremltools

    yield mac_environment(tmp_path, monkeypatch)
    coremltools.models.utils._macos_version.cache_clear()
    macos_version.cache_clear()


@pytest.fixture
def forked_trials(unguarded_mac, monkeypatch, python) -> None:
    """First loads in a fork of the preloaded server, which can be ended as a process of its own."""
    monkeypatch.setattr(trial.CoreMLTrial, "command", (str(python), "-c", TRIAL))


@pytest.fixture
def mac(unguarded_mac, monkeypatch) -> Iterator[StandIn]:
    """As ``unguarded_mac``, with first loads in this process. No array may die while Core ML reads it.

    A first load calls a function with a cache 40 times, not 200, and one that goes stale does at the 20th.
    """
    monkeypatch.setattr(trial, "CoreMLTrial", TrialInThisProcess)
    monkeypatch.setattr(trial, "STEPS", 40)
    monkeypatch.setattr(native, "STALE_FROM", 20)
    yield unguarded_mac
    assert unguarded_mac.count("freed too early") == 0


class RecordingTools(CoreMLTools):
    """coremltools on the stand-in; it records the models that are opened.

    Attributes:
        other: the machine that it claims to be, instead of the stand-in's.
    """

    def __init__(self, stand_in: StandIn, other: MacMachine | None = None):
        super().__init__()
        self.stand_in, self.other, self.opened = stand_in, other, []

    def machine(self) -> MacMachine:
        return self.other or super().machine()

    def open(self, compiled: Path, function: str, compute_units: str) -> Any:
        self.opened.append(super().open(compiled, function, compute_units))
        return self.opened[-1]

    @property
    def compiled(self) -> int:
        return self.stand_in.count("compile ")


@pytest.fixture(scope="session")
def packages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    save_scale_package(folder / "two.mlpackage")
    save_scale_package(folder / "three.mlpackage", 3.0)
    save_scale_package(folder / "wide.mlpackage", dtype="fp32")
    return folder


@pytest.fixture
def api(mac) -> RecordingTools:
    return RecordingTools(mac)


@pytest.fixture
def package(packages, tmp_path, unguarded_mac) -> Path:
    """A package that the test may change, and an empty cache."""
    shutil.copytree(packages / "two.mlpackage", tmp_path / "model.mlpackage")
    return tmp_path / "model.mlpackage"


def run(api: CoreMLTools, package: Path) -> np.ndarray:
    """Load and call the function in a new runtime, as a new process would; return y."""
    function = CoreMLRuntime(api).load(package, "main", "CPU_ONLY")
    return function.predict({"x": X}, function.make_state())["y"]
