"""`ane bench`: how it measures, chooses and tells, on the tests' own clocks and engines; last as its user meets it."""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ane import tuning
from ane.backends import coreml
from ane.backends.pytorch import TorchBackend
from ane.bench import energy, nearness, worker
from ane.bench.choosing import candidates, decoder_steps, fastest
from ane.bench.figures import Calls, Row, Spoken, percentile
from ane.bench.measure import FEWEST, PATIENCE, Subject, measured, repeated
from ane.bench.packages import Wanted
from ane.bench.report import plot
from ane.bench.uses import Uses
from ane.bench.worker import Job, read_job, rows_of, spoken
from ane.commands import bench
from ane.errors import UserError
from ane.model.bundle import Bundle
from ane.model.packages import FunctionRecord, PackageRecord
from ane.tuning import Tuning
from converters.conversion import convert
from converters.to_coreml import Options
from tests.core_ml_stand_in import StandIn
from tests.random_model import RandomModel

CALLS = Calls(candidates=16, steps=30, guided=False, frames=374, capacity=100)
ROW = Row("torch:cpu", "clvp", "clvp_text", "clvp_text", {}, "auto")
UNITS = ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE")


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


def test_of_each_sort_the_function_is_measured_that_the_sentence_takes():
    buckets = {"prefill_64": ("prefill", {"columns": 64}), "prefill_128": ("prefill", {"columns": 128}),
               "step_1_64": ("step", {"columns": 1, "slots": 64}), "state_1_64": ("state", {"columns": 1, "slots": 64}),
               "univnet_14": ("univnet", {"frames": 14}), "univnet_62": ("univnet", {"frames": 62}),
               **{f"denoise_{batch}_{frames}": ("denoise", {"batch": batch, "frames": frames})
                  for batch in (1, 2) for frames in (320, 576, 1152)}}
    package = a_package("autoregressive", **buckets)
    assert Wanted().functions(package, CALLS) == ["prefill_64", "step_1_64", "state_1_64", "univnet_62",
                                                  "denoise_1_576", "denoise_2_576"]
    assert Wanted(every=True).functions(package, CALLS) == list(buckets)
    assert Wanted(frozenset(["clvp"])).functions(package, CALLS) == []
    assert Wanted(precisions=frozenset(["8bit"])).functions(package, CALLS) == []


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


# --- the choice


def a_package(network: str, precision: str = "fp16", parity: float = 70.0, **functions) -> PackageRecord:
    stated = {"fp32 maths": parity} | ({"fp16 rounding": parity} if precision != "fp32" else {})
    records = {name: FunctionRecord(kind, bucket, stated) for name, (kind, bucket) in functions.items()}
    return PackageRecord(network, precision, f"packages/{network}-{precision}.mlpackage", [], records)


DECODER = {"step_4": ("step", {"columns": 4, "slots": 444}), "step_8": ("step", {"columns": 8, "slots": 844}),
           "state_8": ("state", {"columns": 8, "slots": 844})}
DIFFUSION = {"denoise_1_576": ("denoise", {"batch": 1, "frames": 576}),
             "denoise_2_576": ("denoise", {"batch": 2, "frames": 576})}


class Packages:
    """A model of packages on paper."""

    name, path = "paper", Path("paper")

    def __init__(self, *packages: PackageRecord):
        self.packages = list(packages)


def timed_rows(package: PackageRecord, milliseconds: dict[str, dict[str, float | str]]) -> list[Row]:
    """Rows of its functions; ``milliseconds`` by units, then by function; text is an error."""
    rows = []
    for units, times in milliseconds.items():
        for name, figure in times.items():
            record = package.functions[name]
            cache = {"step": "io", "state": "state"}.get(record.kind)
            row = Row("coreml", package.network, name, record.kind, record.bucket, package.precision, units,
                      cache=cache, lanes=CALLS.lanes(record.bucket) if cache else None)
            rows.append(dataclasses.replace(row, error=figure) if isinstance(figure, str) else
                        dataclasses.replace(row, p50_ms=figure, p95_ms=figure, runs=1))
    return rows


