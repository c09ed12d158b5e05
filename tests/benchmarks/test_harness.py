"""Test the harness of the benchmarks, and the script that runs them on a GPU."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ane import cli
from ane.bench.records import BenchRow, Spread, table_cells
from ane.bench.sessions import read_row
from ane.bundles import open_model
from ane.models.tortoise.chunks import split_into_chunks
from ane.models.tortoise.settings import TortoiseSettings
from ane.system.errors import UserError
from benchmarks import harness, memory, server, speech
from benchmarks.__main__ import BENCHMARKS, arguments_parser, main
from benchmarks.harness import ENGINES
from benchmarks.memory import drawn_text, run_command
from benchmarks.server import Answer, rounds_row
from benchmarks.speech import SENTENCES, text_of_chunks
from tests.bench.in_process import InProcessWorker


def test_a_quick_run_writes_the_shared_record(tmp_path, monkeypatch):
    monkeypatch.setattr(speech, "WorkerProcess", InProcessWorker)
    monkeypatch.setattr(harness, "usable_cores", lambda: 1)
    main(["--quick", "--only", "stream", "-o", str(tmp_path)])
    found = json.loads((tmp_path / "stream.json").read_text())
    assert found["benchmark"] == "stream"
    assert found["machine"].keys() >= {"chip", "cores", "os", "python", "packages", "commit", "date", "load_average"}
    rows = [read_row(row) for row in found["rows"]]
    assert [row.settings["chunks"] for row in rows] == [1, 2]
    for row in rows:
        assert row.error is None
        assert 0 < row.value.low <= row.value.median <= row.value.high
        assert row.figures.keys() >= {"decode_s", "vocode_s", "tokens_per_s", "audio_s"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"name a benchmark \(sentence"),
        (["--quick", "--only", "nothing"], "--only nothing: choose from sentence"),
        (["sentence", "--competitors", "abacus"], "--competitors abacus: choose from upstream, torch"),
        (["sentence", "--competitors", "upstream"], "upstream reads only official files: add --upstream-python"),
        (["sentence", "--cases", "two"], "--cases two: choose from one"),
        (["memory", "--commands", "sing"], "--commands sing: choose from say"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(arguments, message):
    with pytest.raises(UserError, match=message):
        main(arguments)


def test_every_benchmark_takes_its_quick_options_and_shows_its_help(capsys):
    for name, benchmark in BENCHMARKS.items():
        if benchmark.quick is not None:
            arguments_parser().parse_args([name, *benchmark.quick.split(), "-o", "result.json"])
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert "--output" in capsys.readouterr().out


def test_the_table_has_a_column_for_every_setting_that_differs_and_every_figure():
    rows = [
        BenchRow("torch", "step", settings={"lanes": 1, "threads": 2}, value=Spread.of([2.0]), peak_bytes=10**9),
        BenchRow("onnx", "step", settings={"lanes": 4, "threads": 2}, value=Spread.of([1.0]), figures={"a_b": 3.0}),
        BenchRow("mil", "step", error="no packages"),
    ]
    headings, cells = table_cells(rows)
    assert headings == ["competitor", "what", "lanes", "threads", "ms", "a b", "peak GB", "error"]
    assert cells[0] == ["torch", "step", "1", "2", "2 ±0%", "–", "1", ""]
    assert cells[2] == ["mil", "step", "–", "–", "–", "–", "–", "no packages"]
    assert table_cells(rows[:2])[0][2:4] == ["lanes", "ms"]


def test_a_text_of_some_chunks_is_spoken_in_so_many(random_bundle):
    for model in (open_model(random_bundle), open_model("demo")):
        for count in (1, 4, len(SENTENCES) + 1):
            settings = TortoiseSettings.of(model=model.settings)
            assert len(split_into_chunks(text_of_chunks(count), model, settings)) == count


def test_a_process_is_measured_and_its_failure_named():
    seconds, peak, _ = run_command(sys.executable, "-c", "import time; time.sleep(0.5)")
    assert peak < 50e6  # and not this process's own memory, with which the system's count of a new process starts
    assert seconds > 0
    assert peak > 1e6
    with pytest.raises(UserError, match="status 3 from"):
        run_command(sys.executable, "-c", "raise SystemExit(3)")
    assert 800 < len(drawn_text(1)) < 2 * memory.CHARACTERS_PER_MINUTE


def test_sounds_of_a_server_are_counted_when_lost_or_other_than_alone():
    alone = [Answer(0.1, 0.2, bytes([number])) for number in range(len(server.TEXTS))]
    answers = [Answer(0.1, 0.5, bytes([0])), Answer(0.3, 0.5, b"other"), Answer(0.2, 0.5, None)]
    figures = rounds_row("all at once", "demo", [(2.0, answers)], alone).figures
    assert (figures["lost"], figures["bytes_as_alone"]) == (1, pytest.approx(1 / 3))
    assert figures["first_sound_p50_s"] == np.float64(0.2)


ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def run(*arguments: str, expected: int = 0) -> str:
    """Run the script with this interpreter, which PATH does not have."""
    done = subprocess.run(
        [str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": os.defpath, "PYTHON": sys.executable},
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_dry_run_writes_nothing_and_lists_wheels_and_steps_that_their_programs_accept(tmp_path):
    """The benchmarks also accept the competitors."""
    output, known = tmp_path / "results", {"sentence", "stream"}
    lines = run("--dry-run", "-o", str(output)).splitlines()
    assert not output.exists()
    assert "onnxruntime-gpu>=1.27" in lines[0]
    steps = [line.split()[2].rstrip(",") for line in lines if line.startswith("to run")]
    assert steps[:4] == ["machine", "tests", "checkpoints", "sentence-torch"]
    listed = [shlex.split(line) for line in lines if line.startswith("         ")]
    seen: set[str] = set()
    for name, words in zip(steps, listed, strict=True):
        start = words.index("-m") + 1
        module, arguments = words[start], words[start + 1 :]
        arguments = arguments[: arguments.index(">")] if ">" in arguments else arguments
        if module == "benchmarks":
            options = arguments_parser().parse_args(arguments)
            if arguments[0] in known:
                seen.add(arguments[0])
                assert {name.partition(":")[0] for name in options.competitors} <= set(ENGINES)
                assert options.output == output / f"{name}.json"
        elif module == "ane":
            cli.parser().parse_args(arguments)
        elif module != "tests.fastspeech_files":
            assert module == "pytest"
            assert (ROOT / arguments[0]).is_dir()
    assert seen == known


def test_steps_that_succeeded_are_skipped_failed_ones_run_again_and_an_unknown_option_is_an_error(tmp_path):
    for name, status in (("machine", 0), ("tests", 1)):
        (tmp_path / f"{name}.step.json").write_text(json.dumps({"exit_status": status}, indent=1))
    printed = run("--dry-run", "--only", "machine,tests", "-o", str(tmp_path))
    assert "done     machine" in printed
    assert "to run   tests" in printed
    assert "sentence" not in printed
    assert "unknown option --fast" in run("--fast", expected=2)


def test_a_step_writes_its_result_and_its_status_and_none_starts_when_the_time_is_used_up(tmp_path):
    assert run("--minutes", "0", "--only", "machine,tests", "-o", str(tmp_path)).split("\n")[:2] == [
        "no time  machine",
        "no time  tests",
    ]
    assert not (tmp_path / "machine.step.json").exists()
    assert "ok       machine" in run("--only", "machine", "-o", str(tmp_path))
    assert json.loads((tmp_path / "machine.json").read_text())["works"]
    status = json.loads((tmp_path / "machine.step.json").read_text())
    assert (status["step"], status["exit_status"], status["timed_out"]) == ("machine", 0, False)
    assert "done     machine" in run("--only", "machine", "-o", str(tmp_path))


def test_wheels_are_split_into_parts_and_joined(tmp_path):
    wheel = tmp_path / "large-1.0-py3-none-any.whl"
    content = bytes(range(256)) * 400_000  # 102 MB, which are copied in three parts
    wheel.write_bytes(content)
    run("--split", str(tmp_path))
    parts = sorted(path.name for path in tmp_path.glob("*.part-*"))
    assert parts == [f"{wheel.name}.part-00{number}" for number in range(3)]
    assert not wheel.exists()
    joined = tmp_path / "joined"
    source = SCRIPT.read_text().partition("\nwhile [ $# -gt 0 ]")[0].replace('cd "$(dirname "$0")/.."', "")
    join = ["bash", "-c", f'{source}\njoin_wheels "$1" "$2"', "gpu.sh", str(tmp_path), str(joined)]
    subprocess.run(join, check=True)
    assert (joined / wheel.name).read_bytes() == content
    (tmp_path / parts[1]).write_bytes(b"damaged")
    failed = subprocess.run(join, capture_output=True, text=True)
    assert failed.returncode == 2
    assert "is damaged or incomplete" in failed.stderr
