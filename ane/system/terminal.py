"""Make text safe to print, because a title, voice or text from a stranger must not control the terminal."""

import re

# control characters of ISO 6429, except line feed and tab, and characters that reverse the order of letters
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Replace control characters in ``text`` by escapes, such as \x1b."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
