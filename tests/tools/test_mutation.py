"""Test the program that samples mutants, on a project with one module."""

import asyncio
import json
import sys
from functools import cache
from types import SimpleNamespace

import pytest

from tools.mutation.__main__ import TreeCopy, draw, main, nearest_first, score
from tools.mutation.mutants import find_mutants
from tools.mutation.reach import Reach, instrumented, measure

MODULE = '''"""A number in a range, or 0 – with "ü" before it."""

LOW = 2


def clamp(value: int, high: int = 10) -> int:
    """Not below LOW."""
    note = f"{value + 1}"
    value += 0
    if value < LOW or not note:
        return LOW
    return min(value, high)
'''
TESTS = """import pytest
from ane.ranges import clamp


@pytest.mark.parametrize("values", [(1, 2, 9, 11)], ids=["an id with spaces"])
def test_values_are_clamped(values):
    assert [clamp(value) for value in values] == [2, 2, 9, 10]
"""


@pytest.fixture
def project(tmp_path):
    for name, text in (("ane/__init__.py", ""), ("ane/ranges.py", MODULE), ("tests/test_ranges.py", TESTS)):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(text, encoding="utf-8")
    return tmp_path / "project"


def lines(mutants):
    """The new lines of each mutant."""
    return {line[1:].strip() for mutant in mutants for line in mutant.diff.splitlines()[3:] if line.startswith("+")}


def test_mutants_change_one_place_and_no_docstring_annotation_or_f_string():
    mutants = find_mutants("ane.ranges", MODULE)
    assert lines(mutants) >= {
        "LOW = (3)",
        "LOW = (1)",
        "def clamp(value: int, high: int = (11)) -> int:",
        "return None",
        "pass",
        "if (value <= LOW) or not note:",
        "if (value < LOW and (not note)):",
        "if value < LOW or (note):",
    }
    assert len(mutants) == len({mutant.key for mutant in mutants})
    for mutant in mutants:
        assert len([line for line in mutant.diff.splitlines() if line.startswith("+") and line[:3] != "+++"]) == 1
        assert 'f"{value + 1}"' in mutant.source
        assert '"""Not below LOW."""' in mutant.source


def test_a_sample_depends_on_its_seed_alone_and_tests_that_take_too_long_are_ended(project):
    first, again, other = (draw(project, ["ane.ranges"], seed, 5) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 5
    assert TreeCopy(project, 0.01).run("tests") == ("timeout", "")


def test_sound_relevant_tests_a_mutant_kill_it_and_survivors_are_tried_again(project, tmp_path, monkeypatch, capsys):
    output, every = tmp_path / "results.json", find_mutants("ane.ranges", MODULE)
    chosen = [
        next(mutant for mutant in every if line in mutant.diff.partition("+++")[2])
        for line in ("high: int = (11)", "value <= LOW")
    ]
    monkeypatch.setattr("tools.mutation.__main__.draw", lambda *arguments: chosen)
    monkeypatch.setattr(
        "tools.mutation.__main__.ALL_TESTS", (sys.executable, "-m", "pytest", "-q", "--disable-plugin-autoload")
    )

    def mutate() -> list[dict]:
        assert main(["--modules", "ane.ranges", "--root", str(project), "-o", str(output)]) == 0
        found = json.loads(output.read_text(encoding="utf-8"))["mutants"]
        assert json.loads(capsys.readouterr().out) == score(found)
        return found

    assert [(result["verdict"], result.get("by", "").partition("::")[2]) for result in mutate()] == [
        ("killed", "test_values_are_clamped"),
        ("survived", ""),
    ]
    assert (project / "ane" / "ranges.py").read_text(encoding="utf-8") == MODULE
    (project / "tests" / "test_broken.py").write_text(
        "from ane.ranges import clamp\ndef test_broken():\n    assert clamp(3) != 3", encoding="utf-8"
    )
    (project / "tests" / "test_more.py").write_text(
        "from ane.ranges import clamp\ndef test_more():\n    assert clamp(2.0) is not 2", encoding="utf-8"
    )
    assert [result["verdict"] for result in mutate()] == ["killed"] * 2
    results = json.loads(output.read_text(encoding="utf-8"))
    assert (results["score"], results["left out"]) == (1.0, ["tests/test_broken.py::test_broken"])


def test_calls_of_a_function_are_reported_also_from_a_child_process_and_constants_belong_to_who_names_them(project):
    (project / "tests" / "test_more.py").write_text(
        "import os, subprocess, sys\ndef test_in_a_child():\n"
        "    subprocess.run([sys.executable, '-c', 'from ane.ranges import clamp; clamp(1)'], check=True)\n"
        "def test_of_nothing():\n    import ane.ranges",
        encoding="utf-8",
    )
    (project / "reports").mkdir()
    reached = measure(project, [sys.executable, "-m", "pytest", "-q", "--disable-plugin-autoload"], project / "reports")
    tests = {"tests/test_ranges.py::test_values_are_clamped[an id with spaces]", "tests/test_more.py::test_in_a_child"}
    assert {name: set(found) for name, found in reached.items()} == {"ane.ranges:clamp": tests}
    reach = Reach(reached, {"ane.ranges": MODULE}, {"tests/test_low.py": "LOW", "tests/test_lower.py": "LOWER"})
    assert set(reach.tests("ane.ranges", 3)) == {*tests, "tests/test_low.py"}  # the function and a file name it
    for line in (6, 10):  # the function's parameters, and its body
        assert set(reach.tests("ane.ranges", line)) == tests
    assert set(reach.tests("ane.ranges", 1)) == tests  # a line that belongs to nothing: all tests of the module


SHAPES = """class A:
    def one(self): return 1
    async def two(self, x=3,
                  y=4): return x
    @property
    def three(self):
        \"\"\"Doc.\"\"\"
        @cache
        def four():
            return "ü"
        return four()
    def five(self): ...
"""


def test_each_function_with_statements_gets_a_probe_at_its_start(monkeypatch):
    source = instrumented("m", SHAPES)
    notes = []
    monkeypatch.setitem(sys.modules, "ane._reached", SimpleNamespace(note=notes.append))
    exec(source, names := {"cache": cache})
    shape = names["A"]()
    assert (shape.one(), asyncio.run(shape.two()), shape.three, shape.five()) == (1, 3, "ü", None)
    assert notes == ["m:A.one", "m:A.two", "m:A.three", "m:A.three.four"]


def test_short_tests_near_a_module_run_first_as_many_as_there_is_time_for():
    tests = {
        "tests/test_all.py::a": 0.1,
        "tests/audio/test_levels_of_sound.py::b": 9.0,
        "tests/audio/test_trims.py::c[x]": 2.0,
        "tests/audio/test_trims.py::d": 1.0,
    }
    every = [name for name, _ in sorted(tests.items(), key=lambda each: "bdca".index(each[0].partition("::")[2][0]))]
    assert nearest_first(tests, "ane.audio.levels", 16) == every
    assert nearest_first(tests, "ane.audio.levels", 12.5) == every[:2]
