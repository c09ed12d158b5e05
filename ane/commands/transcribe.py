"""Run `ane transcribe`: turn recorded speech into text or subtitles with a Whisper model."""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ane.bundles.precisions import NAMES as PRECISIONS
from ane.commands import arguments
from ane.commands.file_flags import check_files
from ane.commands.messages import ProgressDisplay, message_console
from ane.system.errors import NoEffectError, UserError
from ane.system.files import check_folder_of, check_output_file, no_such_file, replacing
from ane.system.terminal import printable

if TYPE_CHECKING:
    from ane.models.whisper.transcript import Transcript

FORMATS = ("txt", "json", "srt", "vtt")
EXAMPLES = """
examples:
  ane transcribe talk.mp3                              print the text
  ane transcribe talk.mp3 -o talk.srt                  write subtitles
  ane transcribe *.wav --format vtt -o subtitles       write subtitles/NAME.vtt for each file
  ane transcribe talk.mp3 --word-times -o talk.json    write the start and end of every word
"""


def register(commands: argparse._SubParsersAction) -> None:
    from ane.backends import NAMES

    parser = commands.add_parser(
        "transcribe",
        help="turn a recording into text or subtitles",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Transcribe recorded speech with a Whisper model. For silence, print nothing.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        type=arguments.path,
        metavar="FILE",
        help="sound file of at most a day: wav, flac, mp3, ogg, and with PyAV also aac, m4a, mp4, avi or webm",
    )
    parser.add_argument(
        "--model",
        metavar="NAME|PATH",
        help="Whisper model: a bundle made by `ane import`, a .pt file of OpenAI, or a folder in the format of Hugging "
        "Face or CTranslate2 (default: the bundle whisper)",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="format to write: txt (one line per segment), json (one object), or srt or vtt (subtitles) (default: the "
        "format that the suffix of -o names, or txt if the suffix names none)",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.add_argument(
        "--language",
        metavar="NAME",
        help="language of the recording, such as en, German or pt-BR (default: detect it in the first 30 seconds)",
    )
    parser.add_argument("--translate", action="store_true", help="translate the speech to English")
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        default="",
        help="text that the model takes as said before the recording, for example names with their spelling",
    )
    parser.add_argument(
        "--word-times",
        action="store_true",
        help="find the start and end of every word. json lists the times, srt and vtt underline the word being spoken",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=arguments.path,
        help="file to write. For several recordings, a folder for NAME.FORMAT (default: print the text)",
    )
    parser.add_argument("--force", action="store_true", help="replace files that are already in the folder OUT")
    add = arguments.rare_group(parser, "search").add_argument
    add(
        "--beam-size",
        type=arguments.positive,
        metavar="N",
        help="width of the beam search at temperature 0, on torch (default: no beam search, take the likeliest token)",
    )
    add = arguments.rare_group(parser, "backend").add_argument
    add(
        "--backend",
        default="auto",
        metavar="NAME",
        help=f"engine that runs the networks: {', '.join(NAMES)} (default: auto). coreml and mil run the Core ML "
        "packages of a bundle that `ane convert` made, and onnx runs the ONNX packages of such a bundle",
    )
    add(
        "--precision",
        default="auto",
        choices=("auto", *PRECISIONS),
        help="number format to compute in. torch: default is the format of the stored weights if the device is fast "
        "at it. Packages: default is the first in the bundle",
    )
    add("--threads", type=arguments.positive, metavar="N", help="CPU threads (default: the backend's choice)")
    add(
        "--seed",
        type=arguments.natural,
        default=0,
        metavar="N",
        help="random seed for decoding unclear passages (default: 0)",
    )
    parser.add_argument("--help-all", action=arguments.FullHelpAction, help="show all options, by group, and exit")
    parser.set_defaults(handler=transcribe)


def transcribe(args: argparse.Namespace) -> int:
    from ane.audio.reader import read_recording
    from ane.backends import load_backend
    from ane.models.whisper.transcription import Transcriber, TranscriptionOptions, open_whisper

    outputs = output_files(args)
    if args.word_times and chosen_format(args) == "txt":
        raise NoEffectError("word_times", "on plain text", "add --format json, srt or vtt", ("format",))
    for file in args.files:
        if not os.path.exists(file):  # check all files before transcribing any
            raise UserError(f"{file}: {no_such_file(file)}")
    model = open_whisper(args.model)
    options = TranscriptionOptions(
        args.language,
        "translate" if args.translate else "transcribe",
        prompt=args.prompt,
        beam_size=args.beam_size,
        word_times=args.word_times,
        seed=args.seed,
    )
    transcriber = Transcriber(model, load_backend(args.backend, model, args.precision, args.threads))
    for file, output in zip(args.files, outputs, strict=True):
        audio, rate = read_recording(file)
        with ProgressDisplay(message_console(args), shown=not args.quiet) as display:
            transcript = transcriber.transcribe(
                audio,
                rate,
                options,
                lambda done, total, name=file.name: display.update(name, round(done), round(total), "seconds"),
            )
        several = len(args.files) > 1
        write_transcript(
            transcript,
            chosen_format(args),
            output,
            str(file) if several else "",
            check_new if several and not args.force else None,
        )
    return 0


def chosen_format(args: argparse.Namespace) -> str:
    suffix = args.output.suffix.removeprefix(".").lower() if args.output is not None and len(args.files) == 1 else ""
    return args.format or (suffix if suffix in FORMATS else FORMATS[0])


def output_files(args: argparse.Namespace) -> list[Path | None]:
    """Return the file to write for each recording. ``None`` means standard output.

    Raises:
        UserError: A file cannot be written, two recordings would be written to the same file, or standard output would
            get the subtitles of several recordings.
    """
    if args.output is None or str(args.output) == "-":
        if len(args.files) > 1 and chosen_format(args) in ("srt", "vtt"):
            raise UserError(f"subtitles of {len(args.files)} files cannot be printed: add -o FOLDER")
        return [None] * len(args.files)
    outputs = (
        [args.output]
        if len(args.files) == 1
        else [args.output / f"{file.stem}.{chosen_format(args)}" for file in args.files]
    )
    output, count = Counter(outputs).most_common(1)[0]
    if count > 1:
        raise UserError(
            f"{count} of the files would be written to {output}: rename them, or transcribe them one by one"
        )
    check_folder_of(args.output)
    for output in outputs:
        check_output_file(output, makes_folders=True)
    check_files(args, {"output": outputs}, ("files",), models=("model",))
    for output in outputs if len(outputs) > 1 and not args.force else ():
        check_new(output)
    return outputs


def check_new(output: Path) -> None:
    """Raise UserError if a file exists. The user named only the folder, so the file may be a text of theirs."""
    if os.path.lexists(output):
        raise UserError(f"{output} exists: add --force to replace it, or choose another folder")


def write_transcript(
    transcript: "Transcript", form: str, output: Path | None, title: str, check: Callable[[Path], object] | None
) -> None:
    """Write a transcript to a file, or print it.

    Args:
        title: Name of the recording. Plain text begins with it, and JSON has it in the field "file". "" omits it.
        check: Argument ``check`` for ``replacing``.
    """
    from ane.models.whisper.transcript import FORMATS as WRITERS

    text = WRITERS[form](transcript)
    if form == "json" and title:
        text = json.dumps({"file": title, **json.loads(text)}, ensure_ascii=False) + "\n"
    if output is None:
        sys.stdout.write(f"{printable(title)}:\n{text}" if title and form == "txt" else text)
        return
    with replacing(output, lasting=True, check=check) as path:
        path.write_text(text, encoding="utf-8")
