"""Test Core ML on a real Mac: compare its outputs with the interpreter's, and test the cache of compiled models.

Run these tests on Apple Silicon with macOS 15 or newer, in a checkout with the test extra installed::

    pytest tests/mac -rA
"""

import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ane.backends.coreml.compiled import extract_function
from ane.backends.coreml.runtime import CoreMLRuntime
from ane.backends.coreml.tools import CoreMLTools
from ane.backends.coreml.trial import CoreMLTrial
from ane.backends.mil import Arithmetic, Interpreter, Package
from ane.system.decibels import snr_db
from tests.refusals import assert_refused

pytestmark = pytest.mark.skipif(
    sys.platform != "darwin", reason="Core ML runs on macOS only; on a Mac (macOS 15 or newer): pytest tests/mac -rA"
)

SHAPE = (1, 64, 1, 64)  # the Neural Engine's layout: channels second, last axis a multiple of 32


class CountingCoreML(CoreMLTools):
    """``CoreMLTools`` that counts its compiles."""

    def __init__(self):
        super().__init__()
        self.compiles = 0

    def compile(self, package: Path, destination: Path) -> None:
        self.compiles += 1
        super().compile(package, destination)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """Two functions with shared weights: three 1×1 convolutions, and the same with a state that sums their results."""
    from coremltools.converters.mil import Builder as mb  # noqa: N813

    from converters.coreml.graph import CoreMLGraph, Style
    from converters.coreml.merge import merge

    weights = np.random.default_rng(0).standard_normal((3, 64, 64, 1, 1)) / 8

    def plain(style, x):
        for weight in weights:
            x = mb.gelu(x=mb.conv(x=x, weight=style.const(weight)), mode="TANH_APPROXIMATION")
        return {"y": mb.mul(x=x, y=style.dtype(1))}

    def summing(style, x, total):
        y = plain(style, x)["y"]
        return {"y": mb.coreml_update_state(state=total, value=mb.add(x=mb.read_state(input=total), y=y))}

    folder = tmp_path_factory.mktemp("package")
    for name, body, states in (("plain", plain, {}), ("summing", summing, {"total": SHAPE})):
        CoreMLGraph(name, {}, {"x": SHAPE}, body, states).build(Style(), folder / f"{name}.mlpackage")
    merge(((name, folder / f"{name}.mlpackage") for name in ("plain", "summing")), folder / "both.mlpackage")
    return folder / "both.mlpackage"


@pytest.fixture
def core_ml(tmp_path, monkeypatch) -> CountingCoreML:
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    return CountingCoreML()


@pytest.mark.parametrize("compute_units", ["CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL"])
@pytest.mark.parametrize("function", ["plain", "summing"])
def test_core_ml_computes_what_the_interpreter_does(core_ml, package, function, compute_units):
    """Three calls, so that a state is read and written between them; fp16 must reach 40 dB."""
    loaded = CoreMLRuntime(core_ml).load(package, function, compute_units)
    interpreter = Interpreter(Package(package), function, Arithmetic(fp16=True))
    states = [runner.make_state() if function == "summing" else None for runner in (loaded, interpreter)]
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
        got, expected = (
            runner.predict({"x": x}, state)["y"] for runner, state in zip((loaded, interpreter), states, strict=True)
        )
        assert (got.dtype, got.shape) == (np.float32, SHAPE)
        assert snr_db(expected, got) > 40


def test_a_package_of_one_function_runs_too(core_ml, package):
    single = package.with_name("plain.mlpackage")
    x = np.ones(SHAPE, np.float32)
    np.testing.assert_allclose(
        CoreMLRuntime(core_ml).load(single, "main", "CPU_ONLY").predict({"x": x})["y"],
        CoreMLRuntime(core_ml).load(package, "plain", "CPU_ONLY").predict({"x": x})["y"],
    )


def test_a_second_start_compiles_nothing_and_all_functions_share_one_model(core_ml, package):
    for _ in range(2):
        runtime = CoreMLRuntime(core_ml)
        for function in ("plain", "summing"):
            runtime.load(package, function, "CPU_AND_NE")
    assert core_ml.compiles == 1


def test_a_damaged_compiled_model_is_compiled_again(core_ml, package):
    """The files keep their size, so only Core ML can notice."""
    runtime = CoreMLRuntime(core_ml)
    runtime.load(package, "plain", "CPU_ONLY")
    entry = runtime.cache.entries()[0]
    for file in (*entry.rglob("model.mil"), *entry.rglob("coremldata.bin")):
        file.write_bytes(b"\0" * file.stat().st_size)
    x = np.ones(SHAPE, np.float32)
    assert CoreMLRuntime(core_ml).load(package, "plain", "CPU_ONLY").predict({"x": x})["y"].any()
    assert core_ml.compiles == 2


def test_many_predictions_with_pauses_do_not_crash(core_ml, package):
    """Core ML releases inputs about a second after a prediction, on its own thread (coremltools#2827)."""
    runtime = CoreMLRuntime(core_ml)
    for _ in range(3):
        function = runtime.load(package, "plain", "CPU_AND_NE")
        for _ in range(200):
            function.predict({"x": np.ones(SHAPE, np.float16)})
        del function
        time.sleep(1.5)


def test_a_first_load_is_tried_in_a_child_process_and_remembered(core_ml, package, notices):
    for _ in range(2):
        runtime = CoreMLRuntime(core_ml, trial=CoreMLTrial())
        assert runtime.load(package, "plain", "CPU_AND_NE").predict({"x": np.ones(SHAPE, np.float32)})["y"].any()
    assert [line.partition(" ")[0] for line in notices] == ["Compiling", "Loading"]


def test_a_function_in_a_package_of_its_own_computes_the_same(core_ml, package, tmp_path):
    extract_function(package, "plain", tmp_path / "alone.mlpackage")
    x = np.ones(SHAPE, np.float32)
    np.testing.assert_allclose(
        CoreMLRuntime(core_ml).load(tmp_path / "alone.mlpackage", "main", "CPU_ONLY").predict({"x": x})["y"],
        CoreMLRuntime(core_ml).load(package, "plain", "CPU_ONLY").predict({"x": x})["y"],
    )


def test_a_state_serves_two_functions_of_a_package(core_ml, package):
    """The decoder fills its state by a function of more columns than that which steps."""
    first, second = (CoreMLRuntime(core_ml).load(package, "summing", "CPU_AND_NE") for _ in range(2))
    state, x = first.make_state(), np.ones(SHAPE, np.float32)
    once = first.predict({"x": x}, state)["y"].copy()
    np.testing.assert_allclose(second.predict({"x": x}, state)["y"], 2 * once, rtol=1e-2)


def test_chip_and_build_of_macos_are_known(core_ml):
    chip, os_build = core_ml.machine()
    assert chip
    assert os_build.isalnum()


def test_a_package_that_core_ml_cannot_compile_is_a_one_line_error(core_ml, package, tmp_path):
    broken = shutil.copytree(package, tmp_path / "broken.mlpackage")
    next(broken.rglob("weight.bin")).write_bytes(b"")
    assert_refused("broken.mlpackage", lambda: CoreMLRuntime(core_ml).load(broken, "plain", "CPU_ONLY"))
