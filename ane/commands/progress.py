"""Progress: bars and a spinner in a terminal, a plain line every few seconds elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

UNITS = {"decode": "versions spoken", "rank": "versions compared", "diffuse": "refining steps",
         "vocode": "parts turned to sound", "text": "parts read", "mel": "parts timed"}
INTERVAL = 5.0      # seconds between two plain lines


class ProgressDisplay:
    """Shows the progress of synthesis on a console; ``update`` is what ``Speaker.speak`` calls."""

    def __init__(self, console: Console, shown: bool, clock: Callable[[], float] = time.monotonic):
        self.progress = Progress(TextColumn("{task.description:<21}"), BarColumn(), MofNCompleteColumn(),
                                 TimeElapsedColumn(), TextColumn("{task.fields[note]}"), console=console,
                                 transient=True, disable=not (shown and console.is_terminal))
        self.tasks: dict[str, TaskID] = {}
        self.lines = PlainLines(console, clock) if shown and not console.is_terminal else None

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.progress.stop()

    def update(self, phase: str, done: int, total: int, note: str) -> None:
        if not phase:
            return
        unit = UNITS.get(phase, phase)
        if self.lines:
            self.lines.print(f"{unit}: {done} of {total}{f' ({note})' if note else ''}")
            return
        if phase not in self.tasks:
            self.tasks[phase] = self.progress.add_task(unit, total=total, note=note)
        self.progress.update(self.tasks[phase], completed=done, total=total, note=note)


class PlainLines:
    """Prints a line if ``INTERVAL`` seconds have passed since the last one, or since it was created."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self.console, self.clock, self.last = console, clock, clock()

    def print(self, line: str) -> None:
        if self.clock() - self.last >= INTERVAL:
            self.last = self.clock()
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def status_display(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step: beside a spinner in a terminal, else in plain lines."""
    if console.is_terminal:
        with console.status(text) as status:
            yield status.update
    else:
        yield PlainLines(console).print
