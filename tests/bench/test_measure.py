"""Test the measurements of `ane bench`, and the fastest engines that it records and `auto` then uses."""

import json
import re
import shutil
from dataclasses import asdict, replace
from typing import ClassVar

import numpy as np
import pytest

from ane.backends import load_backend, measured
from ane.backends.measured import EngineChoice, measured_engines, measured_file, remember
from ane.bench import sessions
from ane.bench.measure import (
    MAX_SECONDS,
    MIN_CALLS,
    MeasuredFunction,
    RepeatedCall,
    measure_function,
    measure_in_rounds,
    repeated,
)
from ane.bench.records import BenchRow, Spread, compare, noise_note
from ane.bench.sessions import function_rows, read_row, spoken_sentence
from ane.bench.worker import BenchWorker, FunctionRequest, TimedRequest, Tuning, WorkerModel
from ane.bundles.opening import open_model
from ane.cli import main
from ane.commands.bench import fastest_engines
from ane.system.errors import UserError
from ane.system.json_process import ProcessEndedError
from tests.bench.in_process import InProcessWorker, shorten_speech
from tests.edits import edit_json
from tests.refusals import assert_refused

ROW = BenchRow("torch:cpu", "clvp_text")


class FakeClock:
    """A clock that stands still unless a call lets time pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def passing(self, seconds):
        """Each call takes the next of ``seconds``."""
        seconds = iter(seconds)

        def call():
            self.now += next(seconds)

        return call


def test_a_spread_has_the_median_the_limits_and_an_interpolated_percentile():
    assert Spread.of([4, 1, 3, 2]) == Spread(2.5, 1, 4, pytest.approx(3.85), 4)
    assert Spread.of(range(101)).p95 == 95
    assert (Spread.of([7.0]), str(Spread.of([8, 10, 11]))) == (Spread(7.0, 7.0, 7.0, 7.0, 1), "10 ±20%")


def test_loads_the_first_call_and_the_median_come_from_the_right_calls():
    clock = FakeClock()
    load = clock.passing([5, 1])
    # seconds of the first call, of a warm-up call, and of 21 runs
    calls = clock.passing([0.5, 9, *(hundredth / 100 for hundredth in range(1, 22))])
    row = measure_function(MeasuredFunction(ROW, load, lambda loaded: calls), 21, clock)
    assert row.figures == pytest.approx({"cold_load_s": 5, "first_ms": 500, "warm_load_s": 1})
    assert (row.value.median, row.value.p95, row.value.readings) == (pytest.approx(110), pytest.approx(200), 21)


def test_slow_calls_are_repeated_a_few_times_only():
    clock = FakeClock()
    assert len(repeated(clock.passing([MAX_SECONDS] * 100), 100, clock)) == MIN_CALLS
    assert len(repeated(clock.passing([0.001] * 100), 100, clock)) == 100
    assert len(repeated(clock.passing([MAX_SECONDS] * 100), 2, clock)) == 2


def test_competitors_take_turns_and_the_warm_up_is_not_counted():
    order = []
    turns = [
        RepeatedCall(
            BenchRow(name, "step"), lambda name=name: order.append(name) or {"value": len(order), "extra": 2.0}
        )
        for name in "ab"
    ]
    a, b = measure_in_rounds(turns, 2)
    assert "".join(order) == "ababab"
    assert (a.value, b.value, a.figures) == (Spread.of([3, 5]), Spread.of([4, 6]), {"extra": 2.0})


def test_what_fails_leaves_its_error_in_the_row():
    def fail():
        raise UserError("no memory")

    assert measure_function(MeasuredFunction(ROW, fail, lambda loaded: fail), 3) == replace(ROW, error="no memory")
    good = RepeatedCall(BenchRow("a", "step"), lambda: {"value": 1.0, "peak_bytes": 7})
    first, second = measure_in_rounds([good, RepeatedCall(BenchRow("b", "step"), fail)], 3, warm_up=False)
    assert (first.value.readings, first.peak_bytes, first.figures) == (3, 7, {})
    assert (second.value, second.error) == (None, "no memory")


def test_a_ratio_is_of_two_rows_with_equal_settings():
    rows = [
        BenchRow(competitor, "step", "ms", {"lanes": lanes}, Spread.of([value]))
        for competitor, value, lanes in (
            ("upstream", 8.0, 1),
            ("upstream", 9.0, 4),
            ("torch", 2.0, 1),
            ("torch", 1.0, 8),
        )
    ]
    rows = compare(rows, lambda row: row.competitor == "upstream", "times_upstream")
    assert [row.figures.get("times_upstream") for row in rows] == [1.0, 1.0, 4.0, None]


def test_a_row_is_read_as_it_was_written():
    for one in (replace(ROW, value=Spread.of([1.0, 2.0]), settings={"lanes": 2}, peak_bytes=5), ROW):
        assert read_row(json.loads(json.dumps(asdict(one)))) == one


def test_times_that_spread_by_more_than_a_fifth_are_named():
    steady, noisy = (replace(ROW, value=Spread.of(times)) for times in ([1.0, 1.1, 1.2], [1.0, 1.0, 1.3]))
    assert noise_note([steady, ROW]) is None
    assert "1 of 2 times spread by more than 20%, up to 30%" in noise_note([steady, noisy])


ROWS = [BenchRow("coreml", name) for name in "abc"]
REQUEST = FunctionRequest(Tuning("coreml", compute_units="ALL"))
READING = {
    "elapsed": 1.0,
    "seconds": 2.0,
    "codes": 3,
    "chunks": 1,
    "first_audio": 0.25,
    "stages": {"decode": 0.5},
    "peak_bytes": 10,
}


class ScriptedProcess:
    """A worker process whose answers are stated: an exception is raised."""

    answers: ClassVar[dict] = {}
    started = 0
    cold_start = 0.5

    def __init__(self, threads=None):
        type(self).started += 1
        self.asked = []

    def ask(self, request):
        ((kind, stated),) = json.loads(json.dumps(request)).items()
        answer = self.answers[kind]
        answer = answer(stated) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def answers(monkeypatch):
    monkeypatch.setattr(ScriptedProcess, "answers", {})
    monkeypatch.setattr(ScriptedProcess, "started", 0)
    monkeypatch.setattr(sessions, "WorkerProcess", ScriptedProcess)
    return ScriptedProcess.answers


def test_a_function_that_ends_its_process_gets_the_error_and_the_rest_is_measured(answers):
    answers["list"] = {"rows": [asdict(row) for row in ROWS]}
    answers["measure"] = lambda index: (
        ProcessEndedError("the process was ended by SIGKILL")
        if index == 1
        else {"row": asdict(replace(ROWS[index], value=Spread.of([index + 1.0])))}
    )
    rows = list(function_rows(WorkerModel(), REQUEST))
    assert [(row.what, row.value and row.value.median, row.error) for row in rows] == [
        ("a", 1.0, None),
        ("b", None, "the process was ended by SIGKILL"),
        ("c", 3.0, None),
    ]
    assert ScriptedProcess.started == 2


def test_a_process_that_fails_at_once_ends_the_measurement(answers):
    answers["list"] = ProcessEndedError("Segmentation fault")
    assert_refused("cannot measure coreml: Segmentation fault", lambda: list(function_rows(WorkerModel(), REQUEST)))
    answers["list"] = UserError("no such bundle")
    assert_refused("no such bundle", lambda: list(function_rows(WorkerModel(), REQUEST)))


def test_the_sentence_is_spoken_by_two_processes_and_the_second_counts(answers):
    answers["open"] = {}
    answers["speak"] = lambda stated: {**READING, "elapsed": 9.0} if ScriptedProcess.started == 1 else READING
    row = spoken_sentence(WorkerModel(tuning=Tuning("coreml")), TimedRequest("hello"))
    assert (row.value.median, row.peak_bytes, row.error) == (0.5, 10, None)
    assert (row.figures["first_audio_s"], row.figures["decode_s"]) == (0.25, 0.5)
    answers["speak"] = ProcessEndedError("the process was ended by SIGSEGV")
    failed = spoken_sentence(WorkerModel(tuning=Tuning("coreml")), TimedRequest("hello"))
    assert (failed.value, failed.error) == (None, "the process was ended by SIGSEGV")


def test_a_worker_speaks_with_the_settings_of_the_request(random_bundle):
    worker = BenchWorker()
    opened = WorkerModel(str(random_bundle), tuning=Tuning("torch:cpu", threads=1), keep=True)
    assert worker.answer({"open": asdict(opened)})["backend"].startswith("torch:cpu")
    request = TimedRequest("Hi.", "fastest", candidates=2, lanes=2, max_codes=6)
    assert worker.answer({"prepare": asdict(request)}) == {}
    spoken = worker.answer({"speak": asdict(request)})
    streamed = worker.answer({"speak": asdict(replace(request, stream=True, candidates=1))})
    assert 0 < spoken["codes"] <= 12
    assert spoken["stages"].keys() >= {"decode", "vocode"}
    assert (spoken["chunks"], streamed["chunks"]) == (1, 1)
    assert 0 < streamed["first_audio"] <= streamed["elapsed"]
    assert TimedRequest(preset="ultra_fast", steps=3).settings(worker.model).diffusion.steps == 3


TORCH, MLX, GPU = (Tuning(name) for name in ("torch:cpu", "mlx", "torch:mps"))
ONE, TWO = (Tuning("torch:cpu", threads=threads) for threads in (1, 2))
INT8, HALF = (Tuning("torch:cpu", precision) for precision in ("int8", "fp16"))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # (seconds of decoding, seconds of all phases) for one second of speech
        ({TORCH: (2, 5), MLX: (1, 2)}, (MLX, MLX)),
        ({TORCH: (2, 3), MLX: (1, 4), GPU: (3, 5)}, (MLX, TORCH)),
        ({TORCH: (1.1, 3), MLX: (1, 4)}, (TORCH, TORCH)),  # two engines would save 3 %
        ({TORCH: (2, 3), INT8: (1, 2), MLX: (3, 4)}, (TORCH, TORCH)),
        ({TORCH: (2, 3), HALF: (1, 2), MLX: (3, 4)}, (HALF, HALF)),
        # torch has one number of threads for all networks in a process
        ({ONE: (1, 4), TWO: (3, 4.5), MLX: (9, 12)}, (ONE, ONE)),
        ({ONE: (1, 4), TWO: (3, 3.5), GPU: (9, 12)}, (TWO, TWO)),
        ({ONE: (1, 4), TWO: (3, 3.5), GPU: (9, 9.1)}, (ONE, GPU)),
        ({TORCH: (2, 3), MLX: None}, None),
        ({TORCH: (2, 3), INT8: (1, 2)}, None),
    ],
)
def test_two_engines_are_chosen_only_where_they_save_much(seconds, expected):
    rows = {
        tuning: BenchRow(str(tuning), "sentence", error="it crashed")
        if times is None
        else BenchRow(
            str(tuning),
            "sentence",
            value=Spread.of([float(times[1])]),
            figures={"audio_s": 2.0, "decode_s": 2.0 * times[0]},
        )
        for tuning, times in seconds.items()
    }
    assert fastest_engines(rows) == expected


@pytest.fixture
def bundle(random_bundle, tmp_path, monkeypatch):
    """A bundle that is not embedded, and an empty cache."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    return open_model(shutil.copytree(random_bundle, tmp_path / "bundle"))


