"""`ane bench` as its user meets it, with a stand-in for Core ML."""

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ane.backends import tuning
from ane.backends.coreml import engine as coreml
from ane.backends.tuning import Tuning
from ane.bench import worker
from ane.bench.figures import Row, Spoken
from ane.bench.report import plot
from ane.bench.worker import Job, read_job
from ane.bundles.bundle import Bundle
from ane.commands import bench
from ane.system.errors import UserError
from converters.conversion import convert
from converters.coreml.package import Options
from tests.backends.coreml.stand_in import StandIn

ROW = Row("torch:cpu", "clvp", "clvp_text", "clvp_text", {}, "auto")
UNITS = ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE")


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
    printed = ane(*common, "--networks", "clvp")
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
    (("--backend", "mil"), "no Core ML packages"), (("--networks", "cvvp"), "cvvp"),
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
