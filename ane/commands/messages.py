"""Print the log messages, tables and progress of commands.

In a terminal, bars or a spinner show progress. Elsewhere, a plain line shows the progress every few seconds.
"""

import argparse
import json
import logging
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ane.system.streams import TolerantStream
from ane.system.terminal import printable

if TYPE_CHECKING:
    from ane.bench.records import BenchRow
    from ane.bundles.family import ModelFamily

LOGGER = logging.getLogger("ane")
UNITS = {
    "decode": "candidates spoken",
    "rank": "candidates compared",
    "diffuse": "refining steps",
    "vocode": "parts turned to sound",
    "text": "parts read",
    "mel": "parts timed",
}
INTERVAL = 5.0  # seconds between two plain lines


class TerminalConsole(Console):
    """A console that escapes control characters in all text, because a stranger may have written the text."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


class MessageHandler(logging.Handler):
    """A handler that writes log records to the current ``sys.stderr``, because a progress display may replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            start = f"ane: {record.levelname.lower()}: "
        else:
            start = f"{record.name}: " if record.levelno < logging.INFO else ""
        trace = f"\n{logging.Formatter().formatException(record.exc_info)}" if record.exc_info else ""
        sys.stderr.write(f"{start}{printable(record.getMessage())}{trace}\n")
        sys.stderr.flush()


@contextmanager
def logging_to_standard_error(verbose: bool = False, quiet: bool = False) -> Iterator[None]:
    """While the ``with`` block runs, print records of the logger ``ane`` if their level is INFO or higher.

    Args:
        verbose: Whether to print DEBUG records too.
        quiet: Whether to print only errors.
    """
    handler, level = MessageHandler(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG if verbose else logging.ERROR if quiet else logging.INFO)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


def message_console(args: argparse.Namespace) -> Console:
    """Return a console on standard error for progress and closing lines. With --quiet, the console prints nothing."""
    return TerminalConsole(
        stderr=True, highlight=False, markup=False, soft_wrap=True, quiet=getattr(args, "quiet", False)
    )


def report_console(args: argparse.Namespace) -> Console:
    """Return a console on standard output for reports of finished work.

    The console drops a report that it cannot write.
    """
    return TerminalConsole(
        file=TolerantStream(sys.stdout),
        highlight=False,
        markup=False,
        soft_wrap=True,
        quiet=getattr(args, "quiet", False),
    )


def output_console() -> Console:
    """Return a console on standard output for the lists and tables that the user asked for."""
    width = None if sys.stdout.isatty() else 200  # a table in a file or a pipe is 200 columns wide
    return TerminalConsole(highlight=False, markup=False, soft_wrap=True, width=width)


def counted(number: int, name: str, form: str = "") -> str:
    """Return a number with its noun, in the plural if need be: "1 network", "3 networks".

    Args:
        form: Format of the number, such as "," for commas between thousands.
    """
    return f"{number:{form}} {name}{'s' * (number != 1)}"


def how_to_use(family: "ModelFamily", bundle: str) -> str:
    """Return the sentence that tells the user which flag or command uses a new bundle."""
    use = "--bundle" if family.settings else "ane transcribe FILE --model"
    return f"Use it with {use} {shlex.quote(bundle)}"


WHOLE_CELL = 40  # characters of a cell in the first column that never wraps


def plain_table(
    title: str | None, *headings: str, numbers: Sequence[int] = (), rows: Iterable[Sequence[str]] = ()
) -> Table:
    """Create a table that never truncates a cell. Long cells wrap, except numbers and short cells of the first column.

    Args:
        numbers: Indices of the columns with numbers, to align right.
    """
    table, rows = Table(title=title, title_justify="left"), list(rows)
    for number, heading in enumerate(headings):
        width = max((len(row[number]) for row in rows), default=0)
        table.add_column(
            heading,
            overflow="fold",
            no_wrap=not number and width <= WHOLE_CELL,
            min_width=max(width, *map(len, heading.split())) if number in numbers and heading else None,
            justify="right" if number in numbers else "left",
        )
    for row in rows:
        table.add_row(*row)
    return table


def print_table(
    title: str | None, *headings: str, numbers: Sequence[int] = (), rows: Iterable[Sequence[str]] = ()
) -> None:
    """Print a table on standard output. Other programs than a terminal get a line with tabs for each row."""
    if sys.stdout.isatty():
        output_console().print(plain_table(title, *headings, numbers=numbers, rows=rows))
        return
    if title:
        print(title)
    for row in rows:
        print("\t".join(printable(re.sub(r"[\t\r\n]+", " ", cell)) for cell in row))


def print_listing(
    args: argparse.Namespace,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    items: Sequence[Mapping[str, Any]],
    numbers: Sequence[int] = (),
    notes: Iterable[str] = (),
) -> None:
    """Print a list as a table in a terminal, and as lines with tabs for other programs.

    With --json, print ``items`` as JSON.

    Args:
        numbers: Indices of the columns to align right.
        notes: Lines to print after the list. With --json, and outside of a terminal, they go to standard error.
    """
    console, terminal = output_console(), sys.stdout.isatty()
    if as_json := getattr(args, "json", False):
        print(json.dumps(items))
    elif rows:
        print_table(None, *headings, numbers=numbers, rows=rows)
    for note in notes:
        if terminal and not as_json:
            console.print(note)
        else:
            LOGGER.info("%s", note)


def decibels(value: float | None) -> str:
    """Format a number of dB as a cell of a table. ``None`` becomes a dash."""
    return "–" if value is None else f"{value:.1f}"


def exponent(error: float | None) -> str:
    """Format an error in scientific notation as a cell of a table. ``None`` becomes a dash."""
    return "–" if error is None else f"{error:.1e}"


def print_rows(title: str, rows: Sequence["BenchRow"]) -> None:
    """Print measurements of `ane bench` as a table."""
    from ane.bench.records import table_cells

    headings, cells = table_cells(rows)
    numbers = [number for number, heading in enumerate(headings) if heading not in ("competitor", "what", "error")]
    output_console().print(plain_table(title, *headings, numbers=numbers, rows=cells))


class ProgressDisplay:
    """A display of progress on a console. Pass its ``update`` to ``Speaker.speak``, which calls it."""

    def __init__(self, console: Console, shown: bool, clock: Callable[[], float] = time.monotonic):
        self.progress = Progress(
            TextColumn("{task.description:<21}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self.tasks: dict[str, TaskID] = {}
        self.lines = PlainLines(console, clock) if shown and not console.is_terminal else None

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def update(self, phase: str, done: int, total: int, note: str) -> None:
        if not phase:
            return
        unit, note = printable(UNITS.get(phase, phase)), printable(note)
        if self.lines:
            self.lines.print(f"{unit}: {done} of {total}{f' ({note})' if note else ''}")
            return
        if phase not in self.tasks:
            self.tasks[phase] = self.progress.add_task(unit, total=total, note=note)
        self.progress.update(self.tasks[phase], completed=done, total=total, note=note)


class PlainLines:
    """A printer of lines that drops a line if it printed another line less than ``INTERVAL`` seconds before."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self.console, self.clock, self.last = console, clock, clock()

    def print(self, line: str) -> None:
        if self.clock() - self.last >= INTERVAL:
            self.last = self.clock()
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def status_display(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text: next to a spinner in a terminal, and otherwise as plain lines."""
    if console.is_terminal:
        with console.status(text) as status:
            yield status.update
    else:
        yield PlainLines(console).print
