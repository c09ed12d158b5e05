"""Test that `.ci/readme` runs README's commands unchanged, in a fresh clone, without the caller's environment."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_commands import ROOT, blocks

COMMANDS = [block.text for block in blocks(ROOT / "README.md") if block.reason == "`.ci/run` runs it"]
GIT = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c"]
# program that stands for python3, pip, ane and python. It logs its arguments, and makes environments of such programs
PROGRAM = f"""#!{sys.executable}
import json, os, shutil, sys
call = {{"name": os.path.basename(sys.argv[0]), "words": sys.argv[1:], "variables": sorted(os.environ),
        "path": os.environ["PATH"], "input": sys.stdin.read(), "folder": os.getcwd()}}
with open("calls", "a") as file:
    file.write(json.dumps(call) + "\\n")
if sys.argv[1:3] == ["-m", "venv"]:
    os.makedirs(sys.argv[3] + "/bin")
    for name in ("pip", "ane", "python"):
        shutil.copy(sys.argv[0], f"{{sys.argv[3]}}/bin/{{name}}")
sys.exit("pytest" in sys.argv)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with this README and `.ci`, and a folder `bin` with the stand-in of python3 next to it."""
    repository, programs = tmp_path / "repository", tmp_path / "bin"
    shutil.copytree(ROOT / ".ci", repository / ".ci")
    shutil.copy(ROOT / "README.md", repository)
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*GIT, *command], cwd=repository, check=True)
    (repository / "uncommitted").touch()
    programs.mkdir()
    (programs / "python3").write_text(PROGRAM)
    (programs / "python3").chmod(0o755)
    return repository


@pytest.mark.parametrize("number", [1, 2])
def test_a_command_of_readme_runs_as_written_in_a_fresh_clone(repository: Path, tmp_path: Path, number: int) -> None:
    environment = tmp_path / "environment" / "bin"
    environment.mkdir(parents=True)
    (environment.parent / "pyvenv.cfg").touch()
    path = os.pathsep.join([str(environment), str(tmp_path / "bin"), os.defpath])
    clone = tmp_path / "clone"
    done = subprocess.run(
        [repository / ".ci" / "readme", str(number), clone],
        capture_output=True,
        text=True,
        input="typed",
        env={**os.environ, "PATH": path, "PYTHONPATH": "/elsewhere"},
    )
    assert done.returncode == (number == 2), done.stderr  # the exit status is the status of the command
    calls = [json.loads(line) for line in (clone / "calls").read_text().splitlines()]
    expected = [shlex.split(part) for part in COMMANDS[number - 1].split("&&")]
    assert [[call["name"], *call["words"]] for call in calls] == [[Path(name).name, *rest] for name, *rest in expected]
    for call in calls:
        assert {*call["variables"]} - {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"} == {"HOME", "PATH"}
        assert call["path"] == os.pathsep.join([str(tmp_path / "bin"), os.defpath])
        assert (call["input"], call["folder"]) == ("", str(clone))
    assert not (clone / "uncommitted").exists()


def test_a_readme_without_the_command_is_an_error(repository: Path, tmp_path: Path) -> None:
    done = subprocess.run([repository / ".ci" / "readme", "3", tmp_path / "clone"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "README.md has no command 3 that .ci/run runs\n")


def test_ci_runs_every_command_that_pages_leave_to_it() -> None:
    assert len(COMMANDS) == 2
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line.split()[1] for line in script if line.startswith(".ci/readme ")] == ["1", "2"]
