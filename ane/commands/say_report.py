"""What `ane say` prints about a result: a closing line or a JSON object, and the timeline of ``--profile``."""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

from ane.commands.messages import LOGGER
from ane.system.files import replacing, write_json
from ane.system.machine import peak_memory_bytes
from ane.system.timeline import Span, Timeline

if TYPE_CHECKING:
    import numpy as np

    from ane.books.lines import SpokenLine
    from ane.speech.speaker import Speaker
    from ane.speech.stream import SoundStream, Speech

WIDTH = 44          # characters of a bar over the whole time
M4A = ".m4a"       # the format that libsndfile lacks


def print_report(args: argparse.Namespace, synthesizer: "Speaker", speech: "Speech | SoundStream", outputs: list[Path],
                 console: Console) -> None:
    """Print the closing line, or with --json one object on standard output."""
    timeline = speech.timeline
    if args.json:
        print(json.dumps(facts(args, synthesizer, speech, outputs)))
        return
    for note in speech.notes:
        if note not in synthesizer.warned:
            LOGGER.warning("%s", note)
    LOGGER.debug("%s", ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in speech.seconds_by_phase.items()))
    streamed = args.stream or args.follow
    first = f", the first sound after {timeline.first_audio - timeline.text_ready:.2f} s" if streamed else ""
    files = f" → {', '.join(map(str, outputs))}" if outputs else ""
    stated = "".join(f"{name} {speech.facts[name]}; " for name in ("seed", "speed")
                     if name in speech.facts and (name, speech.facts[name]) != ("speed", 1.0))
    console.print(f"{speech.seconds:.2f} s of speech{files}  (made in {speech.elapsed:.2f} s{first}; {stated}"
                  f"{synthesizer.backend.name})")


def print_kept_line(args: argparse.Namespace, line: "SpokenLine", outputs: list[Path], job: Path,
                    console: Console) -> None:
    """Print the summary of a line that was spoken before, or with --json one object."""
    if args.json:
        print(json.dumps({"files": [str(path) for path in outputs], "seconds": line.seconds,
                          "sample_rate": line.sample_rate, "spoken_before": True}))
        return
    console.print(f"{line.seconds:.2f} s of speech → {', '.join(map(str, outputs))}  (spoken before; kept in {job})")


def facts(args: argparse.Namespace, synthesizer: "Speaker", speech: "Speech | SoundStream",
          outputs: list[Path]) -> dict:
    from ane.models.tortoise.settings import default_preset

    model, timeline = synthesizer.model, speech.timeline
    has_presets = model.presets
    return {
        "files": [str(path) for path in outputs], "seconds": speech.seconds, "sample_rate": speech.sample_rate,
        "seconds_by_phase": speech.seconds_by_phase, "elapsed": speech.elapsed,
        "real_time_factor": speech.real_time_factor,
        "prepared": timeline.text_ready, "first_audio": timeline.first_audio - timeline.text_ready,
        **speech.facts, "chunks": speech.chunks, "model": model.name,
        "trained": model.trained, "backend": synthesizer.backend.name,
        **({"preset": args.preset or default_preset(model.settings)} if has_presets else {}),
        "notes": speech.notes, "peak_rss_bytes": peak_memory_bytes(),
        **({"timeline": [asdict(span) for span in timeline.spans]} if args.profile else {})}


def write_word_times(path: Path, sound: "Speech | SpokenLine") -> None:
    """Write the words of a speech and their times as JSON."""
    write_json(path, {"sample_rate": sound.sample_rate, "seconds": sound.seconds,
                      "words": [word.as_dict() for word in sound.words]})


@contextmanager
def writing_sound(path: Path, rate: int) -> Iterator[Callable[["np.ndarray"], None]]:
    """``ane.audio.writing``, and m4a, which PyAV writes. Errors: those of either."""
    if path.suffix.lower() != M4A:
        from ane.audio import writing

        with writing(path, rate) as append:
            yield append
        return
    from ane.books.media_writer import writing_media

    check_sound_output(path)
    with replacing(path, lasting=True) as target, writing_media(target, rate, {}) as append:
        yield append


def check_sound_output(path: Path) -> None:
    """Raise UserError, before any work is done, for a file that ``writing_sound`` cannot write."""
    if path.suffix.lower() != M4A:
        from ane.audio import check_output as check
    else:
        from ane.books.media_writer import check_media_output as check
    check(path)


def output_paths(output: Path | None, count: int) -> list[Path]:
    """OUT, or OUT-1 … OUT-N with its suffix for several outputs."""
    if output is None:
        return []
    if count == 1 or not output.name:       # "." has no name to number; ``check_output`` refuses it
        return [output]
    return [output.with_name(f"{output.stem}-{number}{output.suffix}") for number in range(1, count + 1)]


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
