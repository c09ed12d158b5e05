"""Test Core AI's own runtime, on packages with one function and one state."""

import sys

import numpy as np
import pytest

from ane.backends.coreai import runtime
from ane.backends.coreai.runtime import CoreAIRuntime
from tests.backends.coreml.packages import X, save_scale_package
from tests.backends.packaged.packages import NEEDS_CORE_AI
from tests.refusals import assert_refused


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    return save_scale_package(tmp_path / "scale.mlpackage")


def test_without_core_ai_or_in_another_version_the_command_to_install_it_is_named(monkeypatch):
    monkeypatch.setattr(runtime, "coreai_version", lambda: "")
    assert_refused(r"Core AI is not installed: .*\.\[coreai\]", CoreAIRuntime)
    monkeypatch.setattr(runtime, "coreai_version", lambda: "2.0")
    assert_refused(r"Core AI 2.0 is installed, .* needs coreai-core==1.0.0b3", CoreAIRuntime)
    monkeypatch.setattr(runtime, "coreai_version", lambda: "1.0.0b3")
    monkeypatch.setitem(sys.modules, "coreai.runtime", None)
    assert_refused("Core AI cannot be imported", CoreAIRuntime)


@NEEDS_CORE_AI
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_outputs_are_float32_and_a_state_is_kept_between_calls(package, dtype):
    function = CoreAIRuntime().load(package, "main", "CPU_AND_NE")
    state, other = function.make_state(), function.make_state()
    for total in (1, 2):
        outputs = function.predict({"x": X.astype(dtype)}, state)
        np.testing.assert_array_equal(outputs["y"], 2 * X)
        np.testing.assert_array_equal(outputs["sum"], total * X)
        np.testing.assert_array_equal(state.copied()["total"], total * X)
        assert {array.dtype for array in outputs.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(function.predict({"x": X}, other)["sum"], X)


@NEEDS_CORE_AI
def test_float32_is_not_rounded(package):
    x, function = np.full((1, 4), 1 + 2**-12, np.float32), CoreAIRuntime().load(package, "main", "ALL")
    np.testing.assert_array_equal(function.predict({"x": x}, function.make_state())["y"], 2 * x)


@NEEDS_CORE_AI
def test_wrong_inputs_a_missing_state_and_an_unknown_function_are_refused(package):
    runtime = CoreAIRuntime()
    function = runtime.load(package, "main", "ALL")
    for inputs in {}, {"x": X, "z": X}, {"x": X[:, :3]}, {"x": X.astype(np.int32)}, {"x": X[0]}:
        with pytest.raises(TypeError, match=r"function 'main' of .*scale.mlpackage"):
            function.predict(inputs, function.make_state())
    with pytest.raises(TypeError, match=r"has the states \['total'\], got \[\]"):
        function.predict({"x": X})
    assert_refused("has no function 'other'", runtime.load, package, "other", "ALL")


@NEEDS_CORE_AI
def test_assets_are_deleted_with_their_package(package, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    runtime = CoreAIRuntime()
    runtime.load(package, "main", "ALL")
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    runtime.unload(package)
    assert list((tmp_path / "temporary").iterdir()) == []
