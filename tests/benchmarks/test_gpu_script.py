"""benchmarks/gpu.sh, for a machine with an NVIDIA GPU and no network: its steps, how it resumes, and its wheels."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from ane import cli
from benchmarks.__main__ import arguments_parser
from benchmarks.harness import ENGINES

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def run(*arguments: str, expected: int = 0) -> str:
    done = subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


def commands(output: Path) -> dict[str, list[str]]:
    """The commands of the dry run, by step."""
    lines = run("--dry-run", "-o", str(output)).splitlines()
    steps = [line.split()[2].rstrip(",") for line in lines if line.startswith("to run")]
    listed = [shlex.split(line) for line in lines if line.startswith("         ")]
    return dict(zip(steps, listed, strict=True))


def test_the_script_is_valid_bash():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_the_dry_run_lists_wheels_and_steps_in_order_and_writes_nothing(tmp_path):
    output = tmp_path / "results"
    assert "onnxruntime-gpu>=1.27" in run("--dry-run", "-o", str(output)).splitlines()[0]
    assert list(commands(output))[:4] == ["machine", "tests", "checkpoints", "sentence-torch"]
    assert not output.exists()


def test_every_command_is_one_that_its_program_accepts(tmp_path):
    """The benchmarks also accept the competitors."""
    known = {"sentence", "stream"}
    seen: set[str] = set()
    for name, words in commands(tmp_path).items():
        start = words.index("-m") + 1
        module, arguments = words[start], words[start + 1:]
        arguments = arguments[:arguments.index(">")] if ">" in arguments else arguments
        if module == "benchmarks":
            options = arguments_parser().parse_args(arguments)
            if arguments[0] in known:
                seen.add(arguments[0])
                assert {name.partition(":")[0] for name in options.competitors} <= set(ENGINES)
                assert options.output == tmp_path / f"{name}.json"
        elif module == "ane":
            cli.parser().parse_args(arguments)
        else:
            assert module == "pytest"
            assert (ROOT / arguments[0]).is_dir()
    assert seen == known


def test_steps_that_succeeded_are_skipped_and_failed_ones_run_again(tmp_path):
    for name, status in (("machine", 0), ("tests", 1)):
        (tmp_path / f"{name}.step.json").write_text(json.dumps({"exit_status": status}, indent=1))
    printed = run("--dry-run", "--only", "machine,tests", "-o", str(tmp_path))
    assert "done     machine" in printed
    assert "to run   tests" in printed
    assert "sentence" not in printed


def test_a_step_writes_its_result_and_its_status(tmp_path):
    assert "ok       machine" in run("--only", "machine", "-o", str(tmp_path))
    assert json.loads((tmp_path / "machine.json").read_text())["works"]
    status = json.loads((tmp_path / "machine.step.json").read_text())
    assert (status["step"], status["exit_status"], status["timed_out"]) == ("machine", 0, False)
    assert "done     machine" in run("--only", "machine", "-o", str(tmp_path))


def test_no_step_starts_when_the_time_is_used_up(tmp_path):
    assert run("--minutes", "0", "--only", "machine,tests", "-o", str(tmp_path)).split("\n")[:2] == [
        "no time  machine", "no time  tests"]
    assert not (tmp_path / "machine.step.json").exists()


def test_wheels_are_split_into_parts_and_joined(tmp_path):
    wheel = tmp_path / "large-1.0-py3-none-any.whl"
    content = bytes(range(256)) * 400_000           # 102 MB: three parts
    wheel.write_bytes(content)
    run("--split", str(tmp_path))
    parts = sorted(path.name for path in tmp_path.glob("*.part-*"))
    assert parts == [f"{wheel.name}.part-00{number}" for number in range(3)]
    assert not wheel.exists()
    joined = tmp_path / "joined"
    source = SCRIPT.read_text().partition("\nwhile [ $# -gt 0 ]")[0].replace('cd "$(dirname "$0")/.."', "")
    subprocess.run(["bash", "-c", f'{source}\njoin_wheels "$1" "$2"', "gpu.sh", str(tmp_path), str(joined)], check=True)
    assert (joined / wheel.name).read_bytes() == content
    (tmp_path / parts[1]).write_bytes(b"damaged")
    failed = subprocess.run(["bash", "-c", f'{source}\njoin_wheels "$1" "$2"', "gpu.sh", str(tmp_path), str(joined)],
                            capture_output=True, text=True)
    assert failed.returncode == 2
    assert "is damaged or incomplete" in failed.stderr


def test_an_unknown_option_is_an_error():
    assert "unknown option --fast" in run("--fast", expected=2)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_the_description(flag):
    assert "45 minutes without a network" in run(flag)
