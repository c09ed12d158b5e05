"""The flags of macOS's `say` that `ane say` knows, with their meaning there, and a line for those that it does not."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ane.commands import arguments
from ane.system.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

WORDS_PER_MINUTE = 175  # of `say` without -r
FILE_FORMATS = {"WAVE": ".wav", "AIFF": ".aiff", "FLAC": ".flac", "m4af": ".m4a", "MPG3": ".mp3", "Oggf": ".ogg"}
DEFAULT_SUFFIX = ".aiff"  # of `say -o out`
# flags of `say` without a counterpart → reason
UNKNOWN = {
    "--quality": "a file has the quality of its format",
    "--bit-rate": "each compressed format has one bit rate; for less loss, write .flac or .wav",
    "-i": "words are not highlighted on the terminal; --word-times FILE.json writes when each word is heard",
    "--interactive": "words are not highlighted on the terminal; --word-times FILE.json writes when each word is heard",
    "--network-send": "sound is not sent to another machine; `ane serve` does that",
}


class UnknownFlag(argparse.Action):
    """A flag that only macOS's `say` has. It names what to use instead."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: "str | Sequence[Any] | None",
        flag: str | None = None,
    ) -> NoReturn:
        parser.error(f"{flag} of macOS's say is not known here: {UNKNOWN[flag or '']}")


def add_macos_arguments(parser: argparse.ArgumentParser) -> None:
    add = arguments.rare_group(
        parser, "macOS", "Flags of macOS's say, with the meaning that they have there."
    ).add_argument
    add(
        "-r",
        "--rate",
        type=float,
        metavar="WPM",
        help=f"words a minute, in place of --speed: {WORDS_PER_MINUTE} is the usual speed",
    )
    add(
        "-a",
        "--audio-device",
        metavar="DEVICE",
        help="play on this device, by name or number ('?' lists them; default: the system's)",
    )
    add("--file-format", metavar="FORMAT", help=f"format of OUT: {', '.join(FILE_FORMATS)} ('?' lists them)")
    add(
        "--data-format",
        metavar="FORMAT",
        help="how samples are stored in .wav, .aiff and .flac: I16, I24, F32 and others, and the sample rate, such as "
        "I24@48000 ('?' lists them)",
    )
    add("--channels", type=int, metavar="N", help="1: speech has one channel")
    add("--progress", action="store_true", help="show progress also with --json and --quiet")
    for flag in UNKNOWN:
        add(flag, action=UnknownFlag, nargs="?", help=argparse.SUPPRESS)


def listed(args: argparse.Namespace) -> list[str] | None:
    """Return the lines that a flag with the value "?" asks for, or None if there is no such flag."""
    if args.file_format == "?":
        return [f"{name}  {suffix}" for name, suffix in FILE_FORMATS.items()]
    if args.data_format == "?":
        from ane.audio.sample_format import ENCODINGS

        return list(ENCODINGS)
    if args.audio_device == "?":
        from ane.audio.devices import playback_devices

        return [f"{number:>3} {device.name}" for number, device in enumerate(playback_devices())]
    return None


def apply_macos_arguments(args: argparse.Namespace) -> None:
    """Give our flags the values that those of macOS's say mean. Raises UserError where both are given, or it cannot."""
    if args.rate is not None:
        if args.speed is not None:
            raise UserError("--rate and --speed cannot be combined: leave one out")
        if not args.rate > 0:
            raise UserError(f"rate must be above 0 words a minute, got {args.rate:g}", "rate")
        args.speed = round(args.rate / WORDS_PER_MINUTE, 3)
    if args.channels not in (None, 1):
        raise UserError(f"channels must be 1, because speech has one channel, got {args.channels}", "channels")
    for flag in ("file_format", "data_format"):
        if getattr(args, flag) is not None and args.output is None:
            raise UserError(f"{flag} has no effect without a file: add -o OUT", flag)
    if args.output is not None and str(args.output) != "-":
        args.output = named_output(args.output, args.file_format)
    if args.audio_device is not None and args.output is not None and not args.play:
        raise UserError("audio_device has no effect: nothing is played; add --play, or leave out -o", "audio_device")
    args.samples = None
    if args.data_format is not None:
        from ane.audio.sample_format import SampleFormat

        args.samples = SampleFormat.read(args.data_format)
        args.samples.subtype(args.output.suffix.lower())  # raises, before any work


def named_output(output: Path, file_format: str | None) -> Path:
    """Return the output with the suffix of its format. Raises UserError if both are given and differ."""
    suffix = DEFAULT_SUFFIX
    if file_format is not None:
        known = {name.lower(): end for name, end in FILE_FORMATS.items()}
        if file_format.lower() not in known:
            raise UserError(f"file_format must be one of {', '.join(FILE_FORMATS)}, got {file_format}", "file_format")
        suffix = known[file_format.lower()]
        if output.suffix and output.suffix.lower() != suffix:
            raise UserError(
                f"--file-format {file_format} writes {suffix}, and {output} ends in {output.suffix}: leave one out"
            )
    named = output.suffix or output.name in ("", "..") or output.is_dir()  # a folder is refused later
    return output if named else output.with_suffix(suffix)
