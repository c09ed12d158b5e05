"""Run `ane completion`: print a script that completes commands, flags and their values, or the manual page of `ane`.

The script and the manual page are made from the parsers of the commands.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ane.commands.defaults import apply_defaults
from ane.system.errors import UserError
from ane.system.paths import cache_dir, config_file, data_dir, voices_dir
from ane.system.version import version

SHELLS = ("bash", "zsh", "fish")
ENVIRONMENT = {
    "ANE_HOME": "folder for voices, bundles, defaults and the cache, instead of the folders above",
    "ANE_VOICE": "default of --voice",
    "ANE_BUNDLE": "default of --bundle",
}
STATUSES = {
    "0": "The command succeeded.",
    "1": "The input is bad, or this machine cannot run the command. One line on standard error says why.",
    "2": "The flags are wrong.",
    "130, 143": "Ctrl-C or SIGTERM stopped the command. No file was left half-written.",
}
EXAMPLES = """
examples:
  eval "$(ane completion bash)"                        in ~/.bashrc
  eval "$(ane completion zsh)"                         in ~/.zshrc, after compinit
  ane completion fish | source                         in ~/.config/fish/config.fish
  ane completion man > ~/.local/share/man/man1/ane.1   the manual page: man ane
"""


def register(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a completion script for your shell, or the manual page",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Print the manual page, or a script that completes commands, flags, voices, presets and bundles.",
    )
    parser.add_argument("kind", choices=(*SHELLS, "man"), help="your shell, or 'man' for the manual page")
    parser.set_defaults(handler=completion)


def completion(args: argparse.Namespace) -> int:
    if args.kind == "man":
        print("\n".join(manual_page(args.make_parser())))
        return 0
    from argcomplete.shell_integration import shellcode  # Apache-2.0

    print(shellcode(["ane"], shell=args.kind))
    return 0


def answer_shell(make_parser: Callable[[str], argparse.ArgumentParser], names: Mapping[str, Any]) -> None:
    """Print the words with which the shell can complete the command line, and end the process.

    Args:
        make_parser: Function that returns the parser of a command.
        names: The names of all commands.
    """
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()
    parser = make_parser(words[1] if len(words) > 1 else "--help")
    with suppress(UserError):  # the command itself reports a faulty default when it runs
        apply_defaults(parser, names)
    completers = {
        "bundle": bundles,
        "voice": voices,
        "quote_voice": voices,
        "names": stored_voices,  # NAME … of `ane voices remove`
        "preset": presets,
        "file_format": file_formats,
        "data_format": data_formats,
    }
    for leaf in parsers(parser):
        for action in leaf._actions:
            if completer := completers.get(action.dest):
                action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def bundles(**_: Any) -> list[str]:
    from ane.bundles import bundle_names

    return bundle_names()


def voices(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    from ane.bundles import open_model
    from ane.voices.finding import voice_names

    return voice_names(open_model(getattr(parsed_args, "bundle", None)))


def stored_voices(**_: Any) -> list[str]:
    from ane.voices.finding import list_voices

    return [*list_voices([voices_dir()])]


def presets(**_: Any) -> list[str]:
    from ane.models.tortoise.settings import PRESETS

    return [*PRESETS]


def file_formats(**_: Any) -> list[str]:
    from ane.commands.macos_flags import FILE_FORMATS

    return [*FILE_FORMATS]


def data_formats(**_: Any) -> list[str]:
    from ane.audio.sample_format import ENCODINGS

    return [*ENCODINGS]


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and the parsers of all its subcommands, in order."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


def manual_page(top: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the lines of the manual page, in roff. The page lists every command with all its options, by group."""
    yield f'.TH ANE 1 "" "tortoise-ane {version()}" "User Commands"'
    yield f".SH NAME\nane \\- {escaped(str(top.description))}"
    yield ".SH SYNOPSIS\n.B ane\nCOMMAND [options]\n.SH COMMANDS"
    for parser in [*parsers(top)][1:]:
        yield f".SS {escaped(parser.prog)}\n{escaped(parser.description or '')}"
        for group in parser._action_groups:
            shown = [
                action
                for action in group._group_actions
                if action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)
            ]
            if shown and group.title not in ("options", "positional arguments"):
                yield f".PP\n.I {escaped(str(group.title))}\n{escaped(group.description or '')}".rstrip()
            for action in shown:
                names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
                if action.option_strings and action.nargs != 0:
                    names += f" {action.metavar or action.dest.upper()}"
                yield f".TP\n.B {escaped(names)}\n{escaped(str(action.help) % vars(action)) or '.'}"
        if parser.epilog:
            yield f".PP\n.nf\n{escaped(parser.epilog.strip(), lines=True)}\n.fi"
    for heading, terms in (
        (
            "FILES",
            {
                str(data_dir()): "voices and bundles that you stored",
                str(config_file()): "your defaults, in TOML",
                str(cache_dir()): "files that ane can compute again",
            },
        ),
        ("ENVIRONMENT", ENVIRONMENT),
        ("EXIT STATUS", STATUSES),
    ):
        yield f".SH {heading}"
        for term, meaning in terms.items():
            yield f".TP\n.B {escaped(term)}\n{escaped(meaning)}"


def escaped(text: str, lines: bool = False) -> str:
    """Escape a text for roff. Join its lines into one line unless ``lines`` is set."""
    text = text if lines else " ".join(text.split())
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)
