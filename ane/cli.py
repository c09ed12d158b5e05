"""The command line, `ane COMMAND`: each command is a module of ``ane.commands``; this one reports their errors."""

import argparse
import errno
import os
import signal
import sys
import threading

from rich.console import Console
from rich.markup import escape

from ane.commands import bench, cache, classify, convert, import_model, plan, say, verify, voices
from ane.errors import UserError
from ane.version import version

INTERRUPTED, TERMINATED = 130, 143      # what a shell gives for a process that Ctrl-C, that SIGTERM ended


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="ane", description="Tortoise text-to-speech: text and a reference voice in, 24 kHz speech out.")
    top.add_argument("--version", action="version", version=f"tortoise-ane {version()}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (say, voices, import_model, convert, verify, plan, bench, cache, classify):
        command.register(commands)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command. 0: done; 1: the user's input or machine was at fault, said in one line; 2: wrong usage."""
    args = parser().parse_args(arguments)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminated)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        done = args.handler(args)
        sys.stdout.flush()
        return done
    except UserError as error:
        errors.print(f"[bold red]ane: error:[/] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        errors.print("ane: interrupted; no file was left half-written")
        return INTERRUPTED
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())     # Python flushes stdout once more at exit
        if error.errno != errno.EPIPE:
            errors.print(f"[bold red]ane: error:[/] cannot write to standard output: {error.strerror}")
        return 1


def terminated(*_: object) -> None:
    """What SIGTERM does: as Ctrl-C, so that nothing is left half-written."""
    raise SystemExit(TERMINATED)


if __name__ == "__main__":
    sys.exit(main())
