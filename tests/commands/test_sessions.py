"""Test that commands print and write what the .session files next to this one say."""

import pytest

from tests.sessions import Session, cases


@pytest.mark.parametrize("lines", cases(__file__))
def test_a_session_goes_as_its_file_says(request, lines):
    Session(request).run(lines)


FALSE = """no such text
not: usage
once: usage: nobody
out: usage
printed: usage
line: no such line
row: heart | 9
rows: heart | 9
json: a.json names.* = ["A"]
found: *.json =
content: a.json = {}
has: a.json C
lacks: a.json A
starts: a.json "
same: a.json b.json
differ: a.json a.json
refers: link a.json
lines: 0
errors: usage
width: 5"""


@pytest.mark.parametrize("check", FALSE.splitlines())
def test_what_a_session_says_wrongly_is_a_failure(request, check):
    session = Session(request)
    session.run(['write: a.json {"names": ["A", "B"]}', "write: b.json {}", "link: link b.json", "$ --help"])
    with pytest.raises(AssertionError):
        session.run([check])
