"""Long text to chunks, each spoken in one go.

``split`` is what the synthesizer calls. Its default, ``split_sentences``, cuts where it hurts least: between paragraphs
and sentences, within a sentence only if that is too long, and it keeps chunks even, since the model tends to babble on
very short ones. ``split_upstream`` gives what upstream's read.py gives.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ane.system.errors import UserError
from ane.text.lexicon import ENDINGS, NUMBERED, PHRASES, STARTERS, TITLES
from ane.text.moments import SHORT_MONTHS

DESIRED = 200       # characters, as upstream
MAXIMUM = 300
HARD_BREAK = "|"


def split(text: str, desired: int = DESIRED, maximum: int = MAXIMUM, splitter: str = "sentences") -> list[str]:
    """``text`` in chunks of about ``desired`` and at most ``maximum`` characters; a lone longer word stays whole.

    "|" in the text is a break that the writer wants, as in upstream's read.py; upstream then splits no further. Chunks
    without a letter or digit are dropped, but there is always a chunk: text with nothing to say comes back whole, for
    the tokenizer to refuse by name.

    Raises:
        UserError: lengths that make no sense, or no such splitter.
    """
    if splitter not in SPLITTERS:
        raise UserError(f"there is no text splitter {splitter!r}; choose one of {', '.join(SPLITTERS)}")
    check_lengths(desired, maximum)
    parts = text.split(HARD_BREAK)
    if splitter == "upstream" and len(parts) > 1:
        chunks = [part.strip() for part in parts]
    else:
        chunks = [chunk for part in parts for chunk in SPLITTERS[splitter](part, desired, maximum)]
    return [chunk for chunk in chunks if any(map(str.isalnum, chunk))] or [text]


def check_lengths(desired: int, maximum: int) -> None:
    if not 1 <= desired <= maximum:
        raise UserError(f"cannot split text into chunks of {desired} to {maximum} characters: the desired length must "
                        "be at least 1 and not above the maximum")


# --- sentences -------------------------------------------------------------------------------------------------------

# What it costs to end a chunk there. The length of a chunk costs 1 at worst (see ``pack``), so a break in mid-sentence
# is a last resort; but TINY outweighs even one at a bare word, because a very short chunk spoils the sound more.
PARAGRAPH, SENTENCE, QUOTED, LOOSE, LINE, CLAUSE, COMMA, WORD = 0.0, 0.05, 0.3, 0.5, 6.0, 8.0, 10.0, 40.0
TINY = 50.0
CHUNK = 0.05        # every seam costs a little: two chunks must be better than one

CLOSING = "\"'”’»)]}*_"
OPENING = "\"'“‘«([{*_¿¡"
MARKS = re.compile(r"[.!?…。！？]$")
ENUMERATOR = re.compile(r"\(?\d{1,3}[.)]")
INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")


@dataclass(frozen=True)
class Piece:
    """Text that is not broken any further, and what it costs to end a chunk behind it."""

    text: str
    cost: float


def split_sentences(text: str, desired: int = DESIRED, maximum: int = MAXIMUM) -> list[str]:
    """Chunks of whole sentences. Joined by spaces they are ``text`` again, with each run of whitespace one space."""
    check_lengths(desired, maximum)
    return pack(pieces(words(text), maximum), desired, maximum)


def words(text: str) -> list[Piece]:
    """Every word, with the cost of a break behind it."""
    spans = list(re.finditer(r"\S+", text))
    found, quoted, gap = [], False, "\n"
    for span, following in pairwise([*spans, None]):
        word, gap_before = span[0], gap
        quoted ^= sum(map(word.count, '"“”')) % 2 == 1
        gap = text[span.end():following.start()] if following else "\n\n"
        cost = break_cost(word, gap, following[0] if following else "")
        if cost == PARAGRAPH:
            quoted = False
        elif cost == SENTENCE and "\n" in gap_before and ENUMERATOR.fullmatch(word):
            cost = WORD
        elif cost == SENTENCE and quoted:
            cost = QUOTED
        found.append(Piece(word, cost))
    return found


def break_cost(word: str, gap: str, following: str) -> float:
    """The cost of a break between two words that ``gap``, whitespace, parts."""
    if gap.count("\n") > 1:
        return PARAGRAPH
    if not any(map(str.isalnum, following)):
        return WORD                     # ". . ." and "—" belong to what stands before them
    core = word.rstrip(CLOSING)
    if MARKS.search(core) and not is_abbreviation(core, following):
        return LOOSE if following.lstrip(OPENING)[:1].islower() else SENTENCE
    if "\n" in gap:
        return LINE
    if core.endswith((";", ":", "—", "–")) or word in ("-", "--") or word.endswith((")", "]")):
        return CLAUSE
    return COMMA if core.endswith(",") else WORD


def is_abbreviation(word: str, following: str) -> bool:
    """Whether the period of ``word`` belongs to it and ends no sentence: "Dr.", "e.g.", "J.", "U.S." before "Army"."""
    if not word.endswith(".") or word.endswith(".."):
        return False
    stem, following = word[:-1].lstrip(OPENING).lower(), following.lstrip(OPENING)
    if stem in TITLES or stem in PHRASES:
        return True
    if stem in NUMBERED or stem.capitalize() in SHORT_MONTHS:
        return following[:1].isdigit()
    if stem not in ENDINGS and not INITIALS.fullmatch(stem):
        return False
    next_word = re.match(r"[\w'’]*", following)[0].replace("’", "'")
    return not (next_word[:1].isupper() and next_word.lower() in STARTERS)


def pieces(found: list[Piece], maximum: int) -> list[Piece]:
    """Words to clauses, so that there is less to weigh; but the words of a sentence above ``maximum`` stay apart."""
    result: list[Piece] = []
    for sentence in runs(found, QUOTED):
        if len(joined(sentence).text) > maximum:
            result += sentence
        else:
            result += map(joined, runs(sentence, COMMA))
    return result


def runs(found: list[Piece], cost: float) -> list[list[Piece]]:
    """``found`` cut behind every piece where a break costs no more than ``cost``."""
    result: list[list[Piece]] = [[]]
    for piece in found:
        result[-1].append(piece)
        if piece.cost <= cost:
            result.append([])
    return [run for run in result if run]


def joined(run: list[Piece]) -> Piece:
    return Piece(" ".join(piece.text for piece in run), run[-1].cost)


def pack(found: list[Piece], desired: int, maximum: int) -> list[str]:
    """The cheapest way to join neighbours into chunks of at most ``maximum``: dynamic programming from the left.

    A chunk costs the squared relative distance of its length from ``desired``, and the break behind it. What is to be
    avoided at any length is weighted by the largest such distance, where that is above 1.
    """
    weight = max(1.0, (maximum / desired - 1) ** 2)
    costs = [piece.cost * (weight if piece.cost >= LOOSE else 1) for piece in found]
    ends = [0]                                  # ends[j]: length of the first j pieces, a space behind each
    for piece in found:
        ends.append(ends[-1] + len(piece.text) + 1)
    best, start = [0.0], [0]                    # cheapest cost of the first j pieces, and where their last chunk starts
    for j in range(1, len(ends)):
        options = []
        for i in range(j - 1, -1, -1):
            length = ends[j] - ends[i] - 1
            if length > maximum and i < j - 1:
                break
            tiny = TINY * weight if length * 5 < desired else 0.0
            options.append((best[i] + CHUNK + (length / desired - 1) ** 2 + tiny + costs[j - 1], i))
        cost, i = min(options)
        best.append(cost)
        start.append(i)
    chunks, j = [], len(found)
    while j:
        chunks.append(" ".join(piece.text for piece in found[start[j]:j]))
        j = start[j]
    return chunks[::-1]


# --- upstream --------------------------------------------------------------------------------------------------------


def split_upstream(text: str, desired: int = DESIRED, maximum: int = MAXIMUM) -> list[str]:
    """What upstream's split_and_recombine_text (tortoise/utils/text.py) gives, character for character.

    It normalises whitespace and double quotation marks, knows no abbreviations, and drops chunks of punctuation alone.
    """
    check_lengths(desired, maximum)
    text = re.sub(r"[“”]", '"', re.sub(r"\s+", " ", text))
    chunks = UpstreamScanner(text, desired, maximum).chunks()
    return [chunk for chunk in map(str.strip, chunks) if not re.fullmatch(r"[\s.,;:!?]*", chunk)]


class UpstreamScanner:
    """Upstream's walk over the text. The chunk being read is ``text[start:position + 1]``."""

    def __init__(self, text: str, desired: int, maximum: int):
        self.text, self.desired, self.maximum = text, desired, maximum
        self.start, self.position = 0, -1
        self.in_quote = False
        self.sentence_ends: list[int] = []

    @property
    def length(self) -> int:
        return self.position + 1 - self.start

    def move(self, step: int) -> str:
        """One character on or back. A quotation mark stepped onto toggles ``in_quote``, also on the way back."""
        self.position += step
        if self.text[self.position] == '"':
            self.in_quote = not self.in_quote
        return self.text[self.position]

    def peek(self, ahead: int) -> str:
        """The character ``ahead``; "" at the end, and already for the very last character."""
        place = self.position + ahead
        return self.text[place] if 0 <= place < len(self.text) - 1 else ""

    def cut(self) -> str:
        chunk = self.text[self.start:self.position + 1]
        self.start = self.position + 1
        self.sentence_ends = []
        return chunk

    def chunks(self) -> list[str]:
        found = []
        while self.position < len(self.text) - 1:
            character = self.move(1)
            if self.length >= self.maximum:
                self.retreat(character)
                found.append(self.cut())
            elif not self.in_quote and (character in "!?" or (character == "." and self.peek(1) in (" ", ""))):
                self.swallow_marks()
                self.sentence_ends.append(self.position)
                if self.length >= self.desired:
                    found.append(self.cut())
            elif self.in_quote and self.peek(1) == '"' and self.peek(2) in (" ", ""):
                self.move(1)
                self.move(1)
                self.sentence_ends.append(self.position)
        return [*found, self.text[self.start:]]

    def swallow_marks(self) -> None:
        while self.position < len(self.text) - 1 and self.length < self.maximum and self.peek(1) in ("", ".", "!", "?"):
            self.move(1)

    def retreat(self, character: str) -> None:
        """Back to the last sentence end of a chunk over half the desired length, else to the last word boundary."""
        if self.sentence_ends and self.length > self.desired / 2:
            while self.position > self.sentence_ends[-1]:
                self.move(-1)
            return
        while character not in "!?. " and self.position > 0 and self.length > self.desired:
            character = self.move(-1)


SPLITTERS: dict[str, Callable[[str, int, int], list[str]]] = {"sentences": split_sentences, "upstream": split_upstream}
