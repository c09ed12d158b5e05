"""How `ane bench` measures: figures of functions, processes that may end, power."""

import dataclasses
import json
import sys
import time

import pytest

from ane.backends.tuning import Tuning
from ane.bench import energy, worker
from ane.bench.figures import Calls, Row, percentile
from ane.bench.measure import FEWEST, PATIENCE, Subject, measured, repeated
from ane.bench.worker import Job, read_job, rows_of, spoken
from ane.system.errors import UserError

CALLS = Calls(candidates=16, steps=30, guided=False, frames=374, capacity=100)
ROW = Row("torch:cpu", "clvp", "clvp_text", "clvp_text", {}, "auto")


# --- figures


class FakeClock:
    """A clock that stands still but for what the tests let pass."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passing(self, seconds):
        """Each call takes the next of ``seconds``."""
        seconds = iter(seconds)

        def call():
            self.now += next(seconds)

        return call


def test_percentiles_lie_between_two_values_on_a_straight_line():
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile(range(101), 0.95) == 95
    assert percentile([7], 0.95) == 7


def test_loads_the_first_call_and_percentiles_come_from_the_right_calls():
    clock = FakeClock()
    load = clock.passing([5, 1])
    calls = clock.passing([0.5, 9, *(hundredth / 100 for hundredth in range(1, 22))])      # first; warm-up; 21 runs
    unloaded = []
    subject = Subject(ROW, load, lambda loaded: calls, lambda: unloaded.append(clock.now), lambda: 3.0)
    row = measured(subject, 21, clock)
    figures = (row.compile_s, row.cold_load_s, row.first_ms, row.warm_load_s, row.p50_ms, row.p95_ms)
    assert figures == pytest.approx((3, 2, 500, 1, 110, 200))
    assert row.runs == 21
    assert unloaded[0] == 5.5       # before the warm load


def test_slow_calls_are_not_waited_for_forever():
    clock = FakeClock()
    assert len(repeated(clock.passing([PATIENCE] * 100), 100, clock)) == FEWEST
    assert len(repeated(clock.passing([0.001] * 100), 100, clock)) == 100
    assert len(repeated(clock.passing([PATIENCE] * 100), 2, clock)) == 2


def test_what_the_user_would_be_told_stands_in_the_row():
    def fails():
        raise UserError("Core ML cannot load it")

    assert measured(Subject(ROW, fails, lambda loaded: fails), 3) == dataclasses.replace(
        ROW, error="Core ML cannot load it")


def test_lanes_count_only_as_far_as_their_codes_have_room():
    assert CALLS.lanes({"columns": 8, "slots": 44 + 800}) == 8
    assert CALLS.lanes({"columns": 8, "slots": 44 + 799}) == 7
    assert CALLS.lanes({"columns": 32}) == 16       # there are no more candidates
    assert CALLS.lanes({"columns": 8, "slots": 44}) == 0



# --- processes


class Messages:
    """A process of nothing but messages: for each start its own, and how it ends."""

    starts: tuple = ()
    jobs: tuple = ()

    def __init__(self, job):
        self.job = job
        self.messages, self.status = type(self).starts[len(type(self).jobs)]
        type(self).jobs += (job,)

    def __iter__(self):
        return iter(self.messages)

    ending = worker.Process.ending
    said = "Segmentation fault"


@pytest.fixture
def processes(monkeypatch):
    """``processes(*starts)``: what each process that is started writes, and its status."""
    def use(*starts):
        monkeypatch.setattr(Messages, "starts", starts)
        monkeypatch.setattr(Messages, "jobs", ())
        monkeypatch.setattr(worker, "Process", Messages)

    return use


def message(key: str, function: str, **figures) -> dict:
    return {key: dataclasses.asdict(dataclasses.replace(ROW, function=function, **figures))}


def test_a_function_that_ends_its_process_is_told_and_the_rest_goes_on(processes):
    first = [message("begin", "a"), message("row", "a", p50_ms=1.0), message("begin", "b")]
    processes((first, -9), ([message("begin", "c"), message("row", "c", p50_ms=2.0)], 0))
    rows = list(rows_of(Job(Tuning("coreml"))))
    assert [(row.function, row.p50_ms, row.error) for row in rows] == [
        ("a", 1.0, None), ("b", None, "the process was ended by SIGKILL"), ("c", 2.0, None)]
    assert [function for *_, function in Messages.jobs[1].skip] == ["a", "b"]


def test_a_process_that_fails_at_once_ends_it_all(processes):
    processes(([], 1))
    with pytest.raises(UserError, match="Segmentation fault"):
        list(rows_of(Job(Tuning("torch"))))
    processes(([{"error": "no such bundle"}], 0))
    with pytest.raises(UserError, match="no such bundle"):
        list(rows_of(Job(Tuning("torch"))))


def test_the_sentence_is_said_twice_and_the_second_counts(processes):
    told = {"backend": "coreml fp16", "seconds": 2.0, "real_time_factor": 0.5, "spent": {"decode": 1.0},
            "peak_bytes": 10}
    processes(([{"spoken": told | {"real_time_factor": 9.0}}], 0), ([{"spoken": told}], 0))
    said = spoken(Job(Tuning("coreml"), text="hello"))
    assert (said.real_time_factor, said.peak_bytes, said.error, said.joules) == (0.5, 10, None, None)
    assert said.cold_first_audio_s is not None
    processes(([], -11))
    assert spoken(Job(Tuning("coreml"), text="hello")).error == "the process was ended by SIGSEGV"


def test_a_job_survives_its_way_to_the_process():
    job = Job(Tuning("coreml", units={"": "ALL"}), bundle="/b", lanes=(1, 2), networks=("clvp",),
              skip=(("clvp", "fp16", "clvp_text"),))
    assert read_job(json.dumps(dataclasses.asdict(job))) == job


# --- energy


PRINTED = """
*** Sampled system activity (Fri Sep 11 13:41:46 2026 -0700) (200.00ms elapsed) ***

CPU Power: 823 mW
GPU Power: 26 mW
ANE Power: 151 mW
Combined Power (CPU + GPU + ANE): 1000 mW

*** Sampled system activity (Fri Sep 11 13:41:47 2026 -0700) (600.00ms elapsed) ***

ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 2000 mW
"""


def test_power_is_the_mean_over_time():
    assert energy.mean_watts(PRINTED) == pytest.approx(1.75)
    assert energy.mean_watts("") is None


def test_power_is_sampled_until_the_work_is_done(monkeypatch):
    """What powermetrics is cannot be ended by a signal, but it ends when nobody reads it."""
    stand_in = f"import sys, time\nwhile True:\n print({PRINTED!r}, flush=True)\n time.sleep(0.02)"
    monkeypatch.setattr(energy, "COMMAND", (sys.executable, "-c", stand_in))
    started = time.perf_counter()
    result, joules = energy.during(lambda: time.sleep(0.5) or "done")
    assert result == "done"
    assert 0.5 * 1.75 <= joules <= 1.75 * (time.perf_counter() - started)


def test_where_energy_cannot_be_measured_it_is_said_how(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert "macOS" in energy.why_not()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(energy, "COMMAND", ("false",))
    assert "sudo" in energy.why_not()
