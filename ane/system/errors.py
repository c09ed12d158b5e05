"""Define the exceptions whose messages are written for the user. Every other exception that escapes is a bug."""

from __future__ import annotations  # an old Python imports this module to say that it is too old

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self


class UserError(Exception):
    """Bad input, or a machine that cannot do the requested work.

    The message is one line that says what was wrong, where, and what to do about it. The command line prints it after
    ``ane: error:`` and exits with status 1. Characters that cannot be printed are escaped.

    An error that names a parameter is an ``InvalidValueError``. If a model, a voice, a backend or a file is missing, it
    is a ``NotFoundError``.

    Attributes:
        parameter: Name of the wrong parameter, or "". The message begins with this name, which a command replaces by
            the name of its flag.
    """

    def __new__(cls, message: str = "", parameter: str = "", *rest: Any, **named: Any) -> Self:
        return super().__new__(InvalidValueError if parameter and cls is UserError else cls)  # type: ignore[return-value]

    def __init__(self, message: str, parameter: str = ""):
        line = " ".join(message.split())
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))
        self.parameter = parameter


class InvalidValueError(UserError):
    """A value that a parameter does not take. ``parameter`` is the name of the parameter."""


class NotFoundError(UserError):
    """A model, a voice, a backend or a file that does not exist."""
