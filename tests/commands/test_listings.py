"""Test that every list is a table for people, lines for other programs, and JSON if a user asks for it."""

import json
import sys
from argparse import Namespace

import pytest

from ane.cli import main
from ane.commands.messages import print_listing
from ane.system import paths

LISTS = {
    "voices": (["voices", "list", "--bundle", "demo"], "name", "michael"),
    "voices of a flag": (["read", "-v", "?", "--bundle", "demo"], "name", "heart"),
    "the only voice": (["say", "-v", "?"], "name", "heart"),
    "presets": (["say", "--preset", "?", "--bundle", "demo"], "name", "fastest"),
    "presets of books": (["read", "--preset", "?", "--bundle", "demo"], "upstream", True),
    "bundles": (["say", "--bundle", "?"], "name", "demo"),
    "cache": (["cache", "list"], "bytes", 5),
    "chapters": (["read", "--list", "book.md"], "title", "[red]Two\\"),
}


@pytest.fixture
def lists(workplace):
    """Files of which every list has at least one row."""
    (workplace / "book.md").write_text("# One\n\nIt\trained.\n\n    code\n\n# [red]Two\\\n\nIt snowed.\n")
    (paths.cache_dir() / "verified").mkdir(parents=True)
    (paths.cache_dir() / "verified" / "a.json").write_text("12345")


@pytest.mark.parametrize(("command", "key", "value"), LISTS.values(), ids=LISTS)
def test_a_list_is_a_table_or_lines_or_json(lists, monkeypatch, capsys, command, key, value):
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(border in line for line in lines for border in "│┃━")
    assert main([*command, "--json"]) == 0
    items = json.loads(capsys.readouterr().out)
    assert value in [item[key] for item in items]
    rows = [line.split("\t") for line in lines]
    assert len({len(row) for row in rows}) == 1, "as many cells in every row, and no other lines"
    if key != "bytes":
        assert len(rows) == len(items)
        assert str(items[-1].get("name", "[red]Two\\")) in rows[-1], "the cell is the name alone"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(command) == 0
    assert "│" in capsys.readouterr().out


def test_a_cell_keeps_the_spaces_of_a_name(workplace, capsys):
    print_listing(Namespace(), ("name",), [("x  y\tz",)], [])
    assert capsys.readouterr().out == "x  y z\n"
