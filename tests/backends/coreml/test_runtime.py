"""``CoreMLRuntime`` on a fake of Core ML, and the calls that ``CoreMLTools`` makes."""

# ruff: noqa: F811  fixtures are imported

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ane.backends.coreml import compiled as compiled_models
from ane.backends.coreml import runtime as coreml
from ane.backends.coreml.runtime import CoreMLRuntime, CoreMLTools
from ane.system.errors import UserError
from tests.backends.coreml.fake_core_ml import M2, X, api, package, packages, run  # noqa: F401

# --- loaded once


def test_one_compiled_package_serves_all_compute_units_and_each_is_loaded_once(api, package):
    runtime = CoreMLRuntime(api)
    first = runtime.load(package, "main", "CPU_ONLY")
    assert runtime.load(package, "main", "CPU_ONLY") is first
    assert runtime.load(package, "main", "CPU_AND_NE") is not first
    assert api.log.read_text().splitlines() == ["compile model.mlpackage", "open model.mlmodelc CPU_ONLY",
                                                    "open model.mlmodelc CPU_AND_NE"]


def test_an_unreferenced_function_is_freed_and_its_buffers_are_kept_while_core_ml_uses_them(api, package, monkeypatch):
    runtime = CoreMLRuntime(api)
    function = runtime.load(package, "main", "ALL")
    buffers = function.buffers
    del function
    assert [kept for _, kept in runtime._released] == [buffers]
    assert runtime._released[0][1] is buffers
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    runtime.load(package, "main", "ALL")
    assert len(runtime._released) == 1
    assert runtime._released[0][1] is not buffers
    assert (api.compiled, len(api.opened)) == (1, 2)


# --- numbers


