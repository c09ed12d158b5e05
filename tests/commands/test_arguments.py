"""Test the parts that all commands share (help, flags, values, progress), and `ane doctor`."""

import argparse
import errno
import io
import json
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from ane.cli import COMMANDS, SUMMARIES, describe_error, main, parser, with_flags
from ane.commands import doctor
from ane.commands.arguments import counts, natural, pair, positive
from ane.commands.defaults import apply_defaults
from ane.commands.doctor import Finding
from ane.commands.messages import INTERVAL, ProgressDisplay
from ane.system.errors import UserError
from ane.system.interruption import Interruptions


def leaves(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [leaf for action in nested for command in action.choices.values() for leaf in leaves(command)] or [parser]


def test_every_command_has_verbose_and_quiet():
    commands = leaves(parser())
    assert len(commands) >= 15
    for command in commands:
        assert {"--verbose", "--quiet", "-q"} <= command._option_string_actions.keys(), command.prog


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (positive, "0"),
        (positive, "-1"),
        (positive, "x"),
        (natural, "1.5"),
        (natural, "-1"),
        (natural, "²"),
        (natural, "9" * 5000),
        (counts, "1,,2"),
        (counts, "1,0"),
        (pair, "20"),
        (pair, "a,b"),
    ],
)
def test_values_of_another_type_are_refused(read, text):
    with pytest.raises(argparse.ArgumentTypeError):
        read(text)
    assert counts("16, 1,8,8") == (1, 8, 16)


@pytest.mark.parametrize(
    ("parameter", "message", "line"),
    [
        ("", "the driver is too old, use backend=torch:cpu", "the driver is too old, use --backend torch:cpu"),
        ("lanes", "lanes must be from 1 to 128, got 0", "--lanes must be from 1 to 128, got 0"),
        ("memory", "memory has no effect on the backend onnx", "--memory has no effect on the backend onnx"),
        ("", "x exists: add overwrite=True to replace it", "x exists: add --force to replace it"),
        ("", "CUDA_VISIBLE_DEVICES=0 and unknown=1 stay", "CUDA_VISIBLE_DEVICES=0 and unknown=1 stay"),
    ],
)
def test_a_parameter_in_an_error_of_the_library_becomes_the_flag_of_the_command(parameter, message, line):
    parser = argparse.ArgumentParser()
    for flag in ("--backend", "--lanes", "--memory"):
        parser.add_argument(flag)
    parser.add_argument("--force", dest="overwrite", action="store_true")
    assert with_flags(UserError(message, parameter), parser) == line


def test_a_full_disk_is_called_full():
    args = parser().parse_args(["doctor"])
    for error in (
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a.wav"),
        UserError(f"cannot write a.wav: {os.strerror(errno.ENOSPC)}"),
    ):
        assert describe_error(error, Interruptions(), args)[1].endswith("a.wav: the disk is full")


def test_a_command_limits_the_kernels_that_onednn_keeps(monkeypatch, capsys):
    """Else memory grows with the number of lengths that a long text has; the user's own limit stays."""
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    for command, before, after in (("read", None, "64"), ("serve", None, "256"), ("serve", "500", "500")):
        monkeypatch.setenv(name, before or "")
        if before is None:
            monkeypatch.delenv(name)
        assert main([command, *(["--models", "no-such-model"] if command == "serve" else [])]) == 1
        assert os.environ[name] == after


def test_without_a_terminal_progress_is_a_plain_line_every_few_seconds():
    now, output = [0.0], io.StringIO()
    with ProgressDisplay(Console(file=output), shown=True, clock=lambda: now[0]) as progress:
        for done in range(1, 11):
            now[0] += INTERVAL / 2
            progress.update("decode", done, 10, "")
    assert output.getvalue().splitlines() == [f"candidates spoken: {done} of 10" for done in (2, 4, 6, 8, 10)]


def findings(capsys) -> dict[str, dict]:
    status = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["works"] == (status == 0)
    return {finding["subject"]: finding for finding in report["findings"]}


def test_this_machine_can_speak_and_every_gap_has_a_remedy(capsys):
    found = findings(capsys)
    for subject in ("python", "backend torch", "bundle demo", "cache folder", "data folder"):
        assert found[subject]["state"] == "ok"
    assert found.keys() >= {"backend coreml", "backend mlx", "backend onnx", "playback", "fastapi", "av", "ray"}
    assert all(finding["fix"] for finding in found.values() if finding["state"] == "missing")


def test_a_missing_optional_package_is_named_with_the_command_that_installs_it(monkeypatch, succeed):
    def missing(package: str) -> str:
        raise doctor.PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", missing)
    printed = succeed("doctor")
    assert "pip install '.[check]'" in printed
    assert "`ane say` works here." in printed


