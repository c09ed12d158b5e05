"""Split text into chunks that a model speaks in one pass.

Every place where the text could be broken has a cost. Breaks between paragraphs and between sentences cost least, so a
sentence is broken only if it is too long. The chunks get similar lengths, because models tend to babble on very short
ones.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from ane.system.errors import UserError
from ane.text.date_time_rules import SHORT_MONTHS
from ane.text.lexicon import ENDINGS, MAGNITUDES, NUMBERED, PER_WORDS, PHRASES, SENTENCE_STARTERS, TITLES, UNITS

if TYPE_CHECKING:
    import numpy as np

DESIRED = 200  # desired number of characters in a chunk, as in upstream
MAXIMUM = 300
HARD_BREAK = "|"


def split(text: str, desired: int = DESIRED, maximum: int = MAXIMUM) -> list[str]:
    """Split ``text`` into chunks of about ``desired`` and at most ``maximum`` characters. A longer word stays whole.

    As in upstream's read.py, "|" in the text always ends a chunk. Chunks without letters and digits are dropped. But if
    all chunks are like this, all of them are returned, so that the tokenizer can reject the text.

    Raises:
        UserError: ``1 <= desired <= maximum`` does not hold.
    """
    if not 1 <= desired <= maximum:
        raise UserError(
            f"cannot split text into chunks of about {desired} and at most {maximum} characters: the first number must "
            "be at least 1, and at most the second"
        )
    chunks: list[str] = [chunk for part in text.split(HARD_BREAK) for chunk in split_sentences(part, desired, maximum)]
    return [chunk for chunk in chunks if any(map(str.isalnum, chunk))] or chunks or [text]


# The costs of breaks. The length of a chunk usually costs at most 1 (see ``pack``), so a sentence is broken only as a
# last resort. But a very short chunk sounds worse than any break.
PARAGRAPH = 0.0
SENTENCE = 0.05
QUOTED = 0.3  # a break between two sentences of one quotation
UNCERTAIN = 0.5  # a break after a period, if a word in lower case follows
LINE = 6.0  # a break at the end of a line, within a sentence
CLAUSE = 8.0  # a break after ";", ":", ")" or a dash
COMMA = 10.0
WORD = 40.0
GLUED = 1000.0  # a break after a number that has a unit or more digits, or after an abbreviation such as "Dr."
SHORT_CHUNK = 50.0  # additional cost of a chunk that is shorter than a fifth of the desired length
CHUNK = 0.05  # cost of every chunk, so that text is not split without a reason

CLOSING = "\"'”’»)]}*_"
OPENING = "\"'“‘«([{*_¿¡"
MARKS = re.compile(r"[.!?…。！？]$")
ENUMERATOR = re.compile(r"\(?\d{1,3}[.)]")
NUMBER = re.compile(r"[$€£¥]?\d[\d.,]*")
DIGIT_GROUP = re.compile(r"\+?\(?\d[\d().-]*")  # a group of digits in a telephone number
WORD_TEXT = re.compile(r"(?:\{[^{}]{0,200}\}|\S)+")  # phonemes in braces are one word
QUANTITIES = frozenset(name + plural for name in (*UNITS.values(), *PER_WORDS.values()) for plural in ("", "s"))
# A line break before a list item: "• milk", "1. milk", or "2. milk" after a line that begins with a number.
ITEM = re.compile(r"\s*\n[ \t]*(?:[-*+•‣⁃]|0?1[.)]|(?P<later>\d{1,2}[.)]))[ \t]+\S")
NUMBERED_LINE = re.compile(r"[ \t]*\d{1,2}[.)]")
INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")


class TextPiece(str):
    """A word, a clause or a chunk of a text.

    It also stores the cost of a break after it, and the whitespace to put after it if there is no break.
    """

    __slots__ = ("cost", "gap")
    cost: float
    gap: str

    def __new__(cls, text: str, cost: float = 0.0, gap: str = " ") -> "TextPiece":
        piece = super().__new__(cls, text)
        piece.cost, piece.gap = cost, gap
        return piece


def split_sentences(text: str, desired: int = DESIRED, maximum: int = MAXIMUM) -> list[TextPiece]:
    """Split ``text`` into chunks, which have single spaces between words.

    Line breaks stay where they make a pause: after a paragraph or a heading without a mark, and before a list item.
    """
    return pack(pieces(words(text), maximum), desired, maximum)


def words(text: str) -> list[TextPiece]:
    """Split ``text`` into words. Each has its punctuation, and the cost of a break after it."""
    spans = list(WORD_TEXT.finditer(text))
    parts, quoted, gap = [], False, "\n"
    for span, following in pairwise([*spans, None]):
        word, gap_before = " ".join(span[0].split()), gap
        quoted ^= sum(map(word.count, '"“”')) % 2 == 1
        gap = text[span.end() : following.start()] if following else "\n\n"
        cost = break_cost(word, gap, following[0] if following else "")
        if cost == PARAGRAPH:
            quoted = False
        elif cost == SENTENCE and "\n" in gap_before and ENUMERATOR.fullmatch(word):
            cost = WORD
        elif cost == SENTENCE and quoted:
            cost = QUOTED
        parts.append(TextPiece(word, cost, kept_gap(word, gap, text, span.end()) if "\n" in gap else " "))
    return parts


def kept_gap(word: str, gap: str, text: str, end: int) -> str:
    """Return the whitespace between ``word``, which ends at ``end``, and the next word of a chunk.

    Normalisers read a line break as a pause after a paragraph without a mark, and before a list item.
    """
    if (item := ITEM.match(text, end)) and (
        not item["later"] or NUMBERED_LINE.match(text, text.rfind("\n", 0, end) + 1)
    ):
        return "\n"
    return "\n\n" if gap.count("\n") > 1 and word.rstrip(CLOSING)[-1:].isalnum() else " "


def break_cost(word: str, gap: str, following: str) -> float:
    """Return the cost of a break between ``word`` and ``following``. ``gap`` is the whitespace between them."""
    if gap.count("\n") > 1:
        return PARAGRAPH
    if not any(map(str.isalnum, following)):
        return WORD  # punctuation such as ". . ." and "—" stays with the word before it
    core = word.rstrip(CLOSING)
    abbreviation = is_abbreviation(core, following)
    if MARKS.search(core) and not abbreviation:
        return UNCERTAIN if following.lstrip(OPENING)[:1].islower() else SENTENCE
    if "\n" in gap:
        return LINE
    if DIGIT_GROUP.fullmatch(word) and DIGIT_GROUP.match(following) and not word.endswith("."):
        return GLUED
    if is_quantity(word, following) or (abbreviation and word == core and following[:1].isalnum()):
        return GLUED
    if core.endswith((";", ":", "—", "–")) or word in ("-", "--") or word.endswith((")", "]")):
        return CLAUSE
    return COMMA if core.endswith(",") else WORD


def ends_sentence(run: Sequence[str], following: str) -> bool:
    """Return whether a sentence ends between ``run``, the words since its beginning, and the word ``following``.

    The number of a list item, such as "1.", does not count as a sentence.
    """
    return break_cost(run[-1], " ", following) <= UNCERTAIN and not (len(run) == 1 and ENUMERATOR.fullmatch(run[0]))


def is_abbreviation(word: str, following: str) -> bool:
    """Return whether the period of ``word`` does not end a sentence: "Dr.", or "U.S." before "Army"."""
    if not word.endswith(".") or word.endswith(".."):
        return False
    stem, following = word[:-1].lstrip(OPENING).lower(), following.lstrip(OPENING)
    if stem in TITLES or stem in PHRASES:
        return True
    if len(stem) == 1 and word[-2].isupper() and following[:1].isdigit():
        return False  # a label, as in "Class D. 4 went"
    if stem in NUMBERED or stem.capitalize() in SHORT_MONTHS:
        return following[:1].isdigit()
    if stem not in ENDINGS and not INITIALS.fullmatch(stem):
        return False
    next_word = re.match(r"[\w'’]*", following)[0].replace("’", "'")
    return not (next_word[:1].isupper() and next_word.lower() in SENTENCE_STARTERS)


def is_quantity(word: str, following: str) -> bool:
    """Return whether ``word`` is a number and ``following`` is its unit or magnitude: "5 km", "$3 million"."""
    unit = following.rstrip(CLOSING + ".,;:!?")
    return NUMBER.fullmatch(word) is not None and (unit in UNITS or unit in MAGNITUDES or unit.lower() in QUANTITIES)


def pieces(parts: list[TextPiece], maximum: int) -> list[TextPiece]:
    """Join words into clauses, so that ``pack`` has fewer breaks to compare.

    The words of a sentence that is longer than ``maximum`` are not joined.
    """
    result: list[TextPiece] = []
    for sentence in cut_after(parts, QUOTED):
        if len(join(sentence)) > maximum:
            for run in cut_after(sentence, WORD):
                joined = join(run)
                result += [joined] if len(joined) <= maximum else run
        else:
            result += map(join, cut_after(sentence, COMMA))
    return result


def cut_after(parts: list[TextPiece], cost: float) -> list[list[TextPiece]]:
    """Cut a sequence of pieces after each piece whose break costs at most ``cost``."""
    result: list[list[TextPiece]] = [[]]
    for piece in parts:
        result[-1].append(piece)
        if piece.cost <= cost:
            result.append([])
    return [run for run in result if run]


def join(run: list[TextPiece]) -> TextPiece:
    """Join pieces into one piece, which has the last piece's break after it."""
    return TextPiece("".join(piece + piece.gap for piece in run[:-1]) + run[-1], run[-1].cost, run[-1].gap)


