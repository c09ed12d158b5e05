"""Test the program that samples mutants, on a project with one module."""

import json

import pytest

from tools.mutation.__main__ import TreeCopy, draw, main, relevant_tests, score
from tools.mutation.mutants import find_mutants

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
    (project / "tests" / "test_broken.py").write_text("def test_broken():\n    assert False", encoding="utf-8")
    (project / "tests" / "test_more.py").write_text(
        "from ane.ranges import clamp\ndef test_more():\n    assert clamp(2.0) is not 2", encoding="utf-8"
    )
    assert [result["verdict"] for result in mutate()] == ["killed"] * 2
    results = json.loads(output.read_text(encoding="utf-8"))
    assert (results["score"], results["left out"]) == (1.0, ["tests/test_broken.py::test_broken"])


def test_tests_of_a_module_and_of_the_modules_that_import_it_run(project):
    for name, text in (
        ("ane/audio/levels.py", ""),
        ("ane/speech/lanes.py", "from ane.audio import levels"),
        ("tests/audio/test_levels_of_sound.py", ""),
        ("tests/more/test_decibels.py", "import ane.audio.levels"),
        ("tests/speech/test_lanes.py", "from ane.speech.lanes import step"),
        ("tests/speech/test_words.py", "import ane.speech.words"),
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    assert relevant_tests(project, "ane.speech.lanes") == ["tests/speech/test_lanes.py", "tests/speech"]
    assert relevant_tests(project, "ane.audio.levels") == [
        "tests/audio/test_levels_of_sound.py",
        "tests/audio",
        "tests/more/test_decibels.py",
        "tests/speech/test_lanes.py",
    ]
