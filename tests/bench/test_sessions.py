"""Rows of functions and of sentences from processes that may end."""

import json
from dataclasses import asdict, replace
from typing import ClassVar

import pytest

from ane.bench import sessions
from ane.bench.records import BenchRow, Spread
from ane.bench.sessions import function_rows, spoken_sentence
from ane.bench.worker import BenchWorker, FunctionRequest, TimedRequest, Tuning, WorkerModel
from ane.system.errors import UserError
from ane.system.json_process import ProcessEndedError

ROWS = [BenchRow("coreml", name) for name in "abc"]
REQUEST = FunctionRequest(Tuning("coreml", compute_units="ALL"), networks=("clvp",))
READING = {"elapsed": 1.0, "seconds": 2.0, "codes": 3, "chunks": 1, "first_audio": 0.25, "stages": {"decode": 0.5},
           "peak_bytes": 10}


class ScriptedProcess:
    """A worker process whose answers are stated: an exception is raised."""

    answers: ClassVar[dict] = {}
    started = 0
    cold_start = 0.5

    def __init__(self, threads=None):
        type(self).started += 1
        self.asked = []

    def ask(self, request):
        (kind, stated), = json.loads(json.dumps(request)).items()
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
    answers["measure"] = lambda index: ProcessEndedError("the process was ended by SIGKILL") if index == 1 else {
        "row": asdict(replace(ROWS[index], value=Spread.of([index + 1.0])))}
    rows = list(function_rows(WorkerModel(), REQUEST))
    assert [(row.what, row.value and row.value.median, row.error) for row in rows] == [
        ("a", 1.0, None), ("b", None, "the process was ended by SIGKILL"), ("c", 3.0, None)]
    assert ScriptedProcess.started == 2


def test_a_process_that_fails_at_once_ends_the_measurement(answers):
    answers["list"] = ProcessEndedError("Segmentation fault")
    with pytest.raises(UserError, match="cannot measure coreml: Segmentation fault"):
        list(function_rows(WorkerModel(), REQUEST))
    answers["list"] = UserError("no such bundle")
    with pytest.raises(UserError, match="no such bundle"):
        list(function_rows(WorkerModel(), REQUEST))


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
    settings = TimedRequest(preset="ultra_fast", steps=3).settings(worker.model)
    assert settings.diffusion.steps == 3
