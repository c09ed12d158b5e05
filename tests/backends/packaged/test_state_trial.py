"""The records of trials; the trials themselves are tested in test_fallback.py."""

import pytest

from ane.backends.packaged.state_trial import read_problem


@pytest.mark.parametrize(("content", "expected"), [
    ("", None), ("[]", None), ("{}", None), ("3", None), ("\x00", None), ('{"problem": "it fails"}', "it fails")])
def test_a_damaged_record_is_as_none(tmp_path, content, expected):
    (tmp_path / "record.json").write_text(content)
    assert read_problem(tmp_path / "record.json") == expected
    assert read_problem(tmp_path / "none") is None
