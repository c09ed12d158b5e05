"""Check that a call is refused: it raises the error for users, whose message is one line."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from ane.system.errors import UserError


def refusal_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The line with which a call is refused."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value), "an error for users is one line"
    return str(caught.value)


def assert_refused(message: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """A call is refused with a line in which ``message``, a regular expression, is found; returns the line."""
    line = refusal_of(call, *arguments, **options)
    assert re.search(message, line), line
    return line
