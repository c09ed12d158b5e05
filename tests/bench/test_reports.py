"""The report that a user can send: what is in it, and what must not be."""

import json
from functools import reduce
from operator import getitem

import pytest
from jsonschema_rs import validator_for  # schemathesis brings it

from ane.bench.records import BenchRow, Spread
from ane.bench.reports import (
    Finding,
    MachineReport,
    MeasuredParity,
    MeasuredPlacement,
    comparison,
    read_report,
    schema,
    without_personal_names,
)
from ane.cli import main
from ane.system.errors import UserError

REMOVED = object()
NAMES = ("jane.doe", "janes-mac")


@pytest.mark.parametrize(("text", "expected"), [
    ("there is no package at /Users/jane.doe/My Models/a.mlpackage; convert it", "there is no package at a.mlpackage; "
                                                                                 "convert it"),
    ("~/Library/x.json is damaged", "x.json is damaged"), (r"C:\Users\jane.doe\x.json", "x.json"),
    ("Jane.Doe on Janes-Mac.local", "… on ….local"), ("packages/clvp-fp16.mlpackage", "packages/clvp-fp16.mlpackage"),
    ("24 GB/s, 3 and/or 4", "24 GB/s, 3 and/or 4"), ("https://github.com/a/b", "https://github.com/a/b")])
def test_paths_and_names_are_removed_and_nothing_else(text, expected):
    assert without_personal_names({"a": [text]}, NAMES) == {"a": [expected]}


def report(chip: str, milliseconds: float) -> MachineReport:
    row = BenchRow("coreml", "step_1_64", settings={"network": "autoregressive", "compute_units": "CPU_AND_NE"},
                   value=Spread.of([milliseconds]), figures={"first_ms": 2.5})
    where = "autoregressive", "step_1_64", "CPU_AND_NE", "fp16"
    return MachineReport({"chip": chip, "os": "macOS 15.5"}, [Finding("a", "ok", "b")],
                         placement=[MeasuredPlacement(*where, {"Neural Engine": 3, "CPU": 1})],
                         parity=[MeasuredParity(*where, 55.0, 50.0)], rows=[row], format=1)


def test_reports_are_compared_side_by_side(tmp_path, capsys, monkeypatch):
    files = []
    for chip, milliseconds in (("Apple M1", 20.0), ("Apple M4", 8.0)):
        files.append(tmp_path / f"{chip}.json")
        files[-1].write_text(json.dumps(report(chip, milliseconds).as_json()))
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["bench", "--compare", *map(str, files), "-o", str(tmp_path / "table.json")]) == 0
    printed = capsys.readouterr().out
    for text in ("1 Apple M1", "2 Apple M4", "20 ±0% ms", "8 ±0% ms", "3 on Neural Engine, 1 on CPU", "55.0 dB"):
        assert text in printed
    assert len(json.loads((tmp_path / "table.json").read_text())["rows"]) == 3


def test_a_function_that_one_report_lacks_leaves_its_column_empty():
    without = MachineReport({"chip": "Apple M2"}, format=1)
    _, cells = comparison([report("Apple M1", 20.0), without])
    assert {row[-1] for row in cells} == {"–"}


@pytest.mark.parametrize("change", [
    {"format": 2}, {"format": "1"}, {"format": None}, {"machine": []}, {"machine": {}}, {"rows": [{}]},
    {"parity": [{"network": "x"}]}, {"more": 1}])
def test_another_file_is_refused_in_one_line(tmp_path, change):
    (tmp_path / "report.json").write_text(json.dumps(report("Apple M1", 1.0).as_json() | change))
    with pytest.raises(UserError, match=r"report\.json"):
        read_report(tmp_path / "report.json")


def places(value, path=()):
    """The path of every value inside, as keys and indices."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def test_any_file_is_compared_or_refused_as_the_published_schema_says(tmp_path):
    """Each value of a report is taken away or replaced by values of other types."""
    published = validator_for(schema())
    whole, verdicts = json.dumps(report("Apple M1", 1.0).as_json()), []
    for *folders, last in places(json.loads(whole)):
        for wrong in (REMOVED, None, "x", 3, 2.5, True, [], [1], {}, {"a": 1}):
            content = json.loads(whole)
            inside = reduce(getitem, folders, content)
            inside[last] = wrong
            if wrong is REMOVED:
                del inside[last]
            (tmp_path / "report.json").write_text(json.dumps(content))
            try:
                comparison([read_report(tmp_path / "report.json")])
                complaint = ""
            except UserError as error:
                complaint = str(error)
            assert (complaint == "") == published.is_valid(content), (folders, last, wrong)
            assert complaint.count("\n") == 0
            verdicts.append(complaint == "")
    assert verdicts.count(False) > 150
    assert verdicts.count(True) > 50


def test_the_rows_of_ane_bench_are_read_too(tmp_path):
    content = {"format": 2, "benchmark": "ane bench", "machine": {"chip": "Apple M1"}, "notes": [],
               "rows": report("Apple M1", 1.0).as_json()["rows"]}
    (tmp_path / "bench.json").write_text(json.dumps(content))
    assert len(read_report(tmp_path / "bench.json").rows) == 1
