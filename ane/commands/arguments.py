"""Define the argument parser of all commands, their common flags, and the types of flag values.

``--help`` shows the usual flags of a command, and ``--help-all`` shows its rare flags too.
"""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ane.system.terminal import printable

# Flags of other programs → our flag with the same meaning, or a sentence to print instead, or both with "|" between
MEANINGS = {
    "--rate": "--speed",
    "-r": "--speed",
    "--tempo": "--speed",
    "--model": "--bundle",
    "-m": "--bundle",
    "--speaker": "--voice",
    "--out": "--output",
    "--input": "--file",
    "--volume": "--loudness|SSML changes the volume of a text, with <prosody volume='loud'>",
    "--normalize": "--loudness",
    "--subtitles": "--srt",
    "--dictionary": "--lexicon",
    "--device": "--backend",
    "--artist": "--author",
    "--chapter": "--chapters",
    "--skip": "--chapters",
    "--exclude": "--chapters",
    "--sample-rate": "--data-format",
    "--format": "the suffix of -o OUT chooses the format",
    "--language": "all voices speak English",
    "--pitch": "the pitch of a voice is fixed: choose another voice",
    "--dry-run": "--explain",
}


DELETING = ("remove", "clear")  # subcommands that no hint suggests


class CommandParser(argparse.ArgumentParser):
    """A parser whose flags cannot be abbreviated, and whose ``--help`` hides rare flags.

    After parsing, ``args.parser`` is the parser of the command that the user named, and ``args.typed`` contains the
    names of the flags that the user gave. ``args.sources`` is explained in ``ane.commands.defaults``.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **options)
        self.set_defaults(parser=self, sources={})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.set_defaults(typed=set())
        return super().parse_known_args(args, namespace)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Convert the words after a flag, as argparse does, and record that the user gave the flag."""
        if action.option_strings:
            self._defaults["typed"].add(action.dest)
        return super()._get_values(action, arg_strings)

    def format_help(self) -> str:
        with without_rare_options(self):
            return super().format_help()

    def format_full_help(self) -> str:
        return super().format_help()

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse. For an unknown flag, print an error of the command that suggests a similar flag."""
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flags, flag = known.parser._option_string_actions, unknown[0].partition("=")[0]
            *names, sentence = MEANINGS.get(flag, "").rpartition("|")[::2]
            names = [name for name in (*names, sentence) if name in flags]
            near = names or difflib.get_close_matches(flag, flags, 1, 0.75)
            told = " " in sentence and "--output" in flags
            hint = f" (did you mean {near[0]}?)" if near else f" ({sentence})" if told else ""
            # argparse also lists the values of unknown flags
            faulty = [word for word in unknown if word.startswith("-")] or unknown
            known.parser.error(f"unrecognized arguments: {' '.join(faulty)}{hint}")
        return known

    def error(self, message: str) -> NoReturn:
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message):
            known = [name.strip("'") for name in choice[2].split(", ")]
            safe = [name for name in known if name not in DELETING]
            swapped = [name for name in safe if sorted(name) == sorted(choice[1])]
            if near := swapped or difflib.get_close_matches(choice[1], safe, 1, 0.75):
                message = f"{message[: choice.start(2) - len('choose from ')]}did you mean {near[0]}?)"
        self.exit(2, f"{self.prog}: error: {printable(message)}; see {self.prog} --help\n")


def rare_group(parser: argparse.ArgumentParser, title: str, description: str | None = None) -> argparse._ArgumentGroup:
    """Add a group of flags that only ``--help-all`` shows."""
    group = parser.add_argument_group(title, description)
    group.rare = True  # type: ignore[attr-defined]
    return group


class FullHelpAction(argparse.Action):
    """Print the help of a command with its rare flags, and exit."""

    def __init__(self, option_strings: list[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: Any, *_: Any) -> None:
        parser._print_message(parser.format_full_help(), sys.stdout)
        parser.exit()


@contextmanager
def without_rare_options(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Hide rare flags from the help of a parser while the ``with`` block runs."""
    groups = parser._action_groups
    rare = [group for group in groups if getattr(group, "rare", False)]
    hidden = {
        action: action.help
        for action in parser._actions
        if getattr(action, "rare", False) or any(action in group._group_actions for group in rare)
    }
    parser._action_groups = [group for group in groups if group not in rare]
    for action in hidden:
        action.help = argparse.SUPPRESS
    try:
        yield
    finally:
        parser._action_groups = groups
        for action, text in hidden.items():
            action.help = text


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--verbose`` and ``--quiet`` to every command of a parser."""
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in nested:
        for command in action.choices.values():
            add_common_arguments(command)
    if not nested:
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--verbose", action="store_true", help="print details, and tracebacks of errors")
        group.add_argument("-q", "--quiet", action="store_true", help="print only errors and requested output")


# Argument types, for ``type=``


def positive(text: str) -> int:
    return natural(text, 1)


def natural(text: str, least: int = 0) -> int:
    """Read a whole number of at least ``least``."""
    if text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 18 and int(text) < least:
        raise argparse.ArgumentTypeError(f"it must be at least {least}, got {int(text)}")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        limit = " of at most 18 digits" if len(text) > 18 else ""
        raise argparse.ArgumentTypeError(f"it must be a whole number{limit}, got {text!r}")
    return int(text)


def port(text: str) -> int:
    value = natural(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"it must be from 0 to 65535, got {value}")
    return value


def gigabytes(text: str) -> float:
    return _above_zero(text, "a number of GB above 0")


def seconds(text: str) -> float:
    """Read a finite number of seconds above 0."""
    return _above_zero(text, "a number of seconds above 0")


def _above_zero(text: str, kind: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"it must be {kind}, got {text!r}")
    return number


def pair(text: str) -> tuple[int, int]:
    """Read two numbers: "200,300" → (200, 300)."""
    first, _, second = text.partition(",")
    return positive(first), positive(second)


def comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def counts(text: str) -> tuple[int, ...]:
    """Read positive numbers separated by commas. Return them sorted, without duplicates."""
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))


def path(text: str) -> Path:
    """Read a path. Expand ``~`` and ``~user``, because the shell does not always do it, as in ``--output=~/a.wav``."""
    return Path(os.path.expanduser(text))