def test_each_network_gets_its_fastest_units_and_the_decoder_cache_and_lanes_too():
    decoder, diffusion = a_package("autoregressive", **DECODER), a_package("diffusion", **DIFFUSION)
    rows = [*timed_rows(decoder, {"CPU_ONLY": {"step_4": 4, "step_8": 9, "state_8": 9},       # 1 ms a lane at best
                                  "CPU_AND_NE": {"step_4": 5, "step_8": 7, "state_8": 4}}),   # 0.5
            *timed_rows(diffusion, {"CPU_ONLY": {"denoise_1_576": 3, "denoise_2_576": 9},     # batches of two: unused
                                    "CPU_AND_NE": {"denoise_1_576": 4, "denoise_2_576": 1}})]
    (found,), refused = candidates(Packages(decoder, diffusion), rows, CALLS, bench.holds_parity)
    assert refused == []
    assert found.tuning == Tuning("coreml", "fp16", {"autoregressive": "CPU_AND_NE", "diffusion": "CPU_ONLY"}, "state",
                                  lanes=8)
    assert found.estimate == pytest.approx(86 * 16 / 8 * 0.004 + 30 * 0.003)


def test_units_on_which_a_function_fails_are_out():
    decoder = a_package("autoregressive", **DECODER)
    fails = {"step_4": 1, "step_8": 1, "state_8": "the Neural Engine's compiler refuses it"}
    works = {"step_4": 8, "step_8": 9, "state_8": 10}
    (found,), _ = candidates(Packages(decoder), timed_rows(decoder, {"CPU_AND_NE": fails, "CPU_ONLY": works}), CALLS,
                             bench.holds_parity)
    assert found.tuning.units == {"autoregressive": "CPU_ONLY"}
    found, (refused,) = candidates(Packages(decoder), timed_rows(decoder, {"CPU_AND_NE": fails}), CALLS,
                                   bench.holds_parity)
    assert found == []
    assert "compiler refuses" in refused.why


@pytest.mark.parametrize("parity", [30.0, None])
def test_the_fastest_precision_is_out_without_parity(parity):
    exact, fewer = a_package("autoregressive", **DECODER), a_package("autoregressive", "8bit", 30.0, **DECODER)
    if parity is None:
        for name, record in fewer.functions.items():
            fewer.functions[name] = dataclasses.replace(record, parity={})
    rows = [*timed_rows(exact, {"CPU_AND_NE": dict.fromkeys(DECODER, 9)}),
            *timed_rows(fewer, {"CPU_AND_NE": dict.fromkeys(DECODER, 1)})]
    found, (refused,) = candidates(Packages(exact, fewer), rows, CALLS, bench.holds_parity)
    assert fastest(found, []).precision == "fp16"
    assert "parity" in refused.why
    fewer = a_package("autoregressive", "8bit", 36.0, **DECODER)        # above the 35 dB of 8 bits
    found, refused = candidates(Packages(exact, fewer), rows, CALLS, bench.holds_parity)
    assert (fastest(found, []).precision, refused) == ("8bit", [])


def test_a_network_of_one_precision_makes_no_second_choice():
    decoder = a_package("autoregressive", **DECODER)
    univnet = a_package("univnet", "fp32", 100.0, univnet_62=("univnet", {"frames": 62}))
    rows = [*timed_rows(decoder, {"CPU_ONLY": dict.fromkeys(DECODER, 1)}),
            *timed_rows(univnet, {"CPU_ONLY": {"univnet_62": 1}})]
    (found,), _ = candidates(Packages(decoder, univnet), rows, CALLS, bench.holds_parity)
    assert found.tuning.precision == "fp16"
    assert set(found.tuning.units) == {"autoregressive", "univnet"}


