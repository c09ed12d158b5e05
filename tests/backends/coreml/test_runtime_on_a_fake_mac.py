"""Test ``CoreMLRuntime`` on a fake of Core ML, and the calls that ``CoreMLTools`` makes."""

import gc
import re
import sys
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from ane.backends.coreml import tools, trial
from ane.backends.coreml.compiled import CompiledCache, CompiledRecord
from ane.backends.coreml.runtime import CoreMLRuntime
from ane.backends.coreml.tools import CoreMLTools
from ane.backends.packaged.functions import EngineRefusalError
from ane.backends.packaged.golden import FILE, GoldenCase, write_golden_cases
from ane.system import paths
from tests.backends.coreml import native
from tests.backends.coreml.mac_fixtures import M2, run
from tests.backends.coreml.orders import Order
from tests.backends.coreml.packages import X, save_two_functions
from tests.refusals import assert_refused

# A function is loaded once


def test_one_compiled_package_serves_all_compute_units_and_each_is_loaded_once(api, package):
    runtime = CoreMLRuntime(api)
    first = runtime.load(package, "main", "CPU_ONLY")
    assert runtime.load(package, "main", "CPU_ONLY") is first
    assert runtime.load(package, "main", "CPU_AND_NE") is not first
    assert api.stand_in.log == ["compile model.mlpackage", "load main CPU_ONLY", "load main CPU_AND_NE"]


def test_an_unreferenced_function_is_freed_and_its_arrays_are_kept_while_core_ml_reads_them(api, package):
    """The stand-in watches the arrays."""
    runtime = CoreMLRuntime(api)
    function = runtime.load(package, "main", "ALL")
    function.predict({"x": X}, function.make_state())
    freed = weakref.ref(function)
    del function, runtime
    gc.collect()
    assert freed() is None
    assert api.stand_in.count("freed too early") == 0


def test_every_prediction_gets_arrays_of_its_own(api, package, monkeypatch):
    """Core ML drops the last ones without the GIL, while Python would count references to them."""
    function = CoreMLRuntime(api).load(package, "main", "ALL")
    state, given = function.make_state(), []
    monkeypatch.setattr(
        native._MLModelProxy,
        "predict",
        lambda self, features, state, predict=native._MLModelProxy.predict: (
            given.append(features["x"]),
            predict(self, features, state),
        )[1],
    )
    for _ in range(2):
        function.predict({"x": X}, state)
    assert given[0] is not given[1]
    assert given[0].base is given[1].base is not X
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    function.predict({"x": X}, state)
    assert len(function._passed) == 1


def test_arrays_of_a_prediction_are_kept_from_its_end_on(api, package, monkeypatch):
    """A prediction may take longer than they are kept."""
    function = CoreMLRuntime(api).load(package, "main", "ALL")
    state, took, now, predict = function.make_state(), iter((60, 0)), [0.0], native._MLModelProxy.predict

    def slow(self, features, state):
        now[0] += next(took)
        return predict(self, features, state)

    monkeypatch.setattr(native._MLModelProxy, "predict", slow)
    monkeypatch.setattr("ane.backends.coreml.runtime.time", SimpleNamespace(monotonic=lambda: now[0]))
    for _ in range(2):
        function.predict({"x": X}, state)
    assert len(function._passed) == 2


def test_arrays_of_a_long_first_prediction_are_kept_while_core_ml_reads_them(mac, package, monkeypatch):
    """The stand-in watches the arrays."""
    monkeypatch.setattr(tools, "BUFFER_SECONDS", 0.4)
    predict = native._MLModelProxy.predict
    monkeypatch.setattr(native._MLModelProxy, "predict", lambda *arguments: (time.sleep(0.6), predict(*arguments))[1])
    monkeypatch.setattr(native, "READ_SECONDS", 0.2)
    runtime_with_trial().load(package, "main", "ALL")
    time.sleep(0.6)
    assert mac.count("freed too early") == 0


def test_a_first_load_keeps_the_arrays_of_all_its_predictions_with_one_timer(mac, package, monkeypatch):
    kept = []
    monkeypatch.setattr(trial, "keep_arrays", lambda arrays: (kept.append(list(arrays)), tools.keep_arrays(arrays)))
    write_golden_cases(package, {"main": GoldenCase([("main", {"x": X})] * 3, {"y": 2 * X[0]}, 50.0)})
    runtime_with_trial().load(package, "main", "ALL")
    assert [[list(arrays) for arrays in one] for one in kept] == [[["x"]] * 3]


# Numbers


