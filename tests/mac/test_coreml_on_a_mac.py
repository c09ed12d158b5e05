"""What only a Mac can show: Core ML itself, against the interpreter and the cache of compiled models.

Run on Apple Silicon with macOS 15 or newer, in a checkout with the package's test extra installed::

    pytest tests/mac -rA
"""

import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ane.backends.coreml.engine import CoreMLEngine, CoreMLTools
from ane.backends.mil import Arithmetic, Interpreter, Package
from ane.system.errors import UserError

pytestmark = pytest.mark.skipif(sys.platform != "darwin",
                                reason="Core ML runs on macOS only; on a Mac (macOS 15 or newer): pytest tests/mac -rA")

SHAPE = (1, 64, 1, 64)          # as the Neural Engine likes it: channels second, the last axis a multiple of 32


class Counting(CoreMLTools):
    """coremltools, with a count of compiles."""

    def __init__(self):
        super().__init__()
        self.compiles = 0

    def compile(self, package: Path, destination: Path) -> None:
        self.compiles += 1
        super().compile(package, destination)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """Two functions over shared weights: three 1×1 convolutions, alone and with a state that sums their results."""
    from coremltools.converters.mil import Builder as mb  # noqa: N813
    from coremltools.models.utils import MultiFunctionDescriptor, save_multifunction

    from converters.coreml.graph import CoreMLGraph, Style

    weights = np.random.default_rng(0).standard_normal((3, 64, 64, 1, 1)) / 8

    def plain(style, x):
        for weight in weights:
            x = mb.gelu(x=mb.conv(x=x, weight=style.const(weight)), mode="TANH_APPROXIMATION")
        return {"y": mb.mul(x=x, y=style.dtype(1))}

    def summing(style, x, total):
        y = plain(style, x)["y"]
        return {"y": mb.coreml_update_state(state=total, value=mb.add(x=mb.read_state(input=total), y=y))}

    folder = tmp_path_factory.mktemp("package")
    descriptor = MultiFunctionDescriptor()
    for name, body, states in (("plain", plain, {}), ("summing", summing, {"total": SHAPE})):
        CoreMLGraph(name, {}, {"x": SHAPE}, body, states).build(Style()).save(str(folder / f"{name}.mlpackage"))
        descriptor.add_function(str(folder / f"{name}.mlpackage"), "main", name)
    descriptor.default_function_name = "plain"
    save_multifunction(descriptor, str(folder / "both.mlpackage"))
    return folder / "both.mlpackage"


@pytest.fixture
def toolkit(tmp_path, monkeypatch) -> Counting:
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    return Counting()


def decibels(wanted: np.ndarray, got: np.ndarray) -> float:
    """Signal-to-noise ratio."""
    return 10 * np.log10(np.square(wanted).sum() / max(np.square(wanted - got).sum(), 1e-30))


@pytest.mark.parametrize("units", ["CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL"])
@pytest.mark.parametrize("function", ["plain", "summing"])
def test_core_ml_computes_what_the_interpreter_does(toolkit, package, function, units):
    """Three calls, so that a state is read and written between them; fp16 is held to 40 dB."""
    loaded = CoreMLEngine(toolkit).load(package, function, units)
    interpreter = Interpreter(Package(package), function, Arithmetic(fp16=True))
    states = [runner.make_state() if function == "summing" else None for runner in (loaded, interpreter)]
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
        got, wanted = (runner.predict({"x": x}, state)["y"]
                       for runner, state in zip((loaded, interpreter), states, strict=True))
        assert (got.dtype, got.shape) == (np.float32, SHAPE)
        assert decibels(wanted, got) > 40


def test_a_package_of_one_function_runs_too(toolkit, package):
    single = package.with_name("plain.mlpackage")
    x = np.ones(SHAPE, np.float32)
    np.testing.assert_allclose(CoreMLEngine(toolkit).load(single, "main", "CPU_ONLY").predict({"x": x})["y"],
                               CoreMLEngine(toolkit).load(package, "plain", "CPU_ONLY").predict({"x": x})["y"])


def test_a_second_start_compiles_nothing_and_all_functions_share_one_model(toolkit, package):
    for _ in range(2):
        engine = CoreMLEngine(toolkit)
        for function in ("plain", "summing"):
            engine.load(package, function, "CPU_AND_NE")
    assert toolkit.compiles == 1


def test_a_damaged_compiled_model_is_compiled_again(toolkit, package):
    """Overwritten without a change of length: only Core ML can notice."""
    engine = CoreMLEngine(toolkit)
    engine.load(package, "plain", "CPU_ONLY")
    entry = engine.cache.entries()[0].path
    for file in (*entry.rglob("model.mil"), *entry.rglob("coremldata.bin")):
        file.write_bytes(b"\0" * file.stat().st_size)
    x = np.ones(SHAPE, np.float32)
    assert CoreMLEngine(toolkit).load(package, "plain", "CPU_ONLY").predict({"x": x})["y"].any()
    assert toolkit.compiles == 2


def test_many_predictions_with_pauses_do_not_crash(toolkit, package):
    """Core ML gives inputs back about a second after a prediction, on a thread of its own (coremltools#2827)."""
    engine = CoreMLEngine(toolkit)
    for _ in range(3):
        function = engine.load(package, "plain", "CPU_AND_NE")
        for _ in range(200):
            function.predict({"x": np.ones(SHAPE, np.float16)})
        del function
        time.sleep(1.5)


def test_the_machine_is_known(toolkit):
    chip, os_build = toolkit.machine()
    assert chip
    assert os_build.isalnum()


def test_a_package_that_core_ml_cannot_compile_is_told_in_one_line(toolkit, package, tmp_path):
    broken = shutil.copytree(package, tmp_path / "broken.mlpackage")
    next(broken.rglob("weight.bin")).write_bytes(b"")
    with pytest.raises(UserError) as caught:
        CoreMLEngine(toolkit).load(broken, "plain", "CPU_ONLY")
    assert "broken.mlpackage" in str(caught.value)
