"""``ane completion``: print a shell's completion script."""

import argparse
from typing import Any

from ane.system.errors import UserError

SHELLS = ("bash", "zsh", "tcsh")
WORDS = ("FILE", "PATH", "DIR", "OUT", "CLIP", "SOURCE", ".mlpackage")         # in metavars of paths
EPILOG = """
to use it:
  bash: eval "$(ane completion bash)" in ~/.bashrc
  zsh:  ane completion zsh > a file _ane in a folder of $fpath
  tcsh: ane completion tcsh | source /dev/stdin
"""


def register(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("completion", help="print a shell's completion script", epilog=EPILOG,
                                 formatter_class=argparse.RawDescriptionHelpFormatter,
                                 description="Print a script that completes ane's commands, flags and files.")
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(handler=print_completion)


def print_completion(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise UserError("completion needs shtab: pip install shtab") from None
    complete_files(args.top_parser, shtab.FILE)
    print(shtab.complete(args.top_parser, args.shell))
    return 0


def complete_files(parser: argparse.ArgumentParser, files: Any) -> None:
    """Mark every argument whose value is a file, a folder or a path."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                complete_files(command, files)
        elif any(word in str(action.metavar) for word in WORDS):
            action.complete = files
