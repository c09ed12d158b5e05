"""Run `ane COMMAND`, and report an error of the command in one line.

Each command is a module of ``ane.commands``. Only the module of the command that runs is imported, to save time.
"""

import argparse
import copy
import errno
import logging
import os
import re
import sys
from contextlib import suppress
from importlib import import_module

from rich.markup import escape

from ane.commands.arguments import CommandParser, add_common_arguments
from ane.commands.defaults import apply_defaults, source_of, with_sources, without_useless_defaults
from ane.commands.messages import TerminalConsole, logging_to_standard_error
from ane.system.errors import UserError
from ane.system.files import no_such_file
from ane.system.interruption import Interruptions, interruptions
from ane.system.paths import check_working_directory
from ane.system.streams import tolerant_streams
from ane.system.terminal import printable
from ane.system.version import version

# Each command with its summary, in the order of `ane --help`. The parser of the command has the same summary.
SUMMARIES = {
    "say": "speak a text",
    "read": "narrate a book",
    "serve": "start a speech server with OpenAI's API",
    "voices": "list, add, mix and remove voices",
    "transcribe": "turn a recording into text or subtitles",
    "import": "make a bundle from official checkpoints",
    "convert": "convert a model for another engine",
    "verify": "compare packages with the PyTorch reference",
    "plan": "show how Core ML packages fit the Neural Engine",
    "export-swift": "write a Swift package for apps",
    "bench": "measure this machine and print the fastest settings",
    "cache": "list and delete caches",
    "doctor": "show what this machine can run and what is missing",
    "completion": "print a completion script for your shell, or the manual page",
}
LISTING = ("-h", "--help", "--version")  # options that print their answer without importing a command
WITHOUT_DEFAULTS = ("doctor", "completion")  # commands that a faulty config.toml does not stop
COMMANDS = {name: name.replace("-", "_") for name in SUMMARIES} | {"import": "import_model"}

# oneDNN compiles a kernel for each layer and each input length. It keeps at most KERNELS kernels, because its default
# of 1024 made memory grow with the length of a text. oneDNN reads the variable when torch first computes.
KERNEL_CACHE, KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", 64

# errors of a standard stream that is closed, has no reader, or is full
STREAM_ERRORS = (errno.EBADF, errno.EPIPE, errno.ENOSPC, errno.EIO)