def test_bench_measures_mlx_and_torch_and_auto_follows(bundle, monkeypatch, capsys):
    monkeypatch.setattr(sessions, "WorkerProcess", InProcessWorker)
    monkeypatch.setattr(sessions, "READINGS", 1)
    shorten_speech(monkeypatch)
    flags = ["--backend=mlx,torch:cpu", "--threads=1", "--precision=fp32", "--preset=fastest", "--text=Hi."]
    assert main(["bench", f"--bundle={bundle.path}", *flags]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for phase in ("Decoding", "Vocoding"):
        assert re.search(rf"{phase}: (mlx|torch:cpu.*?) is fastest, [\d.]+ s per second of speech", printed)
    assert f"for this bundle on this machine ({measured_file(bundle)})" in printed
    found = measured_engines(bundle)
    assert {found.decoder.backend, found.others.backend} <= {"mlx", "torch:cpu"}
    name = load_backend("auto", bundle).name
    assert name.startswith("mlx:cpu" if found.decoder.backend == "mlx" else "torch:cpu")
    assert main(["cache", "clear"]) == 0
    assert measured_engines(bundle) is None


def test_the_decoder_and_the_other_networks_run_where_each_was_fastest(bundle, tmp_path, caplog, capsys):
    remember(
        bundle, "2026-11-28T10:00:00", EngineChoice("torch:cpu"), EngineChoice("torch:cpu")
    )  # replaced by the next
    remember(bundle, "2026-11-29T10:00:00", EngineChoice("mlx"), EngineChoice("torch:cpu"))
    with caplog.at_level("INFO"):
        backend = load_backend("auto", bundle)
    assert "`ane bench` found the decoder on mlx, the other networks on torch:cpu fastest here" in caplog.text
    assert re.match("mlx:cpu fp16.*; other networks: torch:cpu", backend.name)
    columns = np.random.default_rng(0).standard_normal((5, bundle.config("autoregressive").model_dim), np.float32)
    answers = [load_backend(name, bundle).decoder(1, 4).prefill(columns)[0] for name in ("mlx", "torch:cpu")]
    np.testing.assert_array_equal(backend.decoder(1, 4).prefill(columns)[0], answers[0])
    assert not np.array_equal(*answers), "the engines' bits tell them apart"
    flags = ["--preset=ultra_fast", "--seed=0", "--max-codes=8", "--json", f"--output={tmp_path / 'a.wav'}"]
    assert main(["say", "Hi.", f"--bundle={bundle.path}", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["backend"] == backend.name


def test_auto_follows_a_precision_that_was_measured(bundle):
    half = EngineChoice("torch:cpu", threads=1, precision="fp16")
    remember(bundle, "2026-11-29T10:00:00", half, half)
    assert str(measured_engines(bundle)) == "torch:cpu, fp16, 1 threads"
    assert load_backend("auto", bundle).name == "torch:cpu fp16"

    def without_precision(record: dict) -> None:
        for engine in (record["decoder"], record["others"]):
            del engine["precision"]  # as an earlier version wrote it

    edit_json(measured_file(bundle), without_precision)
    assert load_backend("auto", bundle).name != "torch:cpu fp16"


@pytest.mark.parametrize("how", ["other machine", "damaged", "named precision", "engine is gone"])
def test_what_was_measured_holds_for_this_machine_alone(bundle, monkeypatch, caplog, how):
    remember(bundle, "2026-11-29T10:00:00", EngineChoice("mlx"), EngineChoice("mlx"))
    assert load_backend("auto", bundle).name.startswith("mlx")
    if how == "other machine":
        monkeypatch.setattr(measured, "system_version", lambda: "macOS 27.0 (26A1)")
    elif how == "damaged":
        measured_file(bundle).write_text("{")
    elif how == "engine is gone":
        monkeypatch.setattr("ane.backends.choosing.load_mlx", lambda *_: raise_(UserError("MLX is not installed")))
    precision = "fp32" if how == "named precision" else "auto"
    with caplog.at_level("INFO"):
        assert load_backend("auto", bundle, precision).name.startswith("torch:cpu")
    assert ("MLX is not installed. Running on torch instead." in caplog.text) == (how == "engine is gone")


def raise_(error: Exception) -> None:
    raise error
