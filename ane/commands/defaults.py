"""Apply the defaults that a user sets in the environment or in a file.

A flag overrides the environment, the environment overrides the file, and the file overrides the built-in value.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ane.commands.messages import LOGGER
from ane.system.errors import NoEffectError, UserError
from ane.system.paths import config_file

VARIABLES = {"bundle": "ANE_BUNDLE", "voice": "ANE_VOICE"}
# Settings that many commands share. They stand at the top of the file. All other settings are in a TOML table
# [COMMAND].
COMMON = ("bundle", "voice", "lexicon", "speed", "backend", "threads")
# Shared settings that a command ignores. `ane bench` compares backends and numbers of threads.
IGNORED = {"bench": ("backend", "threads")}
T = TypeVar("T")


def apply_defaults(parser: argparse.ArgumentParser, names: Mapping[str, Any]) -> None:
    """Set the defaults of all commands in a parser, from the environment and from the file ``config_file()``.

    Args:
        names: The names of all commands.

    Raises:
        UserError: The file cannot be read, or a setting in it is unknown or wrong.
    """
    file = config_file()
    settings = read_settings(file, names) if os.path.isfile(file) else {}
    commands, known = [*leaves(parser)], set[tuple[str, str]]()
    for command, leaf in commands:
        common = {
            name: value for name, value in settings.items() if name in COMMON and name not in IGNORED.get(command, ())
        }
        defaults = {name: (value, str(file)) for name, value in {**common, **settings.get(command, {})}.items()}
        defaults |= {
            name: (os.environ[variable], variable) for name, variable in VARIABLES.items() if os.environ.get(variable)
        }
        sources: dict[str, tuple[str, Any]] = {}  # the variable or the file that set a flag, and the built-in value
        for name, (value, source) in defaults.items():
            action = leaf._option_string_actions.get(f"--{name.replace('_', '-')}")
            if action is not None and action.nargs in (None, 0) and not isinstance(action, argparse._AppendAction):
                value = converted(leaf, action, value, f"{source}: {name}")
                sources[action.dest] = source, leaf.get_default(action.dest)
                leaf.set_defaults(**{action.dest: value})
                known.add((command, name))
        leaf.set_defaults(sources=sources)
    for command in dict.fromkeys(command for command, _ in commands):  # the subcommands of a command share its table
        for name in settings.get(command, {}):
            if (command, name) not in known:
                raise UserError(f"{file}: ane {command} has no setting {name}: see ane {command} --help-all")


def leaves(parser: argparse.ArgumentParser, command: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every parser that has no subcommands, with the name of the command to which it belongs."""
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in nested:
        for name, inner in action.choices.items():
            yield from leaves(inner, command or name)
    if not nested:
        yield command, parser


def read_settings(file: Path, names: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings in the file: common settings (``COMMON``) at the top, and a TOML table per command."""
    import tomllib

    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    for name, value in settings.items():
        if isinstance(value, dict) and name in names:
            continue
        if isinstance(value, dict) or name not in COMMON:
            raise UserError(
                f"{file}: {name!r} is unknown: use {', '.join(COMMON)}, or a table such as [say] "
                "with the flags of a command"
            )
    return settings


def converted(parser: argparse.ArgumentParser, action: argparse.Action, value: object, where: str) -> Any:
    """Convert the value of a setting as its flag would. Raises UserError if the flag would reject the value."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UserError(f"{where} must be true or false, got {value!r}")
        return value
    try:
        result = parser._get_value(action, str(value))
        parser._check_value(action, result)
    except argparse.ArgumentError as error:
        raise UserError(f"{where}: {error.message}") from None
    return result


def source_of(args: argparse.Namespace, name: str) -> str:
    """Return the environment variable or the file that set a flag.

    Return "" if the user gave the flag, or if the value is the built-in default.
    """
    return "" if name in args.typed else args.sources.get(name, ("", None))[0]


def left_out(args: argparse.Namespace, name: str, reason: str) -> bool:
    """Ignore the value of a flag if it is a default that the user set. Return whether it was ignored.

    Args:
        reason: Condition under which the value has no effect, such as "with --explain". The log line contains it.
    """
    if source := source_of(args, name):
        LOGGER.info("the %s of %s has no effect %s", name, source, reason)
        setattr(args, name, args.sources[name][1])
        args.sources = {other: entry for other, entry in args.sources.items() if other != name}
    return bool(source)


def without_useless_defaults(args: argparse.Namespace, work: Callable[[argparse.Namespace], T]) -> T:
    """Return ``work(args)``.

    As long as the call fails because a default has no effect, ignore the default and repeat the call. If a flag on the
    command line has no effect because of a default (a partner in the error), ignore that default. If the flag still has
    no effect, restore the default and raise the first error.
    """
    # The first error about each parameter, and the values of the flags at that time
    first: dict[str, tuple[NoEffectError, dict[str, Any]]] = {}
    while True:
        try:
            return work(args)
        except NoEffectError as error:
            reason = f"with --{error.parameter.replace('_', '-')}"
            first_error, flags = first.setdefault(error.parameter, (error, dict(vars(args))))
            if not (
                left_out(args, error.parameter, error.reason)
                or any(left_out(args, name, reason) for name in error.partners)
            ):
                vars(args).update(flags)
                raise first_error from first_error.__cause__


def with_sources(message: str, args: argparse.Namespace) -> str:
    """Add to an error message the environment variable or the file that set the value that the message is about."""
    named = [
        f"{name} of {source}"
        for name in args.sources
        if name in message and repr(getattr(args, name)) in message and (source := source_of(args, name))
    ]
    return f"{message} ({', '.join(named)})" if named else message
