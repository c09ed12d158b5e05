"""The Core ML engine on a stand-in for what only macOS does, and the calls of the real one."""

# ruff: noqa: F811  fixtures are imported

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ane.backends.coreml import compiled as compiled_models
from ane.backends.coreml import engine as coreml
from ane.backends.coreml.engine import CoreMLEngine, CoreMLTools
from ane.backends.packaged.functions import Function
from ane.system.errors import UserError
from tests.backends.coreml.stand_in import M2, X, package, packages, run, toolkit  # noqa: F401

# --- loaded once


def test_one_compiled_package_serves_all_units_and_each_is_loaded_once(toolkit, package):
    engine = CoreMLEngine(toolkit)
    first = engine.load(package, "main", "CPU_ONLY")
    assert engine.load(package, "main", "CPU_ONLY") is first
    assert engine.load(package, "main", "CPU_AND_NE") is not first
    assert toolkit.log.read_text().splitlines() == ["compile model.mlpackage", "open model.mlmodelc CPU_ONLY",
                                                    "open model.mlmodelc CPU_AND_NE"]


def test_a_function_that_nobody_holds_is_freed_but_its_buffers_outlive_core_mls_hold(toolkit, package, monkeypatch):
    engine = CoreMLEngine(toolkit)
    function = engine.load(package, "main", "ALL")
    buffers = function.buffers
    del function
    assert [kept for _, kept in engine._released] == [buffers]
    assert engine._released[0][1] is buffers
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    engine.load(package, "main", "ALL")
    assert len(engine._released) == 1
    assert engine._released[0][1] is not buffers
    assert (toolkit.compiled, len(toolkit.opened)) == (1, 2)


# --- numbers