@lru_cache(maxsize=16)
def costs_of_lengths(desired: int, maximum: int, weight: float) -> "tuple[np.ndarray, np.ndarray]":
    """Compute two costs of a chunk for each length up to ``maximum``, in two arrays.

    The first cost is for the distance from ``desired``, and the second one is for chunks that are too short.
    """
    import numpy as np

    distances = np.array([(length / desired - 1) ** 2 for length in range(maximum + 1)])
    return distances, np.where(np.arange(maximum + 1) * 5 < desired, SHORT_CHUNK * weight, 0.0)


def pack(parts: list[TextPiece], desired: int, maximum: int) -> list[TextPiece]:
    """Join consecutive pieces into chunks of at most ``maximum`` characters, by dynamic programming.

    The total cost is minimal. A chunk costs ``CHUNK``, plus the squared relative distance of its length from
    ``desired``, plus the cost of the break after it, plus ``SHORT_CHUNK`` if it is very short. If ``maximum`` is more
    than twice ``desired``, the squared distance can exceed 1. Then ``SHORT_CHUNK``, and the costs of breaks from
    ``UNCERTAIN`` up, are multiplied by its largest possible value.
    """
    import numpy as np  # not at the top, because every command's --help imports this module

    if len(parts) < 2:
        return parts
    weight = max(1.0, (maximum / desired - 1) ** 2)
    costs = [piece.cost * (weight if piece.cost >= UNCERTAIN else 1) for piece in parts]
    ends = [0]  # ends[j] is the length of the first j pieces, each with the whitespace after it
    for piece in parts:
        ends.append(ends[-1] + len(piece) + len(piece.gap))
    length_costs = costs_of_lengths(desired, maximum, weight)
    positions, best = np.array(ends), np.zeros(len(ends))  # best[j] is the lowest cost of the first j pieces
    start, first = [0], 0  # start[j] is the first piece of the last chunk, if the first j pieces are packed
    for j in range(1, len(ends)):
        end = ends[j] - len(parts[j - 1].gap)
        while first < j - 1 and end - ends[first] > maximum:
            first += 1
        if end - ends[first] > maximum:  # a single word that is longer than maximum
            options = best[first:j] + CHUNK + ((end - ends[first]) / desired - 1) ** 2 + costs[j - 1]
        else:
            length = end - positions[first:j]
            options = best[first:j] + CHUNK + length_costs[0][length] + length_costs[1][length] + costs[j - 1]
        i = int(options.argmin())
        best[j] = options[i]
        start.append(first + i)
    chunks, j = [], len(parts)
    while j:
        chunks.append(join(parts[start[j] : j]))
        j = start[j]
    return chunks[::-1]
