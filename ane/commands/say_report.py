"""Print the last line or the JSON object of `ane say`, and write subtitles and word times."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ane.commands.messages import LOGGER
from ane.system.files import write_json
from ane.system.machine import peak_memory_bytes

if TYPE_CHECKING:
    from ane.speech.speaker import Speaker
    from ane.speech.stream import SoundStream, Speech


def print_report(
    args: argparse.Namespace,
    synthesizer: "Speaker",
    speech: "Speech | SoundStream",
    outputs: list[Path],
    console: Console,
) -> None:
    """Print the command's last line on ``console``. With --json, print a JSON object on standard output instead."""
    timeline = speech.timeline
    if args.json:
        print(json.dumps(facts(args, synthesizer, speech, outputs)))
        return
    for note in speech.notes:
        if note not in synthesizer.warned:
            LOGGER.warning("%s", note)
    LOGGER.debug(
        "backend %s: %s",
        synthesizer.backend.name,
        ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in speech.seconds_by_phase.items()),
    )
    streamed = args.stream or args.follow
    first = f", the first sound after {timeline.first_audio - timeline.text_ready:.2f} s" if streamed else ""
    files = f" → {', '.join(map(str, outputs))}" if outputs else ""
    settings = "".join(
        f"{name} {speech.facts[name]}; "
        for name in ("seed", "speed")
        if name in speech.facts and (name, speech.facts[name]) != ("speed", 1.0)
    )
    console.print(
        f"{speech.seconds:.2f} s of speech{files}  (made in {speech.elapsed:.2f} s{first}; {settings}"
        f"{synthesizer.backend.name})"
    )


def facts(
    args: argparse.Namespace, synthesizer: "Speaker", speech: "Speech | SoundStream", outputs: list[Path]
) -> dict:
    from ane.models.tortoise.settings import default_preset

    model, timeline = synthesizer.model, speech.timeline
    return {
        "files": [str(path) for path in outputs],
        "seconds": speech.seconds,
        "sample_rate": speech.sample_rate,
        "seconds_by_phase": speech.seconds_by_phase,
        "elapsed": speech.elapsed,
        "real_time_factor": speech.real_time_factor,
        "prepared": timeline.text_ready,
        "first_audio": timeline.first_audio - timeline.text_ready,
        **speech.facts,
        "chunks": speech.chunks,
        "model": model.name,
        "trained": model.trained,
        "backend": synthesizer.backend.name,
        **({"preset": args.preset or default_preset(model.settings)} if model.presets else {}),
        "notes": speech.notes,
        "peak_rss_bytes": peak_memory_bytes(),
    }


def write_beside(speech: "Speech", subtitles: list[Path], times: Path | None) -> list[Path]:
    """Write the subtitles of a speech, and the times of its words as JSON. Return the paths of these files."""
    if subtitles:
        from ane.speech.subtitles import write_subtitles

        for path in subtitles:
            write_subtitles(path, speech)
    if times is not None:
        write_json(
            times,
            {
                "sample_rate": speech.sample_rate,
                "seconds": speech.seconds,
                "words": [word.as_dict() for word in speech.words],
            },
        )
    return subtitles if times is None or str(times) == "-" else [*subtitles, times]


def output_paths(output: Path | None, count: int) -> list[Path]:
    """Return the path OUT if there is one output.

    If there are N outputs, return OUT-1 to OUT-N with the suffix of OUT.
    """
    if output is None:
        return []
    return [output] if count == 1 else numbered_paths(output, range(1, count + 1))


def numbered_paths(output: Path | None, numbers: Sequence[int]) -> list[Path]:
    """Return a path for each number: OUT-1.wav for OUT.wav and the number 1.

    All numbers get as many digits as the largest, so that programs sort the files by number.
    """
    if output is None or not numbers:
        return []
    digits = len(str(max(numbers)))
    if not output.name:  # such as ".", to which no number can be added. ``check_output`` rejects it
        return [output]
    return [output.with_name(f"{output.stem}-{number:0{digits}}{output.suffix}") for number in numbers]
