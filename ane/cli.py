"""The command line, `ane COMMAND`: each command is a module of ``ane.commands``; this one reports their errors."""

import argparse
import os
import sys

from rich.console import Console
from rich.markup import escape

from ane.commands import bench, cache, classify, convert, import_model, plan, say, verify, voices
from ane.errors import UserError
from ane.version import version

INTERRUPTED = 130       # what a shell gives for a process that Ctrl-C ended


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
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        return args.handler(args)
    except UserError as error:
        errors.print(f"[bold red]ane: error:[/] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        errors.print("ane: interrupted; no file was left half-written")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())     # Python flushes stdout once more at exit
        return 1


if __name__ == "__main__":
    sys.exit(main())