def test_the_status_is_1_only_when_ane_say_cannot_work(monkeypatch, capsys):
    monkeypatch.setenv("ANE_HOME", "/dev/null")
    found = findings(capsys)
    assert found["cache folder"]["state"] == found["data folder"]["state"] == "missing"
    broken = Finding("backend torch", "broken", "no torch", "pip install torch")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: [broken],))
    assert main(["doctor"]) == 1
    assert "to fix it: pip install torch" in capsys.readouterr().out


def test_versions_of_onnx_runtime_and_torch_that_do_not_fit_are_shown(monkeypatch, capsys):
    import onnxruntime

    from ane.backends.onnx import providers
    from ane.backends.onnx.providers import GpuVersions

    versions = GpuVersions("1.31.1", "13.0", "2.10.0+cu128", "12.8")
    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    monkeypatch.setattr(providers, "installed_versions", lambda ort: versions)
    found = findings(capsys)
    assert found["backend onnx"]["detail"] == (
        "onnxruntime 1.31.1 for CUDA 13.0, torch 2.10.0+cu128 for CUDA 12.8, with the providers CUDA, CPU"
    )
    assert found["backend onnx:cuda"]["state"] == "missing"
    assert "install both for the same CUDA" in found["backend onnx:cuda"]["detail"]
    assert "pip install" in found["backend onnx:cuda"]["fix"]
    assert "backend onnx:tensorrt" not in found


def test_help_lists_each_command_with_its_own_summary_without_importing_it():
    [every] = [action for action in parser()._actions if hasattr(action, "_choices_actions")]
    assert {choice.dest: choice.help for choice in every._choices_actions} == SUMMARIES
    listed = subprocess.run([sys.executable, "-X", "importtime", "-m", "ane", "--help"], capture_output=True, text=True)
    assert listed.returncode == 0
    assert all(summary in listed.stdout for summary in SUMMARIES.values())
    imported = set(re.findall(r"\|\s+([\w.]+)$", listed.stderr, re.MULTILINE))
    assert not imported & {"torch", "numpy", "pydantic", "ane.commands.say", "ane.speech.speaker", "onnxruntime"}


def test_the_default_voice_speaks_without_torch_coremltools_or_scipy(tmp_path):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ane", "say", "Hello.", "-o", str(tmp_path / "a.wav")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    imported = set(re.findall(r"\|\s+([\w.]+)$", done.stderr, re.MULTILINE))
    assert "onnxruntime" in imported
    assert not imported & {"torch", "coremltools", "scipy", "onnx", "transformers", "av", "miniaudio"}


CONFIG = (
    'voice = "heart"\nbundle = "demo"\nspeed = 0.9\nbackend = "torch"\nthreads = 2\n'
    "[read]\nloudness = -19\nper-chapter = true\n[voices]\nseed = 3\n[bench]\nruns = 3\n"
)


@pytest.mark.parametrize(
    ("command", "variables", "expected"),
    [
        ("say x", {}, {"voice": "heart", "bundle": "demo", "speed": 0.9, "backend": "torch", "threads": 2}),
        ("bench", {}, {"bundle": "demo", "backend": None, "threads": None, "runs": 3}),
        ("say x", {"ANE_VOICE": "michael"}, {"voice": "michael", "bundle": "demo"}),
        ("say x -v anna --speed 2", {"ANE_VOICE": "michael"}, {"voice": "anna", "speed": 2.0}),
        ("say x", {"ANE_VOICE": "", "ANE_BUNDLE": "heart"}, {"voice": "heart", "bundle": "heart"}),
        ("read b.md", {}, {"loudness": -19.0, "per_chapter": True, "speed": 0.9}),
        ("read b.md --loudness -16", {}, {"loudness": -16.0}),
        ("voices list", {"ANE_BUNDLE": "heart"}, {"bundle": "heart", "json": False}),
        ("voices add a.wav -o a", {}, {"seed": 3}),
        ("verify --package a", {"ANE_BUNDLE": "heart"}, {"bundle": "heart"}),
        ("export-swift --bundle demo -o a", {}, {"voice": None}),
        ("export-swift --bundle demo -o a -v anna", {"ANE_VOICE": "michael"}, {"voice": ["anna"]}),
    ],
)
def test_a_flag_precedes_the_environment_which_precedes_the_file(workplace, monkeypatch, command, variables, expected):
    (workplace / "home").mkdir()
    (workplace / "home" / "config.toml").write_text(CONFIG, encoding="utf-8")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    top = parser(command.split()[0])
    apply_defaults(top, COMMANDS)
    args = vars(top.parse_args(command.split()))
    assert {name: args[name] for name in expected} == expected
