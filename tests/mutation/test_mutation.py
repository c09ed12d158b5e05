"""The sampler of mutants, on a project of one module."""

import json

import pytest

from tests.mutation.__main__ import draw, main, remarks, run, score
from tests.mutation.mutants import find_mutants
from tests.mutation.trials import TrialError, find_tests

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
'''
TESTS = '''from ane.ranges import clamp, loop


def test_values_are_clamped():
    assert [clamp(value) for value in (1, 2, 9, 11)] == [2, 2, 9, 10]
    loop(3)
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


def test_a_mutant_is_killed_or_survives_or_does_not_end(project, monkeypatch):
    monkeypatch.setattr("tests.mutation.trials.SLACK", 2.0)
    mutants = [mutant for line in ("high: int = (11)", "value <= LOW", "+        pass")
               for mutant in find_mutants("ane.ranges", MODULE) if line in mutant.diff.partition("+++")[2]]
    results = run(project, mutants, {mutants[1].key: "2 is LOW"})
    assert [result["verdict"] for result in results] == ["killed", "survived", "timeout"]
    assert results[1]["equivalent"] == "2 is LOW"
    assert score(results) == {"sample": 3, "killed": 1, "survived": 1, "timeout": 1, "equivalent": 1, "score": 1.0}
    assert (project / "ane" / "ranges.py").read_text(encoding="utf-8") == MODULE


def test_the_result_is_written_and_its_remarks_are_kept(project, tmp_path, capsys):
    output = tmp_path / "results.json"
    assert remarks(output) == {}
    assert main(["--modules", "ane.ranges", "--root", str(project), "--sample", "1", "-o", str(output)]) == 0
    results = json.loads(output.read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out)["score"] == results["score"]
    [result] = results["mutants"]
    output.write_text(json.dumps({"mutants": [{**result, "equivalent": "because"}]}), encoding="utf-8")
    assert remarks(output) == {result["key"]: "because"}


def test_the_tests_of_a_module_are_its_own_file_or_else_its_folder(project):
    (project / "tests" / "test_more.py").touch()
    assert find_tests(project, "ane.ranges") == ["tests/test_ranges.py"]
    assert find_tests(project, "ane.others") == ["tests/test_more.py", "tests/test_ranges.py"]
    with pytest.raises(TrialError, match="no tests in tests/models"):
        find_tests(project, "ane.models.x")


def test_a_module_whose_tests_fail_is_refused(project):
    (project / "tests" / "test_ranges.py").write_text("def test_fails():\n    raise ValueError\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["--modules", "ane.ranges", "--root", str(project), "--sample", "1"])
