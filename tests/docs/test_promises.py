"""Test that every promise of the product, a row of ``promises.tsv``, has a command and tests that exist.

Rows are removed only on purpose, as CONTRIBUTING.md says, with a line in CHANGELOG.md.
"""

import re
import shlex
from pathlib import Path

import pytest

from ane import cli

ROOT = Path(__file__).parents[2]
# the functions of a test file, and the cases of a session, in whose names ~ stands for a space
CLAIMS = {".py": r"^def (test_\w+)", ".session": "^# (.+)"}
ROWS = [
    line.split("\t")
    for line in Path(__file__).with_name("promises.tsv").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("promise", "command", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_a_promise_has_its_command_and_its_tests(promise, command, tests):
    if command:
        program, *arguments = shlex.split(command)
        assert program == "ane"
        cli.parser().parse_args(arguments)  # exits if a subcommand or a flag no longer exists
    assert tests
    for name in tests.split(" "):
        file, _, claim = name.partition("::")
        defined = re.findall(CLAIMS[Path(file).suffix], (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert claim.replace("~", " ") in defined if claim else defined, name


def test_the_rows_are_those_that_contributing_speaks_of():
    assert len({promise for promise, *_ in ROWS}) == len(ROWS)
    assert "`tests/docs/promises.tsv`" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