def test_torch_gets_the_threads_that_are_fastest_in_all_and_the_best_lanes():
    def row(kind, threads, figure, lanes=None):
        return dataclasses.replace(ROW, network="autoregressive" if lanes else "diffusion", kind=kind, threads=threads,
                                   lanes=lanes, bucket={"columns": lanes} if lanes else {"batch": 1}, p50_ms=figure)

    rows = [row("step", 1, 10, 1), row("step", 1, 20, 8), row("denoise", 1, 100),
            row("step", 2, 12, 1), row("step", 2, 22, 8), row("denoise", 2, 50)]
    (found,), _ = candidates(Packages(), rows, CALLS, bench.holds_parity)
    assert (found.tuning.threads, found.tuning.lanes) == (2, 8)
    assert decoder_steps(rows[:1], CALLS).lanes == 1
    assert decoder_steps(rows[:2], dataclasses.replace(CALLS, candidates=1)).lanes is None


def test_int8_is_a_choice_of_its_own_whose_other_networks_are_the_usual_ones():
    def row(kind, precision, figure, **rest):
        usual = {"network": "autoregressive", "threads": 1, "bucket": {"columns": 1}}
        return dataclasses.replace(ROW, **usual | {"kind": kind, "precision": precision, "p50_ms": figure} | rest)

    rows = [row("step", "auto", 10, lanes=1), row("denoise", "auto", 100, network="diffusion", bucket={"batch": 1}),
            row("step", "int8", 4, lanes=1)]
    (usual, fewer), refused = candidates(Packages(), rows, CALLS, bench.holds_parity)
    assert (usual.tuning.precision, fewer.tuning.precision, refused) == ("auto", "int8", [])
    steps = (decoder_steps([each], CALLS).seconds for each in rows[::2])
    assert usual.estimate - fewer.estimate == pytest.approx(next(steps) - next(steps))
    assert fewer.estimate > decoder_steps(rows[2:], CALLS).seconds
    rows[2] = dataclasses.replace(rows[2], error="int8 reaches 12.0 dB against float32, and 25 are asked for")
    (only,), (refused,) = candidates(Packages(), rows, CALLS, bench.holds_parity)
    assert (only.tuning.precision, refused.what) == ("auto", "torch:cpu int8, 1 threads")


def test_a_decoder_that_loses_too_much_in_int8_is_not_measured_in_it(monkeypatch):
    monkeypatch.setattr(nearness, "BAR", 60.0)
    backend = TorchBackend(RandomModel(), "cpu", "int8")
    first = next(Uses(backend, CALLS).subjects(1, "int8", "torch:cpu", (1,)))
    assert re.search(r"int8 reaches [\d.]+ dB against float32, and 60 are asked for", measured(first, 1).error)


def test_the_interpreter_is_never_chosen():
    found, (refused,) = candidates(Packages(), [dataclasses.replace(ROW, backend="mil:fp16", p50_ms=0.1)], CALLS,
                                   bench.holds_parity)
    assert (found, refused.what) == ([], "mil:fp16")


def test_the_spoken_sentence_decides_between_engines_and_who_fails_is_out():
    said = [Spoken(Tuning("torch:cpu"), real_time_factor=2.0), Spoken(Tuning("coreml"), real_time_factor=0.5),
            Spoken(Tuning("coreml", "8bit"), error="the process was ended by SIGKILL")]
    assert fastest([], said).backend == "coreml"
    assert fastest([], said).measured["real_time_factor"] == 0.5
    assert fastest([], said[2:]) is None
    assert fastest([], []) is None


