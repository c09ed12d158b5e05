"""Cut a text that is still arriving into pieces (clauses or sentences) that can be spoken before the rest is known."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ane.text.english import normalise_english
from ane.text.splitter import COMMA, ENUMERATOR, SENTENCE, UNCERTAIN, WORD, break_cost

# All lengths are numbers of characters, except LOOKAHEAD.
SHORTEST = 20  # smallest length of a piece, because shorter text is spoken badly
LONG_SENTENCE = 120  # length above which a sentence is divided into clauses
MAX_QUOTED = 300  # how long the reader waits for the end of a quotation or a bracket
MAX_MARKUP = 1200  # how long the reader waits for the end of a tag, a comment, a link or a command
MAX_HELD = 2000  # how much text the reader holds before it cuts at any word
MOST_HELD = 4000  # how much text the reader holds at most, even in a quotation or in markup
LOOKAHEAD = 12  # largest number of words after a clause in which the reader waits for a plain word
CONTEXT = 300  # how much text before a cut is normalised to check that the cut changes no word
NEVER = float("inf")  # cost of a break after which a piece never ends

UNSPACED = re.compile(r"\S+")
# A plain word: in lower case, or with one capital at its start. Such a word is not part of a number or a date, and ends
# a run of words in capitals.
PLAIN_WORD = re.compile(r"[\"'“‘(*_]*[A-Z]?[a-z][a-z'’-]*[\"'”’),.;:!?…*_]*")


@dataclass
class WordEnd:
    """A complete word, from ``start`` to ``end``, and the cost of a break after it, which depends on the next word."""

    start: int
    end: int
    cost: float = NEVER


class ClauseReader:
    """Cuts arriving text into pieces. It returns a piece as soon as no later text can change how the piece is read.

    Joined together, the pieces are the text. The first piece ends with the first clause. Later pieces end with a
    sentence, or with a clause if the sentence is long. A piece is complete if two things are true: a plain word follows
    it, and ``normalise`` returns the same words whether it reads the piece and the text after it apart or together. The
    reader holds at most ``MOST_HELD`` characters, plus those of the last ``feed``. It looks at each word once, except
    for the last ``LOOKAHEAD`` words.
    """

    def __init__(self, normalise: Callable[[str], str] = normalise_english):
        self._normalise = normalise
        self._text = ""
        self._first = True
        self._start = 0  # position at which the next piece starts
        self._scanned = 0  # end of the last word that was looked at
        self._complete = 0  # position after the last whitespace; all words before it are complete
        self._words: list[WordEnd] = []  # the words from ``_start`` to ``_scanned``

    def feed(self, text: str) -> list[str]:
        """Take the next characters, and return the pieces that are now complete."""
        self._text += text
        tail = 0 if text[-1:].isspace() else len(text.rsplit(None, 1)[-1]) if text else 0
        if tail < len(text):
            self._complete = len(self._text) - tail
        pieces = list(self._pieces())
        self._forget(self._start)
        return pieces

    def finish(self) -> list[str]:
        """Return the pieces of the text that is still held. Call this after the last ``feed``."""
        pieces = self.feed("\n")  # whitespace completes the last word
        rest = self._text[:-1]
        self._text, self._scanned, self._complete, self._words = "", 0, 0, []
        if pieces and not rest.strip():
            pieces[-1] += rest
        elif rest:
            pieces.append(rest)
        return pieces

    def _forget(self, count: int) -> None:
        """Drop the first ``count`` characters, which have been returned."""
        if not count:
            return
        self._text = self._text[count:]
        self._start, self._scanned, self._complete = 0, self._scanned - count, max(0, self._complete - count)
        self._words = [
            WordEnd(word.start - count, word.end - count, word.cost) for word in self._words if word.start >= count
        ]

    def _pieces(self) -> Iterator[str]:
        while (end := self._next_end()) is not None:
            yield self._text[self._start : end]
            self._start = self._scanned = end
            self._words, self._first = [], False

    def _next_end(self) -> int | None:
        """Look at the new words. Returns the end of the next piece, or ``None`` if no piece is complete yet."""
        limit = self._start + MOST_HELD
        for match in UNSPACED.finditer(self._text, self._scanned, self._complete):
            if match.end() >= limit:
                break
            self._add(match)
            if PLAIN_WORD.fullmatch(match[0]) or len(self._words) % LOOKAHEAD == 0:
                for index in range(max(0, len(self._words) - 1 - LOOKAHEAD), len(self._words) - 1):
                    if self._ends_piece(index):
                        return self._words[index].end
        if len(self._text) <= limit:
            return None
        return self._words[-1].end if self._words else limit

    def _add(self, match: re.Match[str]) -> None:
        """Append the next word, and compute the cost of a break before it."""
        if self._words:
            last = self._words[-1]
            word, following = self._text[last.start : last.end], match[0]
            before = self._text[self._words[-2].end : last.start] if len(self._words) > 1 else "\n"
            last.cost = break_cost(word, self._text[last.end : match.start()], following)
            if last.cost == SENTENCE and "\n" in before and ENUMERATOR.fullmatch(word):
                last.cost = NEVER
            if last.cost == COMMA and following[0].isdigit():
                last.cost = NEVER  # the period belongs to a date
        self._words.append(WordEnd(match.start(), match.end()))
        self._scanned = match.end()

    def _ends_piece(self, index: int) -> bool:
        """Return whether a piece can end with word ``index``, given the words after it."""
        end, cost = self._words[index].end, self._words[index].cost
        length = end - self._start
        limit = WORD if length > MAX_HELD else COMMA if self._first or length > LONG_SENTENCE else UNCERTAIN
        if length < SHORTEST or cost > limit:
            return False
        piece, rest = self._text[self._start : end], self._text[end : self._words[-1].end]
        near = piece[-CONTEXT:].partition(" ")[2] if length > 2 * CONTEXT else ""
        return not is_open(piece) and (not near or self._alike(near, rest)) and self._alike(piece, rest)

    def _alike(self, piece: str, rest: str) -> bool:
        """Return whether ``normalise`` returns the same words for two texts apart as for both together."""
        return self._read(piece) + self._read(rest) == self._read(piece + rest)

    def _read(self, text: str) -> list[str]:
        return re.findall(r"[\w']+", self._normalise(text))


def is_open(text: str) -> bool:
    """Return whether a quotation, a bracket or markup begins in ``text`` and does not end there."""
    if in_markup(text[-MAX_MARKUP:]):
        return True
    if len(text) > MAX_HELD:
        return False  # an open bracket or quotation began too long ago, so it is ignored
    near = text[-MAX_QUOTED:].rpartition("\n\n")[2]
    if len(text) > MAX_QUOTED and near.count('"') % 2:
        near = ""  # the quotation began too long ago, or ends here
    return near.count('"') % 2 == 1 or near.count("“") > near.count("”") or near.count("(") > near.count(")")


def in_markup(text: str) -> bool:
    """Return whether a comment, a tag, a link or a command begins in ``text`` and does not end there."""
    comment, tag, link, command = (text.rfind(sign) for sign in ("<!--", "<", "[", "[["))
    return (
        (comment >= 0 and text.find("-->", comment + 4) < 0)
        or (tag >= 0 and text.find(">", tag) < 0 and re.match("[A-Za-z/]", text[tag + 1 : tag + 2]) is not None)
        or (link >= 0 and text.find("]", link) < 0)
        or (command >= 0 and text.find("]", command, len(text) - 1) < 0)
    )
