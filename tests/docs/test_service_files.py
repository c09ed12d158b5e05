"""The files of docs/server.md that start the server with the system are ones that the system accepts."""

import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ane.cli import parser

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")


def block(begin: str) -> str:
    [found] = re.findall(rf"```text\n({re.escape(begin)}.*?)```", PAGE, re.DOTALL)
    return found


def accepted(command: list[str]) -> bool:
    """Whether the command line of `ane` knows these arguments."""
    return parser().parse_args(command).handler is not None


def test_the_systemd_unit(tmp_path):
    unit = block("[Unit]")
    [line] = re.findall(r"^ExecStart=\S+ (.*)$", unit, re.MULTILINE)
    assert accepted(line.split())
    if shutil.which("systemd-analyze") is None:
        pytest.skip("the unit's keys were not checked: needs systemd-analyze")
    (tmp_path / "ane.service").write_text(unit.replace("%h/.venv/bin/ane", sys.executable))
    found = subprocess.run(["systemd-analyze", "verify", str(tmp_path / "ane.service")], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_launchd_file():
    content = plistlib.loads(block("<?xml").encode())
    assert accepted(content["ProgramArguments"][1:])
    assert content["KeepAlive"] == {"SuccessfulExit": False}
    assert content["ExitTimeOut"] > 30          # what the server has to end its requests


def test_the_container_runs_a_command_that_exists():
    [command] = re.findall(r"^CMD (\[.*\])$", block("FROM"), re.MULTILINE)
    assert accepted([word.strip('"') for word in command.strip("[]").split(", ")][1:])
