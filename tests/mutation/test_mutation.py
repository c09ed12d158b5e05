"""The sampler of mutants, on a project of one module."""

import json

import pytest

from tests.mutation.__main__ import draw, main, score
from tests.mutation.mutants import find_mutants
from tests.mutation.recording import statement_at

MODULE = '''"""A number in a range, or 0 – with "ü" before it."""

LOW = 2


def clamp(value: int, high: int = 10) -> int:
    """Not below LOW."""
    note = f"{value + 1}"
    if value < LOW or not note:
        return LOW
    return min(value, high)


def loop(count: int) -> None:
    while count > 0:
        count -= 1


def in_a_thread(
        found: list[bool]) -> None:
    found.append(True)
'''
TESTS = '''import subprocess
import sys
from threading import Thread

from ane.ranges import clamp, in_a_thread, loop


def test_values_are_clamped():
    assert [clamp(value) for value in (1, 2, 9, 11)] == [2, 2, 9, 10]


def test_a_loop_ends():
    loop(3)


def test_a_thread():
    thread = Thread(target=in_a_thread, args=[found := []])
    thread.start()
    thread.join()
    assert found == [True]


def test_a_process():
    command = "from ane.ranges import clamp; assert clamp(3, high=2) == 2"
    assert not subprocess.run([sys.executable, "-c", command]).returncode
'''


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
        "LOW = (3)", "LOW = (1)", "def clamp(value: int, high: int = (11)) -> int:", "return None", "pass",
        "if (value <= LOW) or not note:", "if (value < LOW and (not note)):", "if value < LOW or (note):"}
    assert len(mutants) == len({mutant.key for mutant in mutants})
    for mutant in mutants:
        assert len([line for line in mutant.diff.splitlines() if line.startswith("+") and line[:3] != "+++"]) == 1
        assert 'f"{value + 1}"' in mutant.source
        assert '"""Not below LOW."""' in mutant.source


def test_a_sample_depends_on_its_seed_alone(project):
    first, again, other = (draw(project, ["ane.ranges"], seed, 5) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 5


def test_a_statement_has_its_lines_without_its_body_and_is_in_a_function_or_not():
    """Lines of ``MODULE``, from 1: LOW, a signature, an if, a signature on two lines."""
    assert [statement_at(MODULE, line) for line in (3, 6, 9, 10, 20)] == [
        (range(3, 4), False), (range(6, 7), False), (range(9, 10), True), (range(10, 11), True), (range(19, 21), False)]


@pytest.fixture
def mutate(project, tmp_path, monkeypatch, capsys):
    """Runs the command for the mutants whose diff has one of some lines; their results by that line."""
    monkeypatch.setattr("tests.mutation.trials.SLACK", 8.0)
    output = tmp_path / "results.json"

    def run(chosen, *options):
        def draw_chosen(*arguments):
            every = find_mutants("ane.ranges", MODULE)
            return [next(mutant for mutant in every if line in mutant.diff.partition("+++")[2]) for line in chosen]

        monkeypatch.setattr("tests.mutation.__main__.draw", draw_chosen)
        assert main(["--modules", "ane.ranges", "--root", str(project), "-o", str(output), *options]) == 0
        found = json.loads(output.read_text(encoding="utf-8"))
        assert json.loads(capsys.readouterr().out) == score(found["mutants"])
        return dict(zip(chosen, found["mutants"], strict=True))

    return run


def test_each_mutant_runs_the_tests_of_its_line_and_survivors_are_run_again_on_new_tests(project, mutate, tmp_path):
    lines = ("high: int = (11)", "value <= LOW", "+        pass", "+    pass", "LOW = (3)")
    found = mutate(lines)
    assert [(result["verdict"], result.get("by", "").partition("::")[2]) for result in found.values()] == [
        ("killed", "test_values_are_clamped"), ("survived", ""), ("timeout", ""), ("killed", "test_a_thread"),
        ("killed", "test_values_are_clamped")]
    assert (project / "ane" / "ranges.py").read_text(encoding="utf-8") == MODULE

    output = tmp_path / "results.json"
    (project / "tests" / "test_more.py").write_text(
        "from ane.ranges import clamp\ndef test_more():\n    assert clamp(2.0) is not 2", encoding="utf-8")
    found = mutate(lines, "--again")
    assert (found["value <= LOW"]["verdict"], found["value <= LOW"]["new"]) == ("killed", True)
    summary = json.loads(output.read_text(encoding="utf-8"))
    assert (summary["first_score"], summary["score"]) == (0.8, 1.0)


def test_a_mutant_that_only_another_process_executes_is_killed_by_a_test_that_starts_one(project, mutate):
    text = TESTS.replace("[clamp(value) for value in (1, 2, 9, 11)] == [2, 2, 9, 10]", "True")
    (project / "tests" / "test_ranges.py").write_text(text, encoding="utf-8")
    [result] = mutate(["+    return None"]).values()
    assert result["by"].endswith("test_a_process")
