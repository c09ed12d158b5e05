"""The message of an error for the user is one printable line."""

import pytest

from ane.system.errors import UserError


@pytest.mark.parametrize(("text", "message"), [
    ("two\nlines  of\ttext ", "two lines of text"), ("Zoë – «ok»", "Zoë – «ok»"),
    ("\x1b[31mred", "\\x1b[31mred"), ("a\udc80b", "a\\udc80b"), ("x\0y", "x\\x00y")])
def test_a_message_is_one_printable_line(text, message):
    assert str(UserError(text)) == message
    message.encode("utf-8")
