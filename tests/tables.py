"""Read tables of test cases from the .tsv files next to the tests.

A row is a line, with tabs between its cells. In a cell, \\n, \\t, \\r, \\\\ and \\uXXXX stand for characters. A line
that begins with # and a space starts a section and names it. A line that begins with ## is a comment.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def unescaped(cell: str) -> str:
    return re.sub(
        r"\\(?:([ntr\\])|u([0-9a-f]{4}))", lambda found: ESCAPES[found[1]] if found[1] else chr(int(found[2], 16)), cell
    )


def differences(read: Callable[..., object], table: Iterable[Sequence[str]]) -> list[tuple[object, ...]]:
    """The rows, each with what ``read`` makes of its cells but the last, for which that is not the last cell."""
    return [(*row, found) for row in table if (found := read(*row[:-1])) != row[-1]]


def rows(beside: str, name: str, section: str) -> list[tuple[str, ...]]:
    """The rows of a section of the file ``name`` in the folder of the test ``beside``, its __file__."""
    text = Path(beside).with_name(name).read_text(encoding="utf-8")
    [content] = [part for part in re.split(r"^# ", text, flags=re.M) if part.partition("\n")[0] == section]
    lines = content.split("\n")[1:]
    return [tuple(map(unescaped, line.split("\t"))) for line in lines if line and not line.startswith("## ")]
