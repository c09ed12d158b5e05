"""Test that no library reports its use or leaves files of its own on the user's machine."""

import os
import subprocess
from pathlib import Path

import pytest

from ane.system.reports import SWITCHES, switch_off_reports

# ONNX Runtime also reports nothing if it finds that it runs in CI or in its own tests
HIDDEN = {*SWITCHES, "CI", "GITHUB_ACTIONS", "TF_BUILD", "ORT_RUNNING_UNIT_TESTS", "ANE_HOME", "XDG_CACHE_HOME"}
PROGRAMS = {
    "command": "from ane.cli import main; main(['say', 'Hello.', '-o', 'a.wav'])",
    "api": "import ane; ane.load().speak('Hello.')",
    "doctor": "from ane.cli import main; main(['doctor'])",
    "converter": "from converters.onnx.onnx_package import require_libraries; require_libraries()",
}
FRESH = "import sys; assert 'onnxruntime' not in sys.modules, 'it would have reported before'\n"


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_onnx_runtime_leaves_no_identifier_of_the_machine_and_no_file(tmp_path: Path, python: Path, program: str):
    home, temporary, work = (tmp_path / name for name in ("home", "temporary", "work"))
    for folder in (home, temporary, work):
        folder.mkdir()
    env = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    env |= {"HOME": str(home), "TMPDIR": str(temporary)}
    subprocess.run([python, "-c", FRESH + program], cwd=work, env=env, check=True, stdout=subprocess.DEVNULL)
    left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in left if "tortoise-ane" not in path and path != "work/a.wav"] == []


def test_a_variable_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    switch_off_reports()
    assert [os.environ[name] for name in SWITCHES] == ["0", "0"]
