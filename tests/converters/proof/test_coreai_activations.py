"""Test that Core AI's own values inside a function can be read."""

import numpy as np
import pytest

from ane.backends.mil import Interpreter, MilRuntime, Package
from converters.proof.activations import CallRecorder, FunctionCall, interpreted
from tests.backends.coreml.packages import X, save_scale_package

pytest.importorskip("coreai", reason="needs Core AI: pip install '.[coreai]'")

from ane.backends.coreai.runtime import CoreAIRuntime


def test_core_ai_yields_the_interpreters_values_and_the_state_that_is_written(tmp_path):
    path = save_scale_package(tmp_path / "scale.mlpackage")
    state = Interpreter(Package(path)).make_state()
    state["total"][:] = 5
    call = FunctionCall({"x": X}, state, "ALL")
    runtime = CoreAIRuntime(values=True)
    source = interpreted(runtime)
    for _ in range(2):  # reading values must not change the call's state
        expected = list(interpreted(MilRuntime())(path, "main", call))
        actual = list(source(path, "main", call))
        assert [part[:2] for part in actual] == [part[:2] for part in expected]
        assert ("total", "write_state") in [part[:2] for part in actual]
        for (*_, one), (*_, other) in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    runtime.unload(path)


def test_the_state_before_a_call_is_recorded(tmp_path):
    path = save_scale_package(tmp_path / "scale.mlpackage")
    engine = CallRecorder(CoreAIRuntime())
    function = engine.load(path, "main", "ALL")
    state = function.make_state()
    for total in range(3):
        function.predict({"x": X}, state)
        np.testing.assert_array_equal(engine.calls["main"].state["total"], total * X)