@pytest.mark.parametrize("name", ["two", "wide"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_float_array_is_taken_and_float32_is_returned(api, packages, package, name, dtype):
    """coremltools' binding has no fp16: the stand-in refuses it, and arrays that are not contiguous."""
    function = CoreMLRuntime(api).load(packages / f"{name}.mlpackage", "main", "ALL")
    for factor in (1, 2):
        x = np.asfortranarray(np.repeat(factor * X, 2, axis=1).astype(dtype))[:, ::2]
        outputs = function.predict({"x": x}, function.make_state())
        assert {key: (array.dtype, array.shape) for key, array in outputs.items()} == {
            "y": (np.float32, (1, 4)),
            "sum": (np.float32, (1, 4)),
        }
        np.testing.assert_array_equal(outputs["y"], 2 * factor * X)


def test_a_cache_is_read_where_it_is(api, package, monkeypatch):
    function, x, given = CoreMLRuntime(api).load(package, "main", "ALL"), X.copy(), []
    predict = function._loaded.predict
    monkeypatch.setattr(
        function._loaded, "predict", lambda features, state: (given.append(features["x"]), predict(features, state))[1]
    )
    for factor in (1, 2):
        x[:] = factor * X
        assert (function.predict({}, function.make_state(), {"x": x})["y"] == 2 * factor * X).all()
    assert given[0].base is given[1].base is x


def test_states_are_independent_of_each_other(api, package):
    function = CoreMLRuntime(api).load(package, "main", "ALL")
    mine, other = function.make_state(), function.make_state()
    function.predict({"x": X}, mine)
    np.testing.assert_array_equal(function.predict({"x": X}, mine)["sum"], 2 * X)
    np.testing.assert_array_equal(function.predict({"x": X}, other)["sum"], X)


def test_inputs_other_than_declared_and_caches_that_would_have_to_be_copied_are_refused(api, package):
    function = CoreMLRuntime(api).load(package, "main", "ALL")
    for inputs in {}, {"x": X, "z": X}, {"x": X[:, :3]}, {"x": X[0]}, {"x": X.astype(np.int32)}:
        with pytest.raises(TypeError, match="x"):
            function.predict(inputs, function.make_state())
    for cache in X.astype(np.float16), X[:, :3], np.repeat(X, 2, axis=1)[:, ::2]:
        with pytest.raises(TypeError, match=r"(cache|input) x of"):
            function.predict({}, function.make_state(), {"x": cache})


# Errors


@pytest.mark.parametrize(
    ("compute_units", "text", "meaning", "advice"),
    [
        (
            "CPU_AND_NE",
            '{\n    NSLocalizedDescription = "Unable to compute the prediction using a neural network model. '
            'It can be an invalid input data or broken/unsupported model (error code: -14).";\n}',
            "(error code -14)",
            "try compute_units=CPU_AND_GPU or CPU_ONLY",
        ),
        ("ALL", "std::bad_cast", "std::bad_cast", "try compute_units=CPU_AND_GPU or CPU_ONLY"),
        (
            "CPU_AND_GPU",
            '{\n NSUnderlyingError = "x";\n NSLocalizedDescription = "Out of\nspace.";\n}',
            "Out of space: ",
            "try compute_units=CPU_AND_NE or CPU_ONLY",
        ),
        (
            "CPU_ONLY",
            "E5RT: MILCompilerForANE error\nANECCompile() FAILED.",
            "compiler rejects it",
            "use backend=torch",
        ),
        ("ALL", "", "RuntimeError: ", "or CPU_ONLY"),
        ("ALL", "long " * 500, "long…: ", "or CPU_ONLY"),
    ],
)
def test_a_core_ml_error_is_one_line_with_cause_and_advice(api, package, compute_units, text, meaning, advice):
    function = CoreMLRuntime(api).load(package, "main", compute_units)

    def fail(data, state=None):
        raise RuntimeError(text)

    state = function.make_state()
    api.opened[0].predict = fail
    with pytest.raises(EngineRefusalError) as caught:
        function.predict({"x": X}, state)
    line = str(caught.value)
    assert line.startswith(f"Core ML cannot run function 'main' of {package} on {compute_units}: ")
    assert meaning in line
    assert line.endswith(advice)
    assert len(line) < 600


def test_missing_functions_packages_and_compute_units_are_named(api, package, tmp_path):
    runtime = CoreMLRuntime(api)
    for arguments, word in (
        ((package, "decode", "ALL"), "choose one of main"),
        ((package, "main", "GPU"), "CPU_AND_NE"),
        ((tmp_path / "none.mlpackage", "main", "ALL"), "no Core ML package"),
    ):
        assert_refused(word, runtime.load, *arguments)
    assert api.compiled == 0


def test_a_file_where_the_cache_should_be_is_refused(api, package, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "file"))
    assert_refused("cannot write", run, api, package)


# CoreMLTools


@pytest.mark.skipif(sys.platform == "darwin", reason="this machine is a Mac")
def test_core_ml_off_macos_is_refused():
    assert_refused(
        r"^Core ML runs on macOS only: use backend=mil to interpret the packages, "
        r"or backend=torch$",
        CoreMLRuntime,
    )


def test_a_macos_without_multifunction_packages_is_refused(mac):
    native.write_system(mac.folder, "14.7.1")
    assert_refused("need macOS 15 or newer: update it", CoreMLTools)


@pytest.mark.parametrize(
    ("version", "warns"), [("15.5", False), ("26.3.2", False), ("26.4", True), ("26.5.1", True), ("27.0.1", True)]
)
def test_a_macos_whose_core_ml_is_reported_to_crash_is_named(mac, notices, version, warns):
    native.write_system(mac.folder, version)
    CoreMLTools()
    assert [f"crash programs on macOS {version}" in line for line in notices] == [True] * warns


# First loads


PROBES = {"main": GoldenCase([("main", {"x": X})], {"y": 2 * X[0], "sum": X[0]}, 50.0)}


def runtime_with_trial(limit=60.0) -> CoreMLRuntime:
    return CoreMLRuntime(trial=trial.CoreMLTrial(limit))


def test_a_first_load_is_announced_with_the_chip_and_tried_once(mac, package, notices):
    for _ in range(2):
        function = runtime_with_trial().load(package, "main", "CPU_AND_NE")
        np.testing.assert_array_equal(function.predict({"x": X}, function.make_state())["y"], 2 * X)
    assert notices == [
        "Compiling model for Apple M2, once for each version of macOS",
        "Loading main on the Neural Engine for the first time: this can take minutes, once for each version of macOS",
    ]
    load, predict = "load main CPU_AND_NE", "predict main CPU_AND_NE"
    assert mac.log == ["compile model.mlpackage", load, predict, load, predict, load, predict]
    assert CoreMLTools().machine() == M2


@pytest.mark.parametrize(
    ("call", "how", "limit", "reason"),
    [
        ("load", "hang", 1.8, "it did not finish within 0.03 minutes"),
        ("predict", "kill", 60.0, "it ended the process (signal 9, perhaps for lack of memory)"),
    ],
)
def test_a_load_that_hangs_or_kills_is_refused_and_not_tried_again(
    python, unguarded_mac, request, package, call, how, limit, reason
):
    """The server of ``python`` has to start before this process is a Mac, and ``forked_trials`` is asked for later."""
    if how == "hang":  # only a real child process can get the signal
        request.getfixturevalue("forked_trials")
    unguarded_mac.order(Order(call, how, units="CPU_AND_NE"))
    runtime = runtime_with_trial(limit)
    for expected in (reason, "forgets that"):
        with pytest.raises(EngineRefusalError, match=re.escape(expected)):
            runtime.load(package, "main", "CPU_AND_NE")
    assert unguarded_mac.count("load main CPU_AND_NE") == 1
    assert CoreMLRuntime().load(package, "main", "CPU_ONLY")
    runtime.trial.close()


def test_a_refusal_is_remembered_and_the_model_is_not_compiled_again_at_each_start(mac, package):
    mac.order(Order("load", units="CPU_AND_NE", message="error code: -14"))
    for expected in ("cannot run it (error code -14): try", "(error code -14) (as when it was first loaded", "forgets"):
        with pytest.raises(EngineRefusalError, match=re.escape(expected)):
            runtime_with_trial().load(package, "main", "CPU_AND_NE")
    assert mac.log == ["compile model.mlpackage", "load main CPU_AND_NE"]
    assert runtime_with_trial().load(package, "main", "CPU_AND_GPU")


def test_a_lack_of_memory_is_not_remembered(mac, package):
    mac.order(Order("load", message="Insufficient memory"))
    with pytest.raises(EngineRefusalError, match="not enough memory"):
        runtime_with_trial().load(package, "main", "ALL")
    mac.order()
    assert runtime_with_trial().load(package, "main", "ALL")


def test_a_compilation_that_hangs_is_refused_and_not_tried_again(unguarded_mac, forked_trials, package):
    unguarded_mac.order(Order("compile", "hang"))
    for _ in range(2):
        with pytest.raises(EngineRefusalError, match=r"did not finish within 0\.03 minutes") as caught:
            runtime_with_trial(limit=1.8).load(package, "main", "ALL")
        assert caught.value.on_all_units
    assert unguarded_mac.count("compile") == 1
    [entry] = CompiledCache().entries()
    assert CompiledRecord.read(entry) is not None


def test_a_first_prediction_that_is_not_finite_is_refused_and_not_tried_again(mac, package):
    """Of a package without golden probes."""
    mac.order(Order("predict", "nan"))
    with pytest.raises(EngineRefusalError, match="other values \\(NaN or infinite\\): try"):
        runtime_with_trial().load(package, "main", "ALL")
    mac.order()
    with pytest.raises(EngineRefusalError, match=r"NaN.*forgets that"):
        runtime_with_trial().load(package, "main", "ALL")


@pytest.mark.parametrize(
    ("order", "found"), [((), None), (("predict", "off"), "26.0 dB, and 50"), (("predict", "nan"), "-inf dB, and 50")]
)
def test_a_first_load_repeats_the_probe_of_the_package_once(mac, package, order, found):
    write_golden_cases(package, PROBES)
    mac.order(*([Order(*order)] if order else []))
    for _ in range(2):
        if found is None:
            runtime_with_trial().load(package, "main", "ALL")
        else:
            with pytest.raises(EngineRefusalError, match=re.escape(f"it returns other values ({found}")) as caught:
                runtime_with_trial().load(package, "main", "ALL")
            assert caught.value.function == "main"
    assert mac.count("predict main") == 1


def test_a_function_that_fails_its_probe_can_be_loaded_to_look_into_it_and_is_proved_elsewhere(mac, package):
    write_golden_cases(package, PROBES)
    mac.order(Order("predict", "off"))
    for _ in range(2):
        assert CoreMLRuntime(trial=trial.CoreMLTrial(golden_cases=False)).load(package, "main", "ALL")
        with pytest.raises(EngineRefusalError, match="other values"):
            runtime_with_trial().load(package, "main", "ALL")


def test_a_damaged_file_of_probes_is_named(mac, package):
    (package / FILE).write_bytes(b"no probes")
    assert_refused(r"probes.safetensors is damaged", lambda: runtime_with_trial().load(package, "main", "ALL"))


def test_a_system_that_refuses_several_functions_gets_each_in_a_package_of_its_own(mac, tmp_path):
    """In the first process one function is refused; in the second each is opened at once, and none in a child."""
    both = save_two_functions(tmp_path / "both.mlpackage")
    message = "`.functionName` property must be `nil` unless the model type is ML Program"
    mac.order(Order("load", function="double", message=message), Order("load", function="triple", message=message))
    for refused, loads in ((1, 6), (0, 2)):
        before, runtime = len(mac.log), runtime_with_trial()
        for name, factor in (("double", 2), ("triple", 3)):
            runtime.prepare(both, name, "ALL")
            function = runtime.load(both, name, "ALL")
            np.testing.assert_array_equal(function.predict({"x": X}, function.make_state())["y"], factor * X)
            assert runtime.seconds(both, name, "ALL") > 0
        lines = mac.log[before:]
        assert (
            sum(line.startswith(("load double", "load triple")) for line in lines),
            lines.count("load main ALL"),
        ) == (refused, loads)
    assert len(list((paths.cache_dir() / "functions").iterdir())) == 2


# Limits of the child process

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


def test_a_slow_start_is_reported_with_its_own_limit_and_is_no_answer_of_core_ml(monkeypatch, tmp_path):
    monkeypatch.setattr(trial.CoreMLTrial, "command", SLEEP)
    monkeypatch.setattr(trial, "START_LIMIT", 0.6)
    with pytest.raises(trial.TrialStartError, match=r"did not start within 0\.01 minutes"):
        trial.CoreMLTrial(1800.0).load(tmp_path, "main", "ALL", tmp_path, "main", {})
    # UnansweredError is remembered, and this error must not be
    assert not issubclass(trial.TrialStartError, trial.UnansweredError)


def test_a_slow_answer_is_reported_with_the_limit_of_an_answer(monkeypatch, tmp_path):
    command = (*SLEEP[:2], f"print('{{\"ready\": true}}', flush=True); {SLEEP[2]}")
    monkeypatch.setattr(trial.CoreMLTrial, "command", command)
    with pytest.raises(trial.UnansweredError, match=r"did not finish within 0\.02 minutes"):
        trial.CoreMLTrial(1.2).compile(tmp_path, tmp_path)
