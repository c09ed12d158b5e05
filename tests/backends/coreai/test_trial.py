"""First uses on macOS 27, on Core AI's interpreter in place of the system's framework."""

import json

import numpy as np
import pytest

from ane.backends.coreml.compiled import MacMachine
from ane.backends.coreml.trial import UnansweredError
from ane.backends.packaged.functions import EngineRefusalError
from ane.system import paths
from ane.system.errors import UserError
from tests.backends.coreml.packages import X, save_two_functions

pytest.importorskip("coreai", reason="needs Core AI: pip install 'tortoise-ane[coreai]'")

from ane.backends.coreai import runtime, trial


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(runtime, "uses_framework", lambda: True)
    monkeypatch.setattr(runtime.CoreAIRuntime, "suffix", "aimodelx")        # which the interpreter opens
    monkeypatch.setattr(trial, "this_machine", lambda: MacMachine("Apple M2", "26A100"))
    return save_two_functions(tmp_path / "both.mlpackage")


def load(package, process, function="double", fp16=False):
    """Load a function in a new runtime, as a new process would. Returns it and the notices."""
    notices = []
    loaded = runtime.CoreAIRuntime(fp16, notice=notices.append, trial=process).load(package, function, "ALL")
    return loaded, notices


@pytest.mark.parametrize("fp16", [False, True])
def test_a_function_is_verified_in_a_child_process_before_its_first_use_and_then_used(package, fp16):
    process = trial.CoreAITrial()
    loaded, notices = load(package, process, fp16=fp16)
    np.testing.assert_array_equal(loaded.predict({"x": X}, loaded.make_state())["y"], 2 * X)
    assert [line.partition(" ")[0] for line in notices] == ["Making", "Verifying"]
    process.close()
    process.command = ("false",)            # would fail
    assert load(package, process, fp16=fp16)[1] == []
    assert "Verifying triple" in load(package, trial.CoreAITrial(), "triple", fp16)[1][0]


def test_another_macos_is_verified_again(package, monkeypatch):
    class Counting(trial.CoreAITrial):
        asked = 0

        def _ask(self, request):
            self.asked += 1
            return {"snr": 60.0}

    process = Counting()
    for _ in range(2):
        load(package, process)
    monkeypatch.setattr(trial, "this_machine", lambda: MacMachine("Apple M2", "26A200"))
    load(package, process)
    assert process.asked == 2


@pytest.mark.parametrize(("outcome", "message"), [
    ({"snr": 3.0}, "its outputs have 3 dB against the interpreter's, and 30 are needed"),
    ({"snr": -np.inf}, "its outputs have -inf dB"),
    (UnansweredError("it ended the process (signal 6, perhaps for lack of memory)"), "signal 6"),
    (RuntimeError("Core AI cannot open x"), "cannot open x")])
def test_wrong_numbers_or_a_crash_refuse_the_function_from_then_on(package, monkeypatch, outcome, message):
    def ask(self, request):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(trial.CoreAITrial, "_ask", ask)
    with pytest.raises(EngineRefusalError) as first:
        load(package, trial.CoreAITrial())
    assert message in str(first.value)
    assert "\n" not in str(first.value)
    monkeypatch.setattr(trial.CoreAITrial, "_ask", lambda self, request: {"snr": 60.0})
    with pytest.raises(EngineRefusalError, match="forgets that"):
        load(package, trial.CoreAITrial())


def test_lack_of_memory_is_tried_again(package, monkeypatch):
    def ask(self, request):
        raise RuntimeError("MemoryError")

    monkeypatch.setattr(trial.CoreAITrial, "_ask", ask)
    with pytest.raises(EngineRefusalError, match="there is not enough memory"):
        load(package, trial.CoreAITrial())
    assert not list((paths.cache_dir() / "verified").glob("coreai-*"))


def test_a_child_that_does_not_start_is_no_verdict(package, monkeypatch):
    process = trial.CoreAITrial()
    process.command = ("/does/not/exist",)
    with pytest.raises(UserError, match="cannot run /does/not/exist"):
        load(package, process)
    assert not list((paths.cache_dir() / "verified").glob("coreai-*"))


def test_the_answer_compares_outputs_and_states_with_the_interpreter(package, monkeypatch, tmp_path):
    made = tmp_path / "both.aimodelx"
    from ane.backends.mil.package import Package

    runtime.write_model(Package(package), ["double", "triple"], made, fp16=True)
    request = {"asset": str(made), "package": str(package), "function": "triple", "compute_units": "ALL", "fp16": True}
    right = trial.answer(json.loads(json.dumps(request)))["snr"]
    assert right > trial.THRESHOLD + 20
    monkeypatch.setattr(runtime.CoreAIFunction, "predict", lambda self, inputs, state: {"y": 2 * inputs["x"],
                                                                                       "sum": inputs["x"]})
    assert trial.answer(request)["snr"] < trial.THRESHOLD