def test_threads_to_try_are_powers_of_two_and_all():
    assert [bench.thread_counts(cores) for cores in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


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


# --- the command


class InProcess:
    """``worker.Process`` without the process, so that the stand-in reaches it."""

    status = 0

    def __init__(self, job: Job):
        self.job = read_job(json.dumps(dataclasses.asdict(job)))

    def __iter__(self):
        messages = []
        try:
            worker.work(self.job, messages.append)
        except UserError as error:
            messages.append({"error": str(error)})
        return iter(json.loads(json.dumps(messages)))


@pytest.fixture(scope="module")
def converted(random_bundle, tmp_path_factory) -> Path:
    """The random bundle with packages of its decoder and CLVP."""
    path = tmp_path_factory.mktemp("bundles") / "converted"
    buckets = {"prefill": (64,), "step": (44 + 2 * 500 + 44,), "clvp_text": (64,), "clvp_speech": (128,)}
    convert(Bundle(random_bundle), path, [Options(lanes=(2,), buckets=buckets)], ["autoregressive", "clvp"])
    return path


@pytest.fixture
def ane(tmp_path, monkeypatch, capsys):
    """``ane("--runs", "2")``: what `ane bench` prints, in this process; it must succeed."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(worker, "Process", InProcess)
    toolkit = StandIn(tmp_path / "log")
    monkeypatch.setattr(coreml, "CoreMLTools", lambda: toolkit)
    parser = argparse.ArgumentParser()
    bench.register(parser.add_subparsers(required=True))

    def run(*arguments) -> str:
        args = parser.parse_args(["bench", *map(str, arguments)])
        assert args.handler(args) == 0
        return capsys.readouterr().out

    run.toolkit = toolkit
    return run


def test_core_ml_is_measured_on_all_units_compiled_once_and_chosen(ane, converted, monkeypatch):
    times = {"torch:cpu": 2.0, "coreml": 0.5}
    monkeypatch.setattr(worker, "speak", lambda job, model: {
        "backend": job.tuning.backend, "seconds": 1.0, "real_time_factor": times[job.tuning.backend],
        "spent": {"decode": 1.0}, "peak_bytes": 10**9})
    found = json.loads(ane("--bundle", converted, "--backend", "coreml", "--runs", "2", "--json", "-"))
    functions = ["prefill_64", "step_2_1088", "state_2_1088", "fill_64_1088", "clvp_text_64", "clvp_speech_128"]
    assert [(row["units"], row["function"]) for row in found["rows"]] == [
        (units, function) for units in UNITS for function in functions]
    assert all(row["error"] is None and row["runs"] == 2 for row in found["rows"])
    for figure in ("cold_load_s", "first_ms", "warm_load_s", "p50_ms", "p95_ms"):
        assert all(row[figure] > 0 for row in found["rows"])
    assert [row["function"] for row in found["rows"] if row["compile_s"] is not None] == ["prefill_64", "clvp_text_64"]
    assert [(row["cache"], row["lanes"]) for row in found["rows"][1:3]] == [("io", 2), ("state", 2)]
    assert ane.toolkit.compiled == 2
    assert len(ane.toolkit.opened) == 2 * len(found["rows"])
    assert "nothing is streamed" in found["notes"][0]
    assert (found["chosen"]["backend"], found["remembered"]) == ("coreml", True)
    assert set(found["chosen"]["units"]) == {"autoregressive", "clvp"}
    assert tuning.remembered(Bundle(converted)).backend == "coreml"
    shown = ane("--show")
    assert "coreml, fp16, cache" in shown
    assert "this machine" in shown
    assert "Forgot 1 tuning " in ane("--forget")
    assert "nothing is remembered" in ane("--show")


def test_a_dry_run_and_a_part_are_not_remembered(ane, converted):
    common = ("--bundle", converted, "--backend", "coreml", "--runs", "1", "--units", "CPU_ONLY")
    assert "Not remembered" in ane(*common, "--no-speech", "--dry-run")
    printed = ane(*common, "--stages", "clvp")
    assert "clvp_text_64" in printed
    assert "prefill_64" not in printed
    assert "Not remembered" in printed
    assert tuning.entries() == []


def test_without_speech_the_sum_of_functions_decides(ane, converted):
    ane("--bundle", converted, "--backend", "coreml", "--runs", "1", "--units", "CPU_AND_GPU", "--no-speech")
    kept, = tuning.entries()
    assert set(kept.tuning.units.values()) == {"CPU_AND_GPU"}
    assert kept.tuning.measured["estimated_s"] > 0


def test_the_interpreter_is_measured_on_request(ane, converted):
    printed = ane("--bundle", converted, "--backend", "mil", "--runs", "1", "--all")
    assert "step_2_1088" in printed
    assert "never chosen" in printed
    assert "nothing to choose" in printed


@pytest.mark.parametrize(("arguments", "said"), [
    (("--backend", "onyx"), "onyx"), (("--units", "NPU", "--backend", "coreml"), "NPU"),
    (("--backend", "mil"), "no Core ML packages"), (("--stages", "cvvp"), "cvvp"),
    (("--bundle", "./nowhere"), "nowhere")])
def test_bad_arguments_are_told_before_any_work(ane, random_bundle, arguments, said):
    with pytest.raises(UserError, match=said):
        ane(*arguments, *([] if "--bundle" in arguments else ["--bundle", random_bundle]))


def test_a_tuning_of_a_later_version_is_told_before_any_work(ane, random_bundle, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / tuning.FILE).write_text('{"format": 7}')
    with pytest.raises(UserError, match="update tortoise-ane"):
        ane("--bundle", random_bundle)
    with pytest.raises(UserError, match="update tortoise-ane"):
        ane("--show")


def test_a_plot_needs_matplotlib_and_a_suffix(ane, tmp_path):
    rows = [dataclasses.replace(ROW, p50_ms=1.0, p95_ms=2.0, threads=threads) for threads in (1, 2)]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match=r"tortoise-ane\[plots\]"):
            ane("--plot", tmp_path / "plot.png")
        return
    plot(tmp_path / "plot.png", "test", rows)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="suffix"):
        ane("--plot", tmp_path / "plot.txt")


# --- as its user meets it


def test_a_run_on_torch_is_measured_told_and_taken_by_say(random_bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    model = ("--bundle", str(random_bundle))

    def run(*arguments) -> subprocess.CompletedProcess:
        result = subprocess.run([sys.executable, "-m", "ane", *arguments], cwd=tmp_path, capture_output=True, text=True,
                                timeout=300, check=False)
        assert result.returncode == 0, result.stderr
        return result

    result = run("bench", *model, "--backend", "torch:cpu", "--runs", "2", "--threads", "1", "--lanes", "1,4",
                 "--preset", "fastest", "--text", "Hi.", "--json", "out.json")
    for said in ("Functions", "The sentence", "Remembered in", "nothing is streamed"):
        assert said in result.stdout
    holds_schema(json.loads((tmp_path / "out.json").read_text(encoding="utf-8")))
    tuned = tuning.remembered(Bundle(random_bundle))
    assert tuned.backend == "torch:cpu"
    said = json.loads(run("say", "Hi.", *model, "--preset", "fastest", "--seed", "1", "--json", "-o", "a.wav").stdout)
    assert said["backend"].startswith("torch:cpu")


def holds_schema(found: dict) -> None:
    """The document is what ``ane.bench.report`` says it is."""
    assert (found["format"], found["what"], found["remembered"], found["refused"]) == (1, "ane bench", True, [])
    assert set(found) == {"format", "what", "machine", "bundle", "sentence", "notes", "rows", "spoken", "refused",
                          "chosen", "remembered"}
    assert set(found["machine"]) == {"machine", "chip", "cores", "memory_bytes", "os", "os_build", "python", "packages",
                                     "commit", "date", "load_average"}
    assert {"torch", "coremltools", "numpy"} <= set(found["machine"]["packages"])
    assert set(found["bundle"]) == {"name", "identity", "key", "packages"}
    assert {row["network"] for row in found["rows"]} >= {"autoregressive", "clvp", "diffusion", "univnet", "hifigan"}
    for row in found["rows"]:
        assert set(row) == {field.name for field in dataclasses.fields(Row)}
        assert row["error"] is None
        assert row["p95_ms"] >= row["p50_ms"] > 0
        assert (row["runs"], row["threads"], row["units"]) == (2, 1, None)
    assert len({Row(**row).what for row in found["rows"]}) == len(found["rows"])
    assert {row["network"] for row in found["rows"] if row["precision"] == "int8"} == {"autoregressive"}
    assert [(said["tuning"]["precision"], said["tuning"]["threads"]) for said in found["spoken"]] == [
        ("auto", None), ("auto", 1), ("int8", 1)]
    for said in found["spoken"]:
        assert set(said) == {field.name for field in dataclasses.fields(Spoken)}
        assert said["peak_bytes"] > 10**8
        assert said["first_audio_s"] > said["real_time_factor"] * said["seconds"] > 0
    assert Tuning(**found["chosen"]).measured["date"] == found["machine"]["date"][:10]
