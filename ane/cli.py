"""The command line, `ane COMMAND`: each command is a module of ``ane.commands``; this one reports their errors."""

import argparse
import errno
import os
import sys

from rich.console import Console
from rich.markup import escape

from ane.commands import bench, cache, classify, convert, import_model, plan, say, verify, voices
from ane.errors import UserError
from ane.interruption import interruptions
from ane.version import version

LOST = (errno.EPIPE, errno.ENOSPC, errno.EIO)      # what a standard output that cannot be written says


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="ane", description="Tortoise text-to-speech: text and a reference voice in, 24 kHz speech out.")
    top.add_argument("--version", action="version", version=f"tortoise-ane {version()}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (say, voices, import_model, convert, verify, plan, bench, cache, classify):
        command.register(commands)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command. 0: done; 1: the user's input or machine was at fault, said in one line; 2: wrong usage.

    128 + n: ended by signal n, as a shell says it: 130 by Ctrl-C, 143 by SIGTERM.
    """
    args = parser().parse_args(arguments)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    with interruptions() as came:
        try:
            done = args.handler(args)
            sys.stdout.flush()
            return done
        except BaseException as error:
            if came:        # whatever was made of it on its way here
                errors.print("ane: interrupted; no file was left half-written")
                return 128 + came[0]
            if (said := explanation(error)) is None:
                raise
            if isinstance(error, OSError):      # Python flushes standard output once more at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if said:
                errors.print(f"[bold red]ane: error:[/] {escape(said)}")
            return 1


def explanation(error: BaseException) -> str | None:
    """What to tell the user of an error that is not ours, nothing when its reader has gone; None: a bug."""
    if isinstance(error, UserError):
        return str(error)
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in LOST:
        return None
    return "" if error.errno == errno.EPIPE else f"cannot write to standard output: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main())
