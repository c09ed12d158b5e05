"""The timeline that ``--profile`` prints."""

from rich.console import Console
from rich.table import Column, Table

from ane.system.timeline import Span, Timeline

WIDTH = 44          # characters of a bar over the whole time


def print_profile(timeline: Timeline, console: Console) -> None:
    """Print a bar for each phase, and for three periods: before the text was known, until the first audio, the rest.

    Work of the first period is done once for many texts; a listener waits for the second.
    """
    total = max([timeline.text_ready, timeline.first_audio or 0.0, *(span.end for span in timeline.spans)])
    first_audio = total if timeline.first_audio is None else timeline.first_audio
    parts = (("before the text was known", 0.0, timeline.text_ready),
             ("until the first audio", timeline.text_ready, first_audio), ("the rest", first_audio, total))
    table = Table(Column("", no_wrap=True), Column("s", justify="right"), box=None, pad_edge=False)
    table.add_column(f"0 to {total:.2f} s", no_wrap=True)
    for name, start, end in parts:
        table.add_row(name, f"{end - start:.2f}", bar([Span(name, start, end)], total), style="bold")
    for phase, seconds in timeline.seconds_by_phase().items():
        spans = [span for span in timeline.spans if span.phase == phase]
        table.add_row(f"  {phase}", f"{seconds:.2f}", bar(spans, total))
    console.print(table)


def bar(spans: list[Span], total: float) -> str:
    """``WIDTH`` characters over ``total`` seconds, filled where one of the spans is."""
    scale = WIDTH / total if total else 0.0
    line = [" "] * WIDTH
    for span in spans:
        first = min(int(span.start * scale), WIDTH - 1)
        for index in range(first, max(first + 1, min(round(span.end * scale), WIDTH))):
            line[index] = "█"
    return "".join(line)
