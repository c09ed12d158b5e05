"""Every script of examples/ runs in an empty folder, and examples/README.md lists each of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_runs_and_prints_what_it_made(script: Path, tmp_path: Path):
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for file in re.findall(r"\w+\.wav", done.stdout):
        assert (tmp_path / file).stat().st_size > 10_000
    assert done.stdout.strip()
    assert not done.stderr


def test_the_list_of_examples_names_each_script_once():
    listed = re.findall(r"(?m)^\| `(\w+\.py)`", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [script.name for script in SCRIPTS]
