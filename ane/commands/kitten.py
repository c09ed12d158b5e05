"""`ane import` and `ane say` for KittenTTS models, which are ONNX files and take few of the flags."""

import argparse
import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ane.bundles import find_bundle
from ane.bundles.bundle_json import MANIFEST_FILE, bundle_family
from ane.commands.messages import message_console, output_console, report_console
from ane.commands.text_input import arriving_text, read_text, reads_standard_input
from ane.system.errors import UserError
from ane.text.user_lexicon import read_lexicon

if TYPE_CHECKING:
    from ane.models.kitten.result import KittenSpeech
    from ane.models.kitten.synthesizer import KittenStream, KittenSynthesizer

IMPORT_FLAGS = ("source", "output", "revision", "name", "overwrite")
SAY_FLAGS = ("text", "file", "voice", "output", "play", "stream", "json", "bundle", "speed",
             "words_per_minute", "lexicon", "ssml", "follow")
COMMON = ("handler", "command", "quiet", "verbose", "debug", "full_help")
ONNX_NAMES = ("auto", "onnx", "onnx:cpu")


def is_kitten_source(source: str) -> bool:
    """Whether SOURCE of `ane import` is a folder or a repository of KittenTTS."""
    from ane.models.kitten.model_files import OWNER, is_kitten_folder

    folder = os.path.expanduser(source)
    return is_kitten_folder(folder) if os.path.isdir(folder) else source.startswith(f"{OWNER}/")


def kitten_bundle(args: argparse.Namespace) -> Path | None:
    """The directory of ``--bundle`` when it is one of KittenTTS."""
    if args.bundle is None or args.checkpoints is not None:
        return None
    folder = find_bundle(args.bundle)
    return folder if os.path.isfile(folder / MANIFEST_FILE) and bundle_family(folder) == "kitten" else None


def refuse_other_flags(args: argparse.Namespace, allowed: tuple[str, ...]) -> None:
    """Raise UserError for a flag of the command that was given and has no effect on a KittenTTS model."""
    for action in args.parser._actions:
        if action.dest not in (*allowed, *COMMON) and getattr(args, action.dest, action.default) != action.default:
            raise UserError(f"{action.dest} has no effect on a KittenTTS model: leave it out")


def import_kitten(args: argparse.Namespace, destination: Path) -> int:
    """Read the three files of a folder or a repository, open them, and write the bundle."""
    from ane.bundles.bundle import check_destination
    from ane.bundles.hashes import sha256_of
    from ane.models.kitten.family import write_bundle
    from ane.models.kitten.model_files import download_model, read_model_files
    from ane.models.kitten.synthesizer import KittenSynthesizer

    refuse_other_flags(args, IMPORT_FLAGS)
    console, folder = message_console(args), Path(os.path.expanduser(args.source))
    check_destination(destination, args.overwrite, folder if os.path.isdir(folder) else None)
    licence = ""
    if os.path.isdir(folder):
        if args.revision:
            raise UserError(f"--revision is for the hub; {folder} is a directory")
        files = read_model_files(folder)
        source = {"files": {file: sha256_of(folder / file) for file in files.files}}
    else:
        found = download_model(args.source, args.revision, progress=lambda file: console.print(f"Fetching {file}"))
        files, licence = read_model_files(found.directory), found.licence
        source = {"repository": args.source, "revision": found.revision, "files": found.files}
    voices = KittenSynthesizer(files).voices.names
    write_bundle(files, destination, name=args.name, licence=licence, source=source, overwrite=args.overwrite)
    report_console(args).print(f"Voices: {', '.join(voices)}\nWrote {destination}. Use it with --bundle "
                               f"{shlex.quote(args.output)}")
    return 0


def say_kitten(args: argparse.Namespace, folder: Path) -> int:
    """Speak a text with the KittenTTS bundle in ``folder``."""
    from ane.commands.say import check_outputs, refuse_conflicting_flags, send_pieces
    from ane.models.kitten import open_kitten

    if args.backend in ONNX_NAMES:
        args.backend = "auto"
    refuse_other_flags(args, SAY_FLAGS)
    if args.voice == "?":
        output_console().print(", ".join(open_kitten(folder).voices.names))
        return 0
    if args.json and str(args.output) == "-":
        raise UserError("--json and -o - cannot be combined: the audio goes to standard output")
    options = {"speed": 1.0 if args.speed is None else args.speed, "ssml": args.ssml or None,
               "lexicon": read_lexicon(args.lexicon) if args.lexicon else None}
    if args.follow:
        refuse_conflicting_flags(args)
        options.pop("ssml")
    piped = args.follow or reads_standard_input(args)
    text = None if piped else read_text(args)
    check_outputs(args)
    synthesizer = open_kitten(folder)
    if args.follow:
        speech = synthesizer.feed(arriving_text(), args.voice, **options)
        send_pieces(args, speech)
    else:
        output = speak_whole if not args.stream else speak_pieces
        speech = output(args, synthesizer, read_text(args) if text is None else text, options)
    print_kitten_report(args, synthesizer, speech, message_console(args))
    return 0


def speak_whole(args: argparse.Namespace, synthesizer: "KittenSynthesizer", text: str,
                options: dict[str, Any]) -> "KittenSpeech":
    """Generate all audio, then write or play it."""
    from ane.audio import play, write

    speech = synthesizer.speak(text, args.voice, **options)
    if args.output is not None:
        write(args.output, speech.audio, speech.sample_rate)
    if args.play or args.output is None:
        play(speech.audio, speech.sample_rate)
    return speech


def speak_pieces(args: argparse.Namespace, synthesizer: "KittenSynthesizer", text: str,
                 options: dict[str, Any]) -> "KittenStream":
    """Send the audio of each chunk to the file, the loudspeaker or both as soon as it is generated."""
    from ane.commands.say import send_pieces

    stream = synthesizer.stream(text, args.voice, **options)
    send_pieces(args, stream)
    return stream


def print_kitten_report(args: argparse.Namespace, synthesizer: "KittenSynthesizer",
                        speech: "KittenSpeech | KittenStream", console: Console) -> None:
    """Print the closing line, or with --json one object on standard output."""
    files = [str(args.output)] if args.output is not None else []
    if args.json:
        print(json.dumps({
            "files": files, "seconds": speech.seconds, "sample_rate": speech.sample_rate,
            "seconds_by_phase": speech.seconds_by_phase, "elapsed": speech.elapsed,
            "real_time_factor": speech.real_time_factor, "voice": speech.facts["voice"], "chunks": speech.chunks,
            "model": synthesizer.name, "backend": "onnx:cpu"}))
        return
    phases = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in speech.seconds_by_phase.items())
    written = f" → {files[0]}" if files else ""
    console.print(f"{speech.seconds:.2f} s of audio{written}  ({phases}; real-time factor "
                  f"{speech.real_time_factor:.2f}; onnx:cpu)")
