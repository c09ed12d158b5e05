"""Words for a terminal: what a book, a voice or a job of a stranger is called must not control the screen."""

import re

# the control characters of ISO 6429 but for line feed and tab, and what reverses or hides the order of letters
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return ``text`` with its control characters as escapes, such as \x1b."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
