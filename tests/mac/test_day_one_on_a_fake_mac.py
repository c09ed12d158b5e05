"""Test the script for the first day with a Mac, on a fake Mac. Its figures say nothing about real hardware."""

# ruff: noqa: F811  fixtures are imported

import json
from pathlib import Path

import pytest

from ane.audio import playback
from ane.bench import sessions
from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from ane.bundles.opening import DEFAULT_BUNDLE
from ane.cli import main as ane
from ane.cli import parser
from ane.commands import packages
from converters.coreml.coreml_package import CoreMLOptions
from tests.audio.recording_device import RecordingDevice
from tests.backends.coreml.mac_fixtures import mac, unguarded_mac  # noqa: F401
from tests.bench.in_process import InProcessWorker
from tests.conversions import converted
from tests.small_bundle import write_small_bundle
from tools.mac import __main__ as day_one
from tools.mac import compare

# the fake Mac lacks pytest, a GPU and sudo
UNANSWERED = ("States, ", "Does each of two", "torch on MPS", "What power")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_small_bundle(tmp_path_factory.mktemp("bundles"), ["autoregressive", "clvp", "rlg_auto", "hifigan"])


@pytest.fixture(scope="module")
def heart(shared) -> Bundle:
    """The default voice with one length of each function, which is converted before this is a Mac."""
    buckets = {"text": (64,), "prosody": (160,), "spectra": (96,)}
    return converted(shared, open_model(DEFAULT_BUNDLE), [CoreMLOptions(buckets=buckets)])


def test_a_fake_mac_answers_every_question_and_the_report_names_nobody(
    heart, mac, small, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(packages, "cached_packages", lambda *_: heart)
    monkeypatch.setattr(sessions, "WorkerProcess", InProcessWorker)
    monkeypatch.setattr(sessions, "READINGS", 1)
    monkeypatch.setattr(playback, "open_device", RecordingDevice())
    monkeypatch.setattr(
        playback, "PlayerProcess", lambda rate, *more: playback.Player(RecordingDevice()(rate), rate, *more)
    )
    monkeypatch.setattr(day_one, "getpass", type("User", (), {"getuser": staticmethod(lambda: "jane.doe")}))

    def run(arguments, folder, seconds):
        """A command in this process; what cannot run here is answered as it would be there."""
        monkeypatch.chdir(folder)
        if arguments[:2] == ["-m", "tools.mac.compare"]:
            return compare.main(arguments[2:]), capsys.readouterr().out
        if arguments[:2] != ["-m", "ane"] or "torch:mps" in arguments:
            return 1, f"not here, in {folder} of jane.doe"
        flags = arguments[2:]
        if "say" in flags and "--bundle" in flags:
            flags += ["--max-codes", "12"]
        if "bench" in flags:
            flags += ["--backend", "coreml", "--compute-units", "CPU_ONLY"]
        status = ane(flags)
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    monkeypatch.setattr(day_one.ask, "__defaults__", (run,))
    assert day_one.main(["--bundle", str(small), "-o", str(tmp_path / "report")]) == 0
    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    answers = json.loads(text)["answers"]
    for answer in answers:
        assert (answer["status"] == 0) != answer["asks"].startswith(UNANSWERED), answer["output"]
    verified = [answer["results"] for answer in answers if "compute what the network" in answer["asks"]]
    assert len(verified) == 3
    assert all(function["passed"] for one in verified for function in one["functions"])
    assert [answer["asks"] for answer in answers if "functions are ready" in answer["output"]] == [answers[3]["asks"]]
    assert '"backend": "onnx:cpu' in answers[0]["output"]
    assert '"backend": "coreml fp16"' in answers[1]["output"]
    compared = [line for answer in answers if "mels" in answer["asks"] for line in answer["output"].splitlines()]
    assert [line.partition(":")[0] for line in compared] == [
        "auto.wav and torch.wav",
        "io.wav and torch16.wav",
        "state.wav and torch16.wav",
    ]
    assert all(answer["where"].startswith("Apple M2, macOS 15.5 (24F74), ") for answer in answers)
    readable = (tmp_path / "report.txt").read_text(encoding="utf-8")
    assert all(answer["asks"] in readable for answer in answers)
    assert "jane.doe" not in text + readable
    assert str(Path.home()) not in text + readable


def test_the_questions_take_at_most_half_an_hour_by_estimate():
    assert sum(question.minutes for question in day_one.questions("demo")) <= day_one.MINUTES


def test_with_compute_units_every_command_names_them_and_nothing_needs_a_gpu_or_a_loudspeaker():
    """As on hosted machines, which have neither, and hang in a load for the Neural Engine."""
    asked = [question.command[2:] for question in day_one.questions("demo", "CPU_ONLY") if question.command[1] == "ane"]
    for command in asked:
        options = parser().parse_args([part.replace(day_one.REPORT, "report") for part in command])
        core_ml = "coreml" in command
        assert (options.compute_units == "CPU_ONLY" or options.compute_units == ["CPU_ONLY"]) == core_ml, command
        assert "torch:mps" not in command
        assert "--stream" not in command
    assert len(asked) == 10


def test_a_question_that_hangs_or_for_which_no_time_is_left_ends_nothing_else(tmp_path):
    question = day_one.MacQuestion("Does it end?", ("-c", "import time; time.sleep(60)"), 1, 1)
    assert day_one.ask(question, tmp_path, 0.5).notes == ["stopped after 0 s"]
    assert day_one.ask(question, tmp_path, 0).notes == ["not asked: no time was left"]
    assert day_one.run_python(("-c", "print(1)"), tmp_path, 30) == (0, "1\n")