def parser(command: str = "") -> argparse.ArgumentParser:
    """Build the parser of `ane` with the command ``command``, or with all commands if no command has this name.

    If ``command`` is an option of ``LISTING``, the parser has only the commands' summaries.
    """
    top = CommandParser(
        prog="ane", description="Tortoise text-to-speech: text and a reference voice in, 24 kHz speech out."
    )
    top.add_argument("--version", action="version", version=f"tortoise-ane {version()}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    if command in LISTING:
        for name, summary in SUMMARIES.items():
            commands.add_parser(name, help=summary)
    else:
        for name in (command,) if command in COMMANDS else COMMANDS:
            import_module(f"ane.commands.{COMMANDS[name]}").register(commands)
    add_common_arguments(top)
    top.set_defaults(make_parser=parser)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    | status | meaning |
    |---|---|
    | 0 | The command succeeded. |
    | 1 | The input is bad, or this machine cannot run the command. One line says why. |
    | 2 | The flags are wrong. |
    | 130, 143 | Ctrl-C or SIGTERM stopped the command. |
    """
    with tolerant_streams():
        arguments = sys.argv[1:] if arguments is None else arguments
        if "_ARGCOMPLETE" in os.environ:
            from ane.commands.completion import answer_shell

            answer_shell(parser, COMMANDS)
        command = arguments[0] if arguments else LISTING[0]
        top = parser(command)
        fault = None
        try:
            if command in COMMANDS:
                apply_defaults(top, COMMANDS)
        except UserError as error:
            fault = error
        args = top.parse_args(arguments)  # ends the process if the user asked for help
        if fault and command not in WITHOUT_DEFAULTS:
            top.exit(1, f"ane: error: {printable(str(fault))}\n")
        if not hasattr(args, "handler"):  # the command has subcommands, but none was given
            args.parser.print_help()
            return 0
        if args.verbose and args.quiet:  # one of the two flags is a default
            args.verbose, args.quiet = not source_of(args, "verbose"), not source_of(args, "quiet")
        os.environ.setdefault(KERNEL_CACHE, str(getattr(args, "kernels", KERNELS)))
        with logging_to_standard_error(args.verbose, args.quiet), interruptions() as stops:
            try:
                check_working_directory()
                status = without_useless_defaults(args, lambda given: given.handler(copy.copy(given)))
                sys.stdout.flush()
                return status
            except BaseException as error:
                stops.restore_default_handlers()
                status, report = describe_error(error, stops, args)
                logging.getLogger("ane").debug("traceback of the error:", exc_info=error)
                with suppress(OSError, SystemExit):
                    if report:
                        TerminalConsole(stderr=True, soft_wrap=True, highlight=False).print(report)
                discard_unwritable_output()
                return status


def describe_error(error: BaseException, stops: Interruptions, args: argparse.Namespace) -> tuple[int, str]:
    """Return the exit status for an error, and the line to print, in rich markup.

    If the error is a bug of this program, raise the error again.
    """
    if stops.received:  # a library may have turned the interruption into another error
        cause = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        return 128 + stops.received[0], f"ane: interrupted{escape(cause)}; no file was left half-written"
    if (
        isinstance(error.__cause__ or error, BrokenPipeError)
        and getattr(error, "filename", None) is None
        and (isinstance(error, OSError) or "standard output" in str(error))
    ):
        return 0, ""  # the reader of our output, such as `head`, has stopped reading
    if isinstance(error, UserError):
        message = with_sources(with_flags(error, args.parser), args)
    elif isinstance(error, OSError):
        message = system_message(error)
    else:
        raise error
    message = message.replace(os.strerror(errno.ENOSPC), "the disk is full")
    origin = error.__cause__ or error
    if isinstance(origin, FileNotFoundError) and origin.filename is not None and "cannot write" not in message:
        message = message.replace(os.strerror(errno.ENOENT), no_such_file(origin.filename))
    return 1, f"[bold red]ane: error:[/] {escape(message)}"


def with_flags(error: UserError, parser: argparse.ArgumentParser) -> str:
    """Return the message of an error with flags in place of parameters, also in advice such as "use backend=torch"."""
    flags = {
        action.dest: next((flag for flag in action.option_strings if flag.startswith("--")), action.option_strings[0])
        for action in parser._actions
        if action.option_strings
    }
    message = str(error)
    if error.parameter in flags and re.match(rf"{error.parameter}\b(?!=)", message):
        message = flags[error.parameter] + message.removeprefix(error.parameter)
    return " ".join(as_flag(word, flags) for word in message.split(" "))


def as_flag(word: str, flags: dict[str, str]) -> str:
    """Turn Python arguments in messages into flags: "backend=torch" → "--backend torch", "overwrite=True" → "--force".

    Other words stay unchanged.
    """
    name, _, value = word.partition("=")
    if name not in flags or not value:
        return word
    return flags[name] + value.removeprefix("True") if value.startswith("True") else f"{flags[name]} {value}"


def system_message(error: OSError) -> str:
    """Describe an operating system error in one line.

    Raise ``error`` again unless it names a file or is one of ``STREAM_ERRORS``.
    """
    if error.filename is not None:
        home = os.environ.get("ANE_HOME")
        inside = home and str(error.filename).startswith(os.path.expanduser(home))
        advice = f"; check ANE_HOME, which is {home}" if inside else ""
        return f"{error.filename}: {error.strerror}{advice}"
    if error.errno in STREAM_ERRORS:
        return f"cannot write to standard output: {error.strerror}"
    raise error


def discard_unwritable_output() -> None:
    """Send standard output to the null device if it cannot be flushed.

    Otherwise Python would flush standard output at exit, and report the same failure again.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
