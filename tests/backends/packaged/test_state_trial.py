"""The records of trials; the trials themselves are tested in test_fallback.py."""

import pytest

from ane.backends.packaged.state_trial import MachineRecords


def test_what_a_trial_found_is_remembered_for_a_package_on_some_compute_units(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    records = MachineRecords(lambda package: package.name)
    records.write(tmp_path / "a", "ALL", "")
    records.write(tmp_path / "b", "ALL", "it fails")
    found = [records.read(tmp_path / name, units) for name, units in (("a", "ALL"), ("b", "ALL"), ("a", "CPU_ONLY"))]
    assert found == ["", "it fails", None]


@pytest.mark.parametrize("content", ["", "[]", "{}", "3", "\x00"])
def test_a_damaged_record_is_as_none(tmp_path, monkeypatch, content):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    records = MachineRecords(lambda package: package.name)
    records.write(tmp_path, "ALL", "it fails")
    path, = tmp_path.rglob("state-*.json")
    path.write_text(content)
    assert records.read(tmp_path, "ALL") is None
