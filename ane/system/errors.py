"""Define the exceptions whose messages are for users. If any other exception reaches a user, that is a bug."""

from __future__ import annotations  # so that an old Python can import this module, and then report that it is too old

import os
from contextlib import contextmanager
from reprlib import repr as short
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Self


class UserError(Exception):
    """Means that the input is wrong, or that this machine cannot do the requested work.

    The message is one line. It names the fault, its place and the remedy. The command line prints the message after
    ``ane: error:`` and exits with status 1. Characters that cannot be printed are escaped.

    If you pass the name of a parameter, you get an ``InvalidValueError``. Raise ``NotFoundError`` if a model, a voice,
    a backend or a file is missing.

    Attributes:
        parameter: Name of the parameter whose value is wrong, or "". The message begins with this name, and a command
            replaces it by the name of its flag.
    """

    def __new__(cls, message: str = "", parameter: str = "", *rest: Any, **named: Any) -> Self:
        return super().__new__(InvalidValueError if parameter and cls is UserError else cls)  # type: ignore[return-value]

    def __init__(self, message: str, parameter: str = ""):
        line = " ".join(message.split())
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))
        self.parameter = parameter


class InvalidValueError(UserError):
    """Means that a parameter cannot have this value. ``parameter`` is the name of the parameter."""


class NoEffectError(InvalidValueError):
    """Means that a parameter has a value, but that the value would change nothing.

    The message is "PARAMETER has no effect REASON: ADVICE", unless you pass another text.

    Attributes:
        reason: Words that end the sentence "PARAMETER has no effect …", such as "without guidance".
        partners: Names of other parameters. The parameter has an effect if they have their built-in values.
    """

    def __init__(self, parameter: str, reason: str, advice: str = "", partners: Collection[str] = (), text: str = ""):
        comma = "," * reason.startswith("because")
        super().__init__(text or f"{parameter} has no effect{comma} {reason}{advice and ': '}{advice}", parameter)
        self.reason, self.partners = reason, partners

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return NoEffectError, (self.parameter, self.reason, "", self.partners, str(self))


class NotFoundError(UserError):
    """Means that a model, a voice, a backend or a file does not exist."""


@contextmanager
def system_errors(action: str, advice: str = "") -> Iterator[None]:
    """Raise UserError if the operating system does not allow the work in the ``with`` block.

    Args:
        action: Beginning of the message, such as "cannot read book.txt". The reason of the system follows it.
        advice: End of the message, which says what the user can do.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{action}: {error.strerror or error}{advice and ': '}{advice}") from error


@contextmanager
def naming(place: str, parameter: str) -> Iterator[None]:
    """Put ``place``, such as "texts[2]", before the message of a UserError that the ``with`` block raises.

    The new error is about ``parameter``. If ``parameter`` is "", the block raises its error unchanged.
    """
    try:
        yield
    except UserError as error:
        if not parameter:
            raise
        kind = NotFoundError if isinstance(error, NotFoundError) else UserError
        raise kind(f"{place}: {error}", parameter) from error


PATH = str, os.PathLike


def check_type(parameter: str, value: Any, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Raise InvalidValueError if ``value`` has none of the types.

    The error's message says that ``parameter`` must be ``wanted``.
    """
    if not isinstance(value, kinds):
        raise UserError(f"{parameter} must be {wanted}, got {short(value)}", parameter)


def check_path(path: str | os.PathLike[str]) -> None:
    """Raise InvalidValueError if the parameter ``path`` of a caller is not a path, or is an empty text."""
    check_type("path", path, PATH, "a path")
    if path == "":
        raise UserError("path is empty: write the name of a file", "path")
