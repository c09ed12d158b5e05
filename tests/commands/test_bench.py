"""Test `ane bench` as a user runs it, on a stand-in for Core ML."""

import itertools
import json
import re
from pathlib import Path

import pytest

from ane.bench import sessions
from ane.bench.sessions import read_row
from ane.bench.worker import BenchWorker
from ane.bundles.opening import DEFAULT_BUNDLE
from ane.cli import main
from ane.commands import bench
from ane.commands.arguments import CommandParser
from ane.system.errors import UserError
from tests.backends.coreml.mac_fixtures import unguarded_mac  # noqa: F401
from tests.bench.in_process import InProcessWorker
from tests.small_bundle import write_small_bundle

COMPUTE_UNITS = ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE")


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    """A random bundle with packages of its decoder and CLVP."""
    return write_small_bundle(tmp_path_factory.mktemp("bundles"), ["autoregressive", "clvp"])


@pytest.fixture(scope="module")
def onnx_bundle(onnx_packages) -> Path:
    """A bundle with ONNX packages of its decoder."""
    return onnx_packages.bundle("autoregressive").path


@pytest.fixture
def ane(monkeypatch, capsys, unguarded_mac):  # noqa: F811
    """``ane("--runs", "2")``: what `ane bench` prints, in this process; it must succeed."""
    monkeypatch.setattr(sessions, "WorkerProcess", InProcessWorker)
    monkeypatch.setattr(sessions, "READINGS", 1)
    parser = CommandParser()
    bench.register(parser.add_subparsers(required=True))

    def run(*arguments) -> str:
        args = parser.parse_args(["bench", *map(str, arguments)])
        assert args.handler(args) == 0
        return capsys.readouterr().out

    run.mac = unguarded_mac
    return run


@pytest.fixture
def quick_speech(monkeypatch) -> None:
    """A worker that does not speak and states shorter times each time: the default settings first, then faster ones."""
    speaking = {
        "seconds": 1.0,
        "codes": 3,
        "chunks": 1,
        "first_audio": 0.25,
        "stages": {"decode": 1.0},
        "peak_bytes": 10**9,
    }
    spoken = itertools.count(1)
    monkeypatch.setattr(BenchWorker, "_open", lambda self, stated: {})
    monkeypatch.setattr(BenchWorker, "_speak", lambda self, stated: {**speaking, "elapsed": 0.5 / next(spoken)})


@pytest.mark.usefixtures("quick_speech")
def test_core_ml_is_measured_on_all_compute_units_compiled_once_and_chosen(ane, converted):
    found = json.loads(ane("--bundle", converted, "--backend", "coreml", "--runs", "2", "-o", "-"))
    rows = [row for row in found["rows"] if row["what"] != "sentence"]
    *_, sentence = found["rows"]
    functions = ["prefill_32", "step_2_64", "state_2_64_64", "store_32_64", "clvp_text_32", "clvp_speech_32"]
    assert [(row["settings"]["compute_units"], row["what"]) for row in rows] == [
        (units, function) for units in COMPUTE_UNITS for function in functions
    ]
    assert all(row["error"] is None and row["value"]["readings"] == 2 and row["value"]["median"] > 0 for row in rows)
    assert all(row["figures"][name] > 0 for name in ("cold_load_s", "first_ms", "warm_load_s") for row in rows)
    assert [row["settings"]["cache"] for row in rows[1:3]] == ["io", "state"]
    assert ane.mac.count("compile ") == 2
    assert ane.mac.count("load ") == 2 * len(rows)
    assert (sentence["what"], sentence["figures"]["first_audio_s"]) == ("sentence", 0.25)
    assert found["chosen"]["backend"] == "coreml"
    assert found["chosen"]["compute_units"] == "CPU_AND_NE"  # these units were measured last


@pytest.mark.usefixtures("quick_speech")
def test_onnx_stands_beside_torch_in_one_table(ane, onnx_bundle):
    found = json.loads(ane("--bundle", onnx_bundle, "--threads", "1", "--precision", "fp32", "-o", "-"))
    assert {row["competitor"] for row in found["rows"]} == {"torch:cpu", "onnx:cpu, threads 1", "torch:cpu, threads 1"}
    assert {row["what"] for row in found["rows"]} == {"sentence"}


def test_the_interpreter_is_measured_on_request(ane, converted):
    printed = ane("--bundle", converted, "--backend", "mil", "--runs", "1")
    assert "step_2_64" in printed
    assert "only for checking packages" in printed
    assert "No settings can be chosen" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "onyx"), "onyx"),
        (("--compute-units", "NPU", "--backend", "coreml"), "NPU"),
        (("--backend", "mil"), "no Core ML packages"),
        (("--backend", "onnx"), "no ONNX packages"),
        (("--runs", "3"), "runs has no effect on torch:cpu, because only functions of Core ML packages"),
        (("--bundle", "./nowhere"), "nowhere"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(ane, random_bundle, arguments, message):
    with pytest.raises(UserError, match=message):
        ane(*arguments, *([] if "--bundle" in arguments else ["--bundle", random_bundle]))


def test_without_a_bundle_the_voice_of_ane_say_is_measured(ane):
    found = json.loads(ane("--backend", "torch:cpu", "--threads", "1", "--text", "Hi.", "-o", "-"))
    assert found["bundle"]["name"] == DEFAULT_BUNDLE
    assert {row["what"] for row in found["rows"]} == {"sentence"}
    assert found["chosen"]["backend"] == "torch:cpu"


def test_a_run_on_torch_is_reported_with_flags_that_say_takes(ane, random_bundle, tmp_path, capsys):
    printed = ane(
        "--bundle",
        random_bundle,
        "--backend",
        "torch:cpu",
        "--threads",
        "1",
        "--preset",
        "fastest",
        "--text",
        "Hi.",
        "-o",
        tmp_path / "out.json",
    )
    assert "Functions" not in printed
    for heading in ("The sentence", "first audio s"):
        assert heading in printed
    check_document(json.loads((tmp_path / "out.json").read_text(encoding="utf-8")))
    [flags] = re.findall("Use it with: ane say (.*)", printed)
    assert (
        main(
            [
                "say",
                "Hi.",
                "--bundle",
                str(random_bundle),
                "--preset",
                "fastest",
                "--seed",
                "1",
                "--json",
                "-o",
                str(tmp_path / "a.wav"),
                *flags.split(),
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["backend"].startswith("torch:cpu")


def check_document(found: dict) -> None:
    assert set(found) == {"format", "benchmark", "machine", "settings", "rows", "notes", "bundle", "chosen"}
    assert (found["format"], found["benchmark"]) == (2, "ane bench")
    assert set(found["machine"]) == {
        "machine",
        "chip",
        "instructions",
        "cores",
        "memory_bytes",
        "accelerator",
        "os",
        "python",
        "packages",
        "commit",
        "date",
        "load_average",
    }
    assert {"torch", "coremltools", "numpy"} <= set(found["machine"]["packages"])
    assert set(found["bundle"]) == {"name", "identity", "packages"}
    sentences = [read_row(row) for row in found["rows"]]
    assert [row.competitor for row in sentences] == ["torch:cpu", "torch:cpu, threads 1", "torch:cpu, int8, threads 1"]
    for row in sentences:
        assert row.peak_bytes > 10**8
        assert all(row.figures[name] > 0 for name in ("start_to_end_s", "first_start_to_end_s", "first_audio_s"))
