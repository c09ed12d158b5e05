"""Upstream's way of splitting text, for comparison with its chunks."""

import re

from ane.text.splitter import DESIRED, MAXIMUM, check_lengths


def split_upstream(text: str, desired: int = DESIRED, maximum: int = MAXIMUM) -> list[str]:
    """The chunks of upstream's split_and_recombine_text (tortoise/utils/text.py), character for character.

    Whitespace and double quotation marks are normalised, a period after an abbreviation ends a sentence, and chunks of
    punctuation only are dropped.

    Raises:
        UserError: not ``1 <= desired <= maximum``.
    """
    check_lengths(desired, maximum)
    text = re.sub(r"[“”]", '"', re.sub(r"\s+", " ", text))
    chunks = UpstreamScanner(text, desired, maximum).chunks()
    return [chunk for chunk in map(str.strip, chunks) if not re.fullmatch(r"[\s.,;:!?]*", chunk)]


class UpstreamScanner:
    """Scans the text as upstream does. The current chunk is ``text[start:position + 1]``."""

    def __init__(self, text: str, desired: int, maximum: int):
        self.text, self.desired, self.maximum = text, desired, maximum
        self.start, self.position = 0, -1
        self.in_quote = False
        self.sentence_ends: list[int] = []

    @property
    def length(self) -> int:
        return self.position + 1 - self.start

    def move(self, step: int) -> str:
        """Moves by ``step`` and returns the character there. A quotation mark toggles ``in_quote`` both ways."""
        self.position += step
        if self.text[self.position] == '"':
            self.in_quote = not self.in_quote
        return self.text[self.position]

    def peek(self, ahead: int) -> str:
        """The character at ``position + ahead``, or "" at the end; the last character counts as the end."""
        index = self.position + ahead
        return self.text[index] if 0 <= index < len(self.text) - 1 else ""

    def cut(self) -> str:
        """Ends the current chunk and returns it."""
        chunk = self.text[self.start:self.position + 1]
        self.start = self.position + 1
        self.sentence_ends = []
        return chunk

    def chunks(self) -> list[str]:
        found = []
        while self.position < len(self.text) - 1:
            character = self.move(1)
            if self.length >= self.maximum:
                self.move_back(character)
                found.append(self.cut())
            elif not self.in_quote and (character in "!?" or (character == "." and self.peek(1) in (" ", ""))):
                self.skip_end_marks()
                self.sentence_ends.append(self.position)
                if self.length >= self.desired:
                    found.append(self.cut())
            elif self.in_quote and self.peek(1) == '"' and self.peek(2) in (" ", ""):
                self.move(1)
                self.move(1)
                self.sentence_ends.append(self.position)
        return [*found, self.text[self.start:]]

    def skip_end_marks(self) -> None:
        """Moves to the last of several marks: "?!" and "..." are one sentence end."""
        while self.position < len(self.text) - 1 and self.length < self.maximum and self.peek(1) in ("", ".", "!", "?"):
            self.move(1)

    def move_back(self, character: str) -> None:
        """Moves to the last sentence end if the chunk exceeds half the desired length, else to a word boundary."""
        if self.sentence_ends and self.length > self.desired / 2:
            while self.position > self.sentence_ends[-1]:
                self.move(-1)
            return
        while character not in "!?. " and self.position > 0 and self.length > self.desired:
            character = self.move(-1)
