"""`ane say --lines`: each line of a text to a file of its own."""

import argparse
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.commands.messages import ProgressDisplay
from ane.commands.say_report import output_paths, write_word_times
from ane.system.errors import UserError
from ane.text import nothing_to_say_error, read_passages

if TYPE_CHECKING:
    from ane.speech.stream import Speech


def speak_lines(args: argparse.Namespace, synthesizer: Any, text: str, request: dict[str, Any],
                progress: ProgressDisplay) -> Iterator[tuple["Speech", list[Path]]]:
    """Speak each line on its own, and write each as soon as it is complete."""
    from ane.audio import write

    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UserError("nothing to say: there is no line with text")
    check_lines(text, request)
    outputs = output_paths(args.output, len(lines))
    times = output_paths(args.times_file, len(lines)) or [None] * len(lines)
    with closing(synthesizer.speak_all(lines, **request, progress=progress.update)) as spoken:
        for line, path, times_file in zip(spoken, outputs, times, strict=True):
            write(path, line.audio, line.sample_rate)
            if times_file is not None:
                write_word_times(times_file, line)
            yield line, [path]


def check_lines(text: str, request: dict[str, Any]) -> None:
    """Raise UserError for lines with nothing to say or faulty markup, before any is spoken. Empty lines are skipped."""
    faulty: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            passages = read_passages(line, request["lexicon"], request.get("ssml"))
            if line.strip() and not any(any(map(str.isalnum, passage.text)) for passage in passages):
                raise nothing_to_say_error(line)
        except UserError as error:
            faulty[number] = str(error).removeprefix("line 1: ")
    if faulty:
        (first, message), *others = faulty.items()
        more = f"; faulty as well: line {', '.join(str(number) for number, _ in others)}" if others else ""
        raise UserError(f"line {first}: {message}{more}")
