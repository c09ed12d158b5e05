"""Add the flags of macOS's `say` to `ane say`, and explain the flags of macOS that are not supported."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ane.commands import arguments
from ane.system.errors import NoEffectError, UserError
from ane.system.files import is_stream
from ane.system.sound_formats import FORMATS, MediaFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

WORDS_PER_MINUTE = 175  # speed of macOS's `say` without -r
FILE_FORMATS = {"WAVE": ".wav", "AIFF": ".aiff", "FLAC": ".flac", "m4af": ".m4a", "MPG3": ".mp3", "Oggf": ".ogg"}
DEFAULT_SUFFIX = ".aiff"  # suffix that `say -o out` adds
NO_HIGHLIGHT = "the terminal cannot highlight words, use --word-times FILE.json for the time of each word"
STANDARD_OUTPUT = ("/dev/stdout", "/dev/fd/1")  # paths that mean the same as "-"
# flags of `say` that `ane say` does not support → the reason
UNKNOWN = {
    "--quality": "the format of the file decides the quality",
    "--bit-rate": "each compressed format has one bit rate, write .flac or .wav for more quality",
    "-i": NO_HIGHLIGHT,
    "--interactive": NO_HIGHLIGHT,
    **dict.fromkeys(("-n", "--network-send"), "`ane say` cannot send sound to another machine, use `ane serve`"),
}


class UnknownFlag(argparse.Action):
    """A flag that only macOS's `say` has. If a user passes the flag, an error names its replacement."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: "str | Sequence[Any] | None",
        flag: str | None = None,
    ) -> NoReturn:
        parser.error(f"{flag} of macOS's say is not supported: {UNKNOWN[flag or '']}")


def add_macos_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that have the same name and meaning in macOS's `say`."""
    add = arguments.rare_group(parser, "macOS", "Flags of macOS's say, with the same meaning.").add_argument
    add(
        "-r",
        "--rate",
        type=words_per_minute,
        metavar="WPM",
        help=f"speed in words per minute, instead of --speed. {WORDS_PER_MINUTE}, normal for macOS's say, is --speed 1",
    )
    add(
        "-a",
        "--audio-device",
        metavar="DEVICE",
        help="name or number of the device to play on. '?' lists the devices (default: the system's)",
    )
    add("--file-format", metavar="FORMAT", help=f"format of OUT: {', '.join(FILE_FORMATS)}. '?' lists them")
    add(
        "--data-format",
        metavar="FORMAT",
        help="sample format of .wav, .aiff and .flac, such as I16, I24 or F32, and the sample rate, as in I24@48000. "
        "'?' lists the formats",
    )
    add("--channels", type=int, metavar="N", help="number of channels, which must be 1")
    add("--progress", action="store_true", help="show progress even with --json or --quiet")
    for flag in UNKNOWN:
        add(flag, action=UnknownFlag, nargs="?", help=argparse.SUPPRESS)


def apply_macos_arguments(args: argparse.Namespace) -> None:
    """Set the flags of `ane say` from the flags of macOS's `say`.

    Raises:
        UserError: A flag of macOS and its counterpart are both given, or a value is wrong.
    """
    if args.rate is not None and args.speed is not None:
        message = "--rate and --speed cannot be combined: leave one out"
        raise NoEffectError("speed", "with --rate", partners=("rate",), text=message)
    if args.rate is not None:
        if not args.rate > 0:
            raise UserError(f"rate must be above 0 words per minute, got {args.rate:g}", "rate")
        args.speed = round(args.rate / WORDS_PER_MINUTE, 3)
    if args.channels not in (None, 1):
        raise UserError(f"channels must be 1, because speech has one channel, got {args.channels}", "channels")
    for flag in ("file_format", "data_format"):
        if getattr(args, flag) is not None and args.output is None:
            raise NoEffectError(flag, "without a file", "add -o OUT")
    args.encoding = None
    if args.output is not None:
        args.output = Path("-") if str(args.output) in STANDARD_OUTPUT else args.output
        args.output, args.encoding = named_output(args.output, args.file_format)
    if args.audio_device is not None and args.output is not None and not args.play:
        raise NoEffectError("audio_device", "without playing", "add --play, or leave out -o")
    args.samples = None
    if args.data_format is not None:
        from ane.audio.sample_format import SampleFormat

        args.samples = SampleFormat.read(args.data_format)
        suffix = "" if is_stream(args.output) else args.output.suffix.lower()
        args.samples.subtype(suffix, args.data_format)  # raises before any work


def words_per_minute(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"it must be a number of words per minute, got {text!r}") from None


def about_rate(error: UserError, args: argparse.Namespace) -> UserError:
    """Return an error about --rate instead of an error about the speed, if the flag --rate set the speed."""
    limits = re.match(r"speed must be from (\S+) to (\S+), got", str(error))
    if args.rate is None or limits is None:
        return error
    least, most = (float(limit) * WORDS_PER_MINUTE for limit in limits.groups())
    return UserError(f"rate must be from {least:g} to {most:g} words per minute, got {args.rate:g}", "rate")


def named_output(output: Path, file_format: str | None) -> tuple[Path, MediaFormat | None]:
    """Add the suffix of a file format to the output. For a pipe, return the settings of the format instead.

    Raises:
        UserError: The output has a different suffix, or a pipe cannot have the format.
    """
    suffix = DEFAULT_SUFFIX
    if file_format is not None:
        known = {name.lower(): end for name, end in FILE_FORMATS.items()}
        if file_format.lower() not in known:
            raise UserError(f"file_format must be one of {', '.join(FILE_FORMATS)}, got {file_format}", "file_format")
        suffix = known[file_format.lower()]
        if output.suffix and output.suffix.lower() != suffix:
            message = (
                f"--file-format {file_format} writes {suffix}, but {output} ends in {output.suffix}: leave one out"
            )
            raise NoEffectError("file_format", f"on {output.suffix}", text=message)
    if is_stream(output):
        encoding = FORMATS[suffix].streamed if file_format else None
        if file_format and suffix != ".wav" and not encoding:
            able = ", ".join(name for name, end in FILE_FORMATS.items() if end == ".wav" or FORMATS[end].streamed)
            where = f"on {'standard output' if str(output) == '-' else output}"
            message = f"--file-format {file_format} has no effect {where}: choose {able}, or name a file"
            raise NoEffectError("file_format", where, text=message)
        return output, encoding
    has_suffix = output.suffix or output.name in ("", "..") or output.is_dir()  # a later check reports a folder
    return (output if has_suffix else output.with_suffix(suffix)), None
