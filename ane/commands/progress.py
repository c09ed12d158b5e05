"""A bar for each stage of synthesis, and lines of what else the user should know."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

WORDS = {"decode": "candidates", "rank": "ranked", "diffuse": "diffusion steps", "vocode": "chunks of sound"}


def notice(line: str) -> None:
    """What ``ane.backends.load_backend`` has to tell, on standard error."""
    Console(stderr=True, highlight=False).print(line, markup=False, soft_wrap=True)


class Bars:
    """Shows progress on a console; ``update`` is what ``Synthesizer.speak`` calls."""

    def __init__(self, console: Console, shown: bool):
        self.progress = Progress(TextColumn("{task.description:<15}"), BarColumn(), MofNCompleteColumn(),
                                 TimeElapsedColumn(), TextColumn("{task.fields[note]}"), console=console,
                                 transient=True, disable=not shown)
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.progress.stop()

    def update(self, stage: str, done: int, total: int, note: str) -> None:
        if not stage:
            return
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(WORDS.get(stage, stage), total=total, note=note)
        self.progress.update(self.tasks[stage], completed=done, total=total, note=note)