@pytest.mark.parametrize("name", ["two", "wide"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_core_ml_is_passed_float32_in_the_same_buffers_and_returns_float32(api, packages, package, name, dtype):
    """coremltools' binding has no fp16: it would copy the array, and Core ML would free the copy on its own thread."""
    function = CoreMLRuntime(api).load(packages / f"{name}.mlpackage", "main", "ALL")
    for factor in (1, 2):
        x = np.asfortranarray(np.repeat(factor * X, 2, axis=1).astype(dtype))[:, ::2]
        outputs = function.predict({"x": x}, function.make_state())
        assert {key: (array.dtype, array.shape) for key, array in outputs.items()} == {
            "y": (np.float32, (1, 4)), "sum": (np.float32, (1, 4))}
        np.testing.assert_array_equal(outputs["y"], 2 * factor * X)
    first, second = (given["x"] for given in api.opened[0].given)
    assert first is second is function.buffers["x"]
    assert (first.dtype, first.flags.c_contiguous) == (np.float32, True)


def test_a_buffer_written_in_place_is_not_copied(api, package):
    function = CoreMLRuntime(api).load(package, "main", "ALL")
    function.buffers["x"][:] = 7
    assert (function.predict(function.buffers, function.make_state())["y"] == 14).all()


def test_states_are_independent_of_each_other(api, package):
    function = CoreMLRuntime(api).load(package, "main", "ALL")
    mine, other = function.make_state(), function.make_state()
    function.predict({"x": X}, mine)
    np.testing.assert_array_equal(function.predict({"x": X}, mine)["sum"], 2 * X)
    np.testing.assert_array_equal(function.predict({"x": X}, other)["sum"], X)


@pytest.mark.parametrize("inputs", [{}, {"x": X, "z": X}, {"x": X[:, :3]}, {"x": X[0]}, {"x": X.astype(np.int32)}])
def test_inputs_other_than_declared_are_refused(api, package, inputs):
    function = CoreMLRuntime(api).load(package, "main", "ALL")
    with pytest.raises(TypeError, match="x"):
        function.predict(inputs, function.make_state())


# --- errors


@pytest.mark.parametrize(("compute_units", "text", "meaning", "advice"), [
    ("CPU_AND_NE", "{\n    NSLocalizedDescription = \"Unable to compute the prediction using a neural network model. "
     "It can be an invalid input data or broken/unsupported model (error code: -14).\";\n}", "(error code -14)",
     "try compute_units=CPU_AND_GPU or CPU_ONLY"),
    ("ALL", "std::bad_cast", "std::bad_cast", "try compute_units=CPU_AND_GPU or CPU_ONLY"),
    ("CPU_AND_GPU", "{\n NSUnderlyingError = \"x\";\n NSLocalizedDescription = \"Out of\nspace.\";\n}", "Out of space;",
     "try compute_units=CPU_AND_NE or CPU_ONLY"),
    ("CPU_ONLY", "E5RT: MILCompilerForANE error\nANECCompile() FAILED.", "compiler rejects it", "use backend=torch"),
    ("ALL", "", "RuntimeError;", "or CPU_ONLY"), ("ALL", "long " * 500, "long…;", "or CPU_ONLY")])
def test_a_core_ml_error_is_one_line_with_cause_and_advice(api, package, compute_units, text, meaning, advice):
    function = CoreMLRuntime(api).load(package, "main", compute_units)

    def fail(data, state=None):
        raise RuntimeError(text)

    api.opened[0].predict = fail
    with pytest.raises(UserError) as caught:
        function.predict({"x": X}, function.make_state())
    line = str(caught.value)
    assert line.startswith(f"Core ML cannot run function 'main' of {package} on {compute_units}: ")
    assert meaning in line
    assert line.endswith(advice)
    assert len(line) < 600


def test_missing_functions_packages_and_compute_units_are_named(api, package, tmp_path):
    runtime = CoreMLRuntime(api)
    for arguments, word in (((package, "decode", "ALL"), "it has main"), ((package, "main", "GPU"), "CPU_AND_NE"),
                            ((tmp_path / "none.mlpackage", "main", "ALL"), "no Core ML package")):
        with pytest.raises(UserError, match=word):
            runtime.load(*arguments)
    assert api.compiled == 0


def test_a_file_where_the_cache_should_be_is_refused(api, package, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot write"):
        run(api, package)


# --- CoreMLTools


@pytest.mark.skipif(sys.platform == "darwin", reason="this machine is a Mac")
def test_core_ml_off_macos_is_refused():
    code = ("from ane.backends.coreml.runtime import CoreMLRuntime\nfrom ane.system.errors import UserError\n"
            "try: CoreMLRuntime()\nexcept UserError as error: print(error)")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True,
                            cwd=Path(__file__).parents[3])
    assert result.stdout == ("Core ML runs on macOS only; backend=mil interprets the same packages here, "
                             "backend=torch is faster\n")
    assert result.stderr == ""


@pytest.fixture
def mac(monkeypatch):
    """``mac(version)`` makes this machine look like a Mac with that version of macOS."""

    def pretend(version: str) -> None:
        outputs = {"-productVersion": version, "-buildVersion": "24F74", "machdep.cpu.brand_string": "Apple M2"}
        for module in (coreml, compiled_models):
            monkeypatch.setattr(module, "command_output", lambda *command: outputs[command[-1]])
        monkeypatch.setattr(sys, "platform", "darwin")

    return pretend


def test_a_macos_without_multifunction_packages_is_refused(mac):
    mac("14.7.1")
    with pytest.raises(UserError, match="need macOS 15 or newer: update it"):
        CoreMLTools()


def test_coremltools_passes_the_buffers_on_uncopied(mac, monkeypatch, tmp_path):
    """Runs coremltools' own Python code, its native binding replaced by a fake that records its arguments."""
    from coremltools.models import _compiled_model, utils

    class FakeModelProxy:
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
    monkeypatch.setattr(_compiled_model, "_MLModelProxy", FakeModelProxy)
    monkeypatch.setattr(_compiled_model, "_macos_version", lambda: (15, 5))
    monkeypatch.setattr(utils, "compile_model", lambda *arguments: compiled.append(arguments))
    api = CoreMLTools()
    assert api.machine() == M2
    api.compile(tmp_path / "a.mlpackage", tmp_path / "a.mlmodelc")
    assert compiled == [(str(tmp_path / "a.mlpackage"), str(tmp_path / "a.mlmodelc"))]
    model = api.open(tmp_path / "a.mlmodelc", "decode", "CPU_AND_NE")
    assert model._proxy.opened == (str(tmp_path / "a.mlmodelc"), "CPU_AND_NE", "decode")
    model.predict({"x": X}, model.make_state())
    [(array, state)] = seen
    assert array is X
    assert state == "native state"
