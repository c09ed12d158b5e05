"""`ane say --lines`: each line of a text to a file of its own. The lines of a file (-f) are a job, which resumes."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ane.commands.messages import ProgressDisplay
from ane.commands.read_report import check_text
from ane.commands.say_report import output_paths, print_kept_line, print_report, write_word_times
from ane.system.errors import UserError
from ane.system.timeline import Timeline
from ane.text import nothing_to_say_error, read_passages
from ane.text.cast import cast_of

if TYPE_CHECKING:
    from ane.books.lines import SpokenLine


def speak_lines(args: argparse.Namespace, synthesizer: Any, text: str, request: dict[str, Any],
                progress: ProgressDisplay) -> Iterator[tuple["SpokenLine", list[Path]]]:
    """Speak each line on its own, and write each as soon as it is complete."""
    from ane.audio import write

    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UserError("nothing to say: there is no line with text")
    check_lines(text, request)
    outputs = output_paths(args.output, len(lines))
    times = output_paths(args.times_file, len(lines)) or [None] * len(lines)
    speak = job_lines if args.file not in (None, "-") else new_lines
    with closing(speak(args, synthesizer, lines, {**request, "progress": progress.update})) as spoken:
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


def new_lines(args: argparse.Namespace, synthesizer: Any, lines: Sequence[str],
              request: dict[str, Any]) -> Iterator["SpokenLine"]:
    """All lines, spoken now."""
    from ane.books.lines import SpokenLine

    for speech in synthesizer.speak_all(lines, **request):
        yield SpokenLine(speech.audio, speech.sample_rate, speech.words, speech)


def job_lines(args: argparse.Namespace, synthesizer: Any, lines: Sequence[str],
              request: dict[str, Any]) -> Iterator["SpokenLine"]:
    """Every line; those for which the job beside the output has no sound are spoken now."""
    from ane.books.lines import plan_lines, spoken_lines
    from ane.books.plan import SpeechIdentity
    from ane.books.speakers import BookSpeaker
    from ane.books.store import JobStore

    store = JobStore(job_folder(args.output))
    try:
        seed = store.seed(args.seed)
        if synthesizer.model.is_random:
            request = {**request, "seed": seed}
        speaker = BookSpeaker(synthesizer, args.voice, request["settings"], seed, speed=request.get("speed", 1.0),
                              lexicon=request["lexicon"],
                              cast=cast_of(request.get("cast"), request.get("quote_voice")))
        options: dict[str, Any] = {name: True for name in ("ssml", "word_times") if request.get(name)}
        if speaker.cast:
            options["cast"] = asdict(speaker.cast)
        split = getattr(request["settings"], "split", None)         # of a line into chunks
        identity = SpeechIdentity(speaker.model, speaker.voice, {**speaker.settings, **options, "split": split}, seed)

        def speak(group: Sequence[str]) -> Iterator[Any]:
            yield from synthesizer.speak_all(group, **request)
            request["timeline"] = Timeline()        # of the next group

        plan = plan_lines(lines, identity, speaker.respell)
        check_text(store, plan)
        yield from spoken_lines(store, plan, speak)
    finally:
        store.close()


def job_folder(output: Path) -> Path:
    return output.with_name(f"{output.name}.lines.job")


def print_line_report(args: argparse.Namespace, synthesizer: Any, line: "SpokenLine", outputs: list[Path],
                      console: Console) -> None:
    """Print the summary of a line, or with --json one object on standard output."""
    if line.speech is None:
        print_kept_line(args, line, outputs, job_folder(args.output), console)
    else:
        print_report(args, synthesizer, line.speech, outputs, console)
