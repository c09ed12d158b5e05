"""The timeline that ``--profile`` shows."""

from rich.console import Console
from rich.table import Column, Table

from ane.system.timeline import Span, Timeline

WIDTH = 44          # characters that all of the time is drawn in


def show_profile(timeline: Timeline, console: Console) -> None:
    """A bar for every stage, and the three parts of the time: before the text was known, until there was sound, after.

    Work of the first part is paid once for many texts; what is between the two marks is what a listener waits for.
    """
    total = max([timeline.text_ready, timeline.first_sound or 0.0, *(span.end for span in timeline.spans)])
    heard = total if timeline.first_sound is None else timeline.first_sound
    parts = (("before the text was known", 0.0, timeline.text_ready), ("until the first sound", timeline.text_ready, heard),
             ("the rest", heard, total))
    table = Table(Column("", no_wrap=True), Column("s", justify="right"), box=None, pad_edge=False)
    table.add_column(f"0 to {total:.2f} s", no_wrap=True)
    for name, start, end in parts:
        table.add_row(name, f"{end - start:.2f}", drawn([Span(name, start, end)], total), style="bold")
    for stage, seconds in timeline.spent().items():
        table.add_row(f"  {stage}", f"{seconds:.2f}", drawn([s for s in timeline.spans if s.stage == stage], total))
    console.print(table)


def drawn(spans: list[Span], total: float) -> str:
    """A character for each part of the time in which one of the spans worked."""
    scale = WIDTH / total if total else 0.0
    line = [" "] * WIDTH
    for span in spans:
        first = min(int(span.start * scale), WIDTH - 1)
        for place in range(first, max(first + 1, min(round(span.end * scale), WIDTH))):
            line[place] = "█"
    return "".join(line)
