"""Test that every example runs in an empty folder, and that examples/README.md lists every example."""

import json
import re
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")])
RUN_SCRIPT = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
# runs the code cells of a notebook, and shows the value at the end of a cell as a notebook does
RUN_CELLS = """
import ast, json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    body = ast.parse("".join(cell["source"])).body if cell["cell_type"] == "code" else []
    shown = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    value = shown and eval(compile(shown, "cell", "eval"), names)
    if value is not None:
        print(value._repr_html_()[:40])
"""


@pytest.mark.parametrize("example", FILES, ids=lambda example: example.name)
def test_an_example_runs_and_prints_what_it_made(example: Path, tmp_path: Path, python: Path):
    program = RUN_SCRIPT if example.suffix == ".py" else RUN_CELLS
    done = subprocess.run([python, "-c", program, example], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for file in re.findall(r"\w+\.wav", done.stdout):
        assert (tmp_path / file).stat().st_size > 10_000
    assert done.stdout.strip()
    assert not done.stderr


def test_a_notebook_holds_no_outputs():
    for notebook in EXAMPLES.glob("*.ipynb"):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")], "clear all outputs"


def test_the_list_of_examples_names_each_file_once():
    listed = re.findall(r"(?m)^\| `(\w+\.(?:py|ipynb))`", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [file.name for file in FILES]