@pytest.mark.parametrize("name", ["two", "wide"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_core_ml_gets_float32_in_the_same_buffers_and_gives_float32(toolkit, packages, package, name, dtype):
    """coremltools' binding has no fp16: it would copy such arrays, and let Core ML free the copy on its own thread."""
    function = CoreMLEngine(toolkit).load(packages / f"{name}.mlpackage", "main", "ALL")
    for factor in (1, 2):
        x = np.asfortranarray(np.repeat(factor * X, 2, axis=1).astype(dtype))[:, ::2]
        outputs = function.predict({"x": x}, function.make_state())
        assert {key: (array.dtype, array.shape) for key, array in outputs.items()} == {
            "y": (np.float32, (1, 4)), "sum": (np.float32, (1, 4))}
        np.testing.assert_array_equal(outputs["y"], 2 * factor * X)
    first, second = (given["x"] for given in toolkit.opened[0].given)
    assert first is second is function.buffers["x"]
    assert (first.dtype, first.flags.c_contiguous) == (np.float32, True)


def test_a_buffer_written_in_place_is_not_copied(toolkit, package):
    function = CoreMLEngine(toolkit).load(package, "main", "ALL")
    function.buffers["x"][:] = 7
    assert (function.predict(function.buffers, function.make_state())["y"] == 14).all()


def test_a_state_goes_through_and_is_its_owners(toolkit, package):
    function = CoreMLEngine(toolkit).load(package, "main", "ALL")
    mine, other = function.make_state(), function.make_state()
    function.predict({"x": X}, mine)
    np.testing.assert_array_equal(function.predict({"x": X}, mine)["sum"], 2 * X)
    np.testing.assert_array_equal(function.predict({"x": X}, other)["sum"], X)


def test_warming_runs_once_on_zeros_and_a_state_of_its_own(toolkit, package):
    engine = CoreMLEngine(toolkit)
    function = Function(engine, package, "main", {"length": 4}, "ALL")
    engine.warm(function)
    [given] = toolkit.opened[0].given
    assert not given["x"].any()
    assert engine.load(package, "main", "ALL") is function.loaded


@pytest.mark.parametrize("inputs", [{}, {"x": X, "z": X}, {"x": X[:, :3]}, {"x": X[0]}, {"x": X.astype(np.int32)}])
def test_other_inputs_than_declared_are_refused(toolkit, package, inputs):
    function = CoreMLEngine(toolkit).load(package, "main", "ALL")
    with pytest.raises(TypeError, match="x"):
        function.predict(inputs, function.make_state())


# --- errors


@pytest.mark.parametrize(("units", "text", "meaning", "advice"), [
    ("CPU_AND_NE", "{\n    NSLocalizedDescription = \"Unable to compute the prediction using a neural network model. "
     "It can be an invalid input data or broken/unsupported model (error code: -14).\";\n}", "(error code -14)",
     "try --compute-units CPU_AND_GPU or CPU_ONLY"),
    ("ALL", "std::bad_cast", "std::bad_cast", "try --compute-units CPU_AND_GPU or CPU_ONLY"),
    ("CPU_AND_GPU", "{\n NSUnderlyingError = \"x\";\n NSLocalizedDescription = \"Out of\nspace.\";\n}", "Out of space;",
     "try --compute-units CPU_AND_NE or CPU_ONLY"),
    ("CPU_ONLY", "E5RT: MILCompilerForANE error\nANECCompile() FAILED.", "compiler refuses it", "use --backend torch"),
    ("ALL", "", "RuntimeError;", "or CPU_ONLY"), ("ALL", "long " * 500, "long…;", "or CPU_ONLY")])
def test_an_error_of_core_ml_is_one_line_that_names_all(toolkit, package, units, text, meaning, advice):
    function = CoreMLEngine(toolkit).load(package, "main", units)

    def fail(data, state=None):
        raise RuntimeError(text)

    toolkit.opened[0].predict = fail
    with pytest.raises(UserError) as caught:
        function.predict({"x": X}, function.make_state())
    line = str(caught.value)
    assert line.startswith(f"Core ML cannot run function 'main' of {package} on {units}: ")
    assert meaning in line
    assert line.endswith(advice)
    assert len(line) < 600


def test_what_is_not_there_is_told(toolkit, package, tmp_path):
    engine = CoreMLEngine(toolkit)
    for arguments, word in (((package, "decode", "ALL"), "it has main"), ((package, "main", "GPU"), "CPU_AND_NE"),
                            ((tmp_path / "none.mlpackage", "main", "ALL"), "no Core ML package")):
        with pytest.raises(UserError, match=word):
            engine.load(*arguments)
    assert toolkit.compiled == 0


def test_a_file_in_the_caches_place_is_told(toolkit, package, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot write"):
        run(toolkit, package)


# --- the toolkit of a Mac


@pytest.mark.skipif(sys.platform == "darwin", reason="this machine is a Mac")
def test_off_macos_the_real_toolkit_refuses():
    code = ("from ane.backends.coreml.engine import CoreMLEngine\nfrom ane.system.errors import UserError\n"
            "try: CoreMLEngine()\nexcept UserError as error: print(error)")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True,
                            cwd=Path(__file__).parents[3])
    assert result.stdout == ("Core ML runs on macOS only; --backend mil interprets the same packages here, "
                             "--backend torch is faster\n")
    assert result.stderr == ""


@pytest.fixture
def mac(monkeypatch):
    """``mac(version)``: as if on a Mac of that version of macOS."""

    def pretend(version: str) -> None:
        said = {"-productVersion": version, "-buildVersion": "24F74", "machdep.cpu.brand_string": "Apple M2"}
        for module in (coreml, compiled_models):
            monkeypatch.setattr(module, "said_by", lambda *command: said[command[-1]])
        monkeypatch.setattr(sys, "platform", "darwin")

    return pretend


def test_a_macos_without_functions_and_states_is_told(mac):
    mac("14.7.1")
    with pytest.raises(UserError, match="need macOS 15 or newer: update it"):
        CoreMLTools()


def test_coremltools_is_called_as_it_wants_and_hands_the_buffers_on_uncopied(mac, monkeypatch, tmp_path):
    """Through coremltools' own Python, its native binding replaced: what arrives there is what Core ML would get."""
    from coremltools.models import _compiled_model, utils

    class Proxy:
        def __init__(self, path, units, function, hints, asset):
            self.opened = path, units, function

        def predict(self, data, state):
            seen.append((data["x"], state))
            return {"y": data["x"]}

        def newState(self):     # noqa: N802  coremltools' name
            return "native state"

    seen: list = []
    compiled: list = []
    mac("15.5")
    monkeypatch.setattr(_compiled_model, "_MLModelProxy", Proxy)
    monkeypatch.setattr(_compiled_model, "_macos_version", lambda: (15, 5))
    monkeypatch.setattr(utils, "compile_model", lambda *arguments: compiled.append(arguments))
    toolkit = CoreMLTools()
    assert toolkit.machine() == M2
    toolkit.compile(tmp_path / "a.mlpackage", tmp_path / "a.mlmodelc")
    assert compiled == [(str(tmp_path / "a.mlpackage"), str(tmp_path / "a.mlmodelc"))]
    model = toolkit.open(tmp_path / "a.mlmodelc", "decode", "CPU_AND_NE")
    assert model._proxy.opened == (str(tmp_path / "a.mlmodelc"), "CPU_AND_NE", "decode")
    model.predict({"x": X}, model.make_state())
    [(array, state)] = seen
    assert array is X
    assert state == "native state"
