"""Divides a text that arrives incrementally into clauses and sentences that can be spoken before the rest is known."""

import re
from collections.abc import Callable, Iterator

from ane.text.english import normalise_english
from ane.text.splitter import COMMA, ENUMERATOR, SENTENCE, UNCERTAIN, WORD, break_cost

SHORTEST = 20           # characters of a piece: a shorter one is spoken badly
LONG_SENTENCE = 120     # characters from which a sentence is divided into clauses
MAX_QUOTED = 300        # characters that a quotation or a bracket without its end holds back
MAX_MARKUP = 1200       # characters that a tag, a comment, a link or a command without its end holds back
MAX_HELD = 2000         # characters without a clause, from which any word may end a piece
LOOKAHEAD = 12          # words after a clause that are awaited until one of them is a plain word

COMPLETE_WORD = re.compile(r"\S+(?=\s)")
# A word in lower case, or with one capital: it ends a run of capitals, and belongs to no number, date or list.
PLAIN_WORD = re.compile(r"[\"'“‘(*_]*[A-Z]?[a-z][a-z'’-]*[\"'”’),.;:!?…*_]*")
OPEN_MARKUP = re.compile(r"<!--(?:(?!-->)(?s:.))*\Z|<(?=[A-Za-z/])[^<>]*\Z|\[[^\[\]]*\]?\Z(?<!\])|\[\[[^\]]*\]?\Z")


class ClauseReader:
    """Returns text in pieces, each as soon as no text that follows can change how it is read.

    The pieces join to the text. The first one ends with the first clause; later ones with a sentence, or with a clause
    in a long sentence. A piece is complete when a plain word after it is, and ``normalise`` then gives the same words
    for both apart and together.
    """

    def __init__(self, normalise: Callable[[str], str] = normalise_english):
        self._normalise = normalise
        self._text = ""
        self._first = True

    def feed(self, text: str) -> list[str]:
        """Take the next characters; return the pieces that are now complete."""
        self._text += text
        return list(self._pieces()) if re.search(r"\s", text) else []

    def finish(self) -> list[str]:
        """Return the rest, after the last ``feed``."""
        pieces = self.feed("\n")                # completes the last word
        rest, self._text = self._text[:-1], ""
        if pieces and not rest.strip():
            pieces[-1] += rest
        elif rest:
            pieces.append(rest)
        return pieces

    def _pieces(self) -> Iterator[str]:
        start = 0
        while (end := self._boundary(start)) is not None:
            yield self._text[start:end]
            start, self._first = end, False
        self._text = self._text[start:]

    def _boundary(self, start: int) -> int | None:
        """The end of the first piece from ``start`` on; None if it is not complete."""
        words: list[re.Match[str]] = []
        for word in COMPLETE_WORD.finditer(self._text, start):
            words.append(word)
            if PLAIN_WORD.fullmatch(word[0]) or len(words) % LOOKAHEAD == 0:
                for index in range(max(0, len(words) - 1 - LOOKAHEAD), len(words) - 1):
                    if self._ends_piece(start, words, index):
                        return words[index].end()
        return None

    def _ends_piece(self, start: int, words: list[re.Match[str]], index: int) -> bool:
        """Whether a piece may end with word ``index``, now that the words after it are known."""
        word, following = words[index], words[index + 1]
        length = word.end() - start
        cost = break_cost(word[0], self._text[word.end():following.start()], following[0])
        before = self._text[words[index - 1].end():word.start()] if index else "\n"
        if cost == SENTENCE and "\n" in before and ENUMERATOR.fullmatch(word[0]):
            return False
        if cost == COMMA and following[0][0].isdigit():
            return False                # of a date
        limit = (WORD if length > MAX_HELD else COMMA if self._first or length > LONG_SENTENCE else UNCERTAIN)
        if length < SHORTEST or cost > limit:
            return False
        piece, rest = self._text[start:word.end()], self._text[word.end():words[-1].end()]
        return not is_open(piece) and self._words(piece) + self._words(rest) == self._words(piece + rest)

    def _words(self, text: str) -> list[str]:
        return re.findall(r"[\w']+", self._normalise(text))


def is_open(text: str) -> bool:
    """Whether a quotation, a bracket or markup has begun in ``text`` and not ended."""
    markup = OPEN_MARKUP.search(text, max(0, len(text) - MAX_MARKUP))
    if markup:
        return True
    near = text[-MAX_QUOTED:].rpartition("\n\n")[2]
    if len(text) > MAX_QUOTED and near.count('"') % 2:
        near = ""               # it began too long ago, or ends here
    return near.count('"') % 2 == 1 or near.count("“") > near.count("”") or near.count("(") > near.count(")")
