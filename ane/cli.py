"""The command line, `ane COMMAND`: each command is a module of ``ane.commands``; this one reports their errors."""

import argparse
import errno
import os
import sys
from contextlib import suppress

from rich.console import Console
from rich.markup import escape

from ane.commands import bench, cache, classify, convert, import_model, plan, say, verify, voices
from ane.system.errors import UserError
from ane.system.interruption import interruptions
from ane.system.version import version

UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EIO)      # by a standard output that has gone or is full


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="ane", description="Tortoise text-to-speech: text and a reference voice in, 24 kHz speech out.")
    top.add_argument("--version", action="version", version=f"tortoise-ane {version()}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (say, voices, import_model, convert, verify, plan, bench, cache, classify):
        command.register(commands)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command and give its exit status.

    0: done; 1: the user's input or machine was at fault, said in one line; 2: wrong usage; 130 and 143: stopped by
    Ctrl-C, by SIGTERM.
    """
    args = parser().parse_args(arguments)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    with interruptions() as stops:
        try:
            done = args.handler(args)
            sys.stdout.flush()
            return done
        except BaseException as error:
            stops.restore_default_handlers()
            if stops.received:                  # whatever was made of it on its way here: rich exits when a pipe has gone
                plain = isinstance(error, KeyboardInterrupt | SystemExit)
                became = "" if plain else f" ({type(error).__name__}: {error})"
                status, told = 128 + stops.received[0], f"ane: interrupted{escape(became)}; no file was left half-written"
            elif isinstance(error, UserError):
                status, told = 1, f"[bold red]ane: error:[/] {escape(str(error))}"
            elif not isinstance(error, OSError) or error.filename is not None or error.errno not in UNWRITTEN:
                raise
            else:
                status, told = 1, "" if error.errno == errno.EPIPE else (
                    f"[bold red]ane: error:[/] cannot write to standard output: {error.strerror}")
            with suppress(OSError, SystemExit):
                if told:
                    errors.print(told)
            forget_what_cannot_be_written()
            return status


def forget_what_cannot_be_written() -> None:
    """Python flushes standard output once more at its exit, and would complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
