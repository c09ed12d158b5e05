"""Test that one line reports a Python or a Mac that is too old, at the start and in `ane doctor`."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ane import __main__ as command
from ane.commands import doctor
from ane.system import machine, requirements
from ane.system.requirements import NEWEST_PYTHON, OLDEST_PYTHON, mac_problem, python_problem

ROOT = Path(__file__).parents[2]
READ_BY_ALL = (
    "ane/__init__.py",
    "ane/__main__.py",
    "ane/system/__init__.py",
    "ane/system/errors.py",
    "ane/system/requirements.py",
)


def old_python() -> str | None:
    """Return a Python older than the oldest: on PATH, or of pyenv."""
    names = [f"python3.{minor}" for minor in range(OLDEST_PYTHON[1] - 1, 7, -1)]
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    return next(
        (
            found
            for name in [*names, *map(str, pyenv)]
            if (found := shutil.which(name))
            and subprocess.run(
                [found, "-c", f"import sys; sys.exit(not (3, 8) <= sys.version_info[:2] < {OLDEST_PYTHON})"],
                stderr=subprocess.DEVNULL,
            ).returncode
            == 0
        ),
        None,
    )


def test_the_versions_of_python_are_those_of_the_package() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert wanted == ">={}.{},<{}.{}".format(*OLDEST_PYTHON, NEWEST_PYTHON[0], NEWEST_PYTHON[1] + 1)
    assert [bool(python_problem((3, minor, 1))) for minor in range(9, 16)] == [
        True,
        True,
        False,
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("file", READ_BY_ALL)
def test_an_old_python_can_read_what_tells_it(file: str) -> None:
    ast.parse((ROOT / file).read_text(), feature_version=(3, 8))


@pytest.mark.skipif("old_python() is None", reason="needs a Python 3.8 to 3.10: pyenv install 3.10")
def test_an_old_python_is_told_in_one_line() -> None:
    done = subprocess.run([old_python(), "-m", "ane", "say", "Hello"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(
        r"ane: Python 3\.\d+ cannot run tortoise-ane, which needs Python 3\.11 to 3\.13: install it "
        r"with `uv tool install --python 3\.12 \.`, which .*\n",
        done.stderr,
    )


@pytest.fixture
def pretended_mac(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A Mac with a processor and a system; ``sysctl`` says whether Rosetta translates this process."""
    processor, translated, version = request.param
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(requirements.platform, "machine", lambda: processor)
    monkeypatch.setattr(requirements.platform, "mac_ver", lambda: ("10.16", ("", "", ""), processor))
    monkeypatch.setattr(machine, "printed", lambda *command: version if command[0] == "sw_vers" else translated)
    machine.macos_version.cache_clear()
    yield
    machine.macos_version.cache_clear()


PROBLEMS = [
    (("x86_64", "1", "15.5"), "this Python is for Intel processors and runs under Rosetta"),
    (("x86_64", "", "15.5"), "this Mac has an Intel processor"),
    (("arm64", "", "13.7.2"), "this Mac has macOS 13.7.2, and tortoise-ane needs macOS 14 or newer"),
]


@pytest.mark.parametrize(("pretended_mac", "problem"), PROBLEMS, indirect=["pretended_mac"])
def test_a_mac_that_cannot_run_it_is_told_at_the_start_and_by_doctor(
    pretended_mac: None, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    importlib.import_module("ane.cli")  # finds the module that `main` finds, even if a test has imported it again
    monkeypatch.setattr(sys.modules["ane.cli"], "main", lambda: 0)
    assert command.main() == 0
    assert capsys.readouterr().err.startswith(f"ane: {problem}")
    [finding] = [one for one in doctor.check_machine() if one.state == "broken"]
    assert finding.detail.startswith(problem)
    assert finding.fix


@pytest.mark.parametrize("pretended_mac", [("arm64", "", "14.0"), ("arm64", "", "26.4")], indirect=True)
def test_a_mac_that_can_run_it_is_told_nothing(pretended_mac: None) -> None:
    assert mac_problem() == ""
