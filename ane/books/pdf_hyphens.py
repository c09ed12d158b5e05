"""Words that a PDF divides at line ends."""

import re
from collections.abc import Sequence

HYPHEN = "\x02"         # PDFium's sign for a hyphen at a line end
DIVIDED = re.compile(rf"([^\W_]{{1,60}}+){HYPHEN}([^\W_]+)")
WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")


def without_hyphens(texts: Sequence[str]) -> tuple[list[str], int]:
    """The texts with divided words put together, and how many were.

    A hyphen stays where the text has the word with its hyphen elsewhere, and not without: "well-known".
    """
    known = {word.lower() for text in texts for word in WORD.findall(DIVIDED.sub(" ", text))}
    count = 0

    def whole(match: re.Match[str]) -> str:
        nonlocal count
        together, apart = f"{match[1]}{match[2]}", f"{match[1]}-{match[2]}"
        if apart.lower() in known and together.lower() not in known:
            return apart
        count += 1
        return together

    return [DIVIDED.sub(whole, text).replace(HYPHEN, "-") for text in texts], count
