"""Progress without a terminal."""

import io

from rich.console import Console

from ane.commands.progress import INTERVAL, ProgressDisplay


def test_without_a_terminal_progress_is_a_plain_line_every_few_seconds():
    now, output = [0.0], io.StringIO()
    with ProgressDisplay(Console(file=output), shown=True, clock=lambda: now[0]) as progress:
        for done in range(1, 11):
            now[0] += INTERVAL / 2
            progress.update("decode", done, 10, "")
    assert output.getvalue().splitlines() == [f"versions spoken: {done} of 10" for done in (2, 4, 6, 8, 10)]


def test_progress_that_is_not_shown_prints_nothing():
    output = io.StringIO()
    with ProgressDisplay(Console(file=output), shown=False, clock=lambda: 1e9) as progress:
        progress.update("decode", 1, 10, "")
    assert output.getvalue() == ""
