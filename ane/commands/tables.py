"""The tables that commands print."""

from collections.abc import Sequence

from rich.table import Table


def plain_table(title: str | None, *headings: str, numbers: Sequence[int] = ()) -> Table:
    """A table that truncates no cell, and wraps long ones except in the first column; ``numbers``: aligned right."""
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", no_wrap=not number, justify="right" if number in numbers else "left")
    return table
